"""One pipeline for each lake in an object store: the youngest.

    <lake>/_pipeline/<epoch>.json    the pipeline that took this epoch

A store has no locks that end with a process. A pipeline that starts therefore takes the next epoch by a conditional
request, of which only one succeeds, and deletes the objects of earlier ones. A pipeline whose object is gone is the
older one: it ends at its next batch, or while it is idle. A batch that it has begun may still commit: a commit is
conditional, and has its position, so that nothing is lost or doubled. The younger one opens the lake again then.

The hosts of one capture each run a pipeline (`tidemark.pipeline.lake.lake_lock`): they do not end each other. A command
that must not write beside any pipeline is refused while one is running (`running_pipelines`), and ends at its next
check if one has started.
"""

import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tidemark.io.host.clock import host_name
from tidemark.model.errors import Fenced
from tidemark.pipeline.delta_log.commits import new_token
from tidemark.pipeline.lake.lake_lock import HOLDER, LakeHolder, LakeInUse, LakeLock, this_pipeline
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.tables.table_errors import LakeFailed
from tidemark.pipeline.landing.running_pipelines import ALIVE_S, FOLDER, AliveObject, SeenPipeline, running_pipelines
from tidemark.pipeline.storage.lake_store import LakeStore
from tidemark.pipeline.storage.store_errors import BadStore
from tidemark.pipeline.storage.stores import is_remote, store_of
from tidemark.wire.capture_facts import CaptureFacts
from tidemark.wire.json_form import JsonMismatch
from tidemark.wire.state.values import Identity

TAKES_MAX = 20  # attempts, each of which another pipeline that starts at this moment prevented
IDLE_CHECK_S = 5.0
STOP_FIRST = "stop that pipeline first"
_DIGITS = 16


class LakeTaken(Fenced):
    """A younger pipeline took over this lake."""

    hint = "two pipelines write to one lake: stop one of them; no change is duplicated or lost"


class LakeHold(Protocol):
    """What entitles a pipeline to write to a lake."""

    @property
    def beside(self) -> LakeHolder | None:
        """Return the pipeline of another host of the capture that also may write."""

    @property
    def is_newest(self) -> bool:
        """Return whether a commit of another pipeline can only be one of an older one, which ends."""

    @property
    def others(self) -> Sequence[SeenPipeline]:
        """Return the pipelines that were running when this one began: they end, or are those of other hosts."""

    def check(self) -> None:
        """Raise `LakeTaken` if another pipeline took over the lake; with `alone`, `LakeInUse` if one is running."""

    def check_idle(self) -> None:
        """Check, at intervals, while there is nothing to write."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        """End the hold."""


class LakeEpoch:
    """The epoch of this pipeline."""

    def __init__(self, root: str, holder: LakeHolder, epoch: int, *, alone: bool) -> None:
        self._root, self._holder, self._is_alone = root, holder, alone
        self._path = _path(root, epoch)
        self._alive = AliveObject(root, holder, epoch)  # NB: first: of two that start, one sees the other
        with ExitStack() as stack:
            stack.callback(self._alive.delete)
            self.others = _others(root, holder)
            stack.pop_all()
        self._checked_s = time.monotonic()
        self.beside: LakeHolder | None = None

    @classmethod
    def take(
        cls,
        root: str,
        identity: Identity,
        state: Path,
        reader: str,
        marker_keys: Collection[str],
        *,
        state_host: str = "",
        alone: bool = False,
    ) -> Self:
        """Take the next epoch of the lake at `root`; raise `LakeOfAnother` if it is not a lake of this capture.

        With `alone`, `check` allows no pipeline of another host.
        """
        Positions(root, identity)  # NB: first, so that a pipeline of another capture ends none
        token = new_token()  # so that no other pipeline's object has the same content
        holder = replace(this_pipeline(identity, state, reader, marker_keys, state_host), token=token)
        store = store_of(root)
        content = HOLDER.write(holder)
        for _ in range(TAKES_MAX):
            newest, other = newest_holder(root)
            if other is not None and (other.capture, other.system_identifier) != (
                holder.capture,
                holder.system_identifier,
            ):
                raise LakeInUse(f"{root} is written by {other}; this is {holder}")
            path = _path(root, newest + 1)
            with suppress(FileExistsError), store.staged(path, content, token) as publish:
                publish(path)
                _check_conditional(store, path, HOLDER.write(replace(holder, token=new_token())))
                if max(_epochs(root)) > newest + 1:  # others took the next ones while this request was on its way
                    store.delete([path])
                    continue
                store.delete([_path(root, number) for number in _epochs(root) if number <= newest])
                return cls(root, holder, newest + 1, alone=alone)
        raise LakeFailed(f"{root}: other pipelines took the next epoch {TAKES_MAX} times in succession")

    @property
    def is_newest(self) -> bool:
        """Return whether a commit of another pipeline can only be one of an older one."""
        return self.beside is None

    def check(self) -> None:
        """Raise `LakeTaken` if another pipeline took over the lake; with `alone`, `LakeInUse` if one is running."""
        self._checked_s = time.monotonic()
        if not store_of(self._root).exists(self._path):
            newest, other = newest_holder(self._root)
            if other is None or not self._holder.is_beside(other):
                raise LakeTaken(f"{self._root} was taken over by {other or 'another pipeline'}; this is {self._holder}")
            self._path, self.beside = _path(self._root, newest), other
        if self._is_alone:
            _check_alone(self._root, self._holder)
            if self.beside is not None:  # it ended, and may have committed
                raise LakeInUse(f"{self._root} is written by {self.beside}", hint=STOP_FIRST)

    def check_idle(self) -> None:
        """Check, but not more often than every `IDLE_CHECK_S`."""
        if time.monotonic() - self._checked_s >= IDLE_CHECK_S:
            self.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        """Keep the object of the epoch: it names the last pipeline."""
        self._alive.delete()


def _check_conditional(store: LakeStore, path: str, other: bytes) -> None:
    """Raise `BadStore` if the store lets another request create an object that exists: then nothing here is safe."""
    with suppress(FileExistsError), store.staged(path, other, new_token()) as publish:
        publish(path)
        store.delete([path])
        raise BadStore(
            f"the store overwrote {path}, which it was asked to create: it ignores `If-None-Match`",
            hint="use a store with conditional writes; two writers would overwrite each other's commits",
        )


def hold_lake(root: str, identity: Identity, facts: CaptureFacts, reader: str, *, alone: bool = False) -> LakeHold:
    """Acquire the lock of a local lake, or take the epoch of one in an object store.

    With `alone` raise `LakeInUse` if a pipeline of another host is running, which otherwise may write as well; so does
    `LakeHold.check` if one started later.
    """
    state_host = facts.host if facts.host != host_name() else ""
    state, keys = Path(facts.state), facts.marker_keys
    if is_remote(root):
        if alone:
            _check_alone(root, this_pipeline(identity, state, reader, keys, state_host))
        with ExitStack() as stack:
            epoch = stack.enter_context(
                LakeEpoch.take(root, identity, state, reader, keys, state_host=state_host, alone=alone)
            )
            if alone:  # NB: again: one may have started meanwhile
                epoch.check()
            stack.pop_all()
            return epoch
    lock = LakeLock.acquire(Path(root), identity, state, reader, keys, state_host=state_host)
    if alone and lock.beside is not None:
        lock.close()
        raise LakeInUse(f"{root} is written by {lock.beside}", hint=STOP_FIRST)
    return lock


def _check_alone(root: str, own: LakeHolder) -> None:
    """Raise `LakeInUse` if a pipeline of the lake is running; one whose lock this process has is dead."""
    for one in _others(root, own):
        raise LakeInUse(
            f"{root} is written by {one}",
            hint=f"{STOP_FIRST}; one that was killed counts as running for {ALIVE_S:.0f} s",
        )


def _others(root: str, own: LakeHolder) -> tuple[SeenPipeline, ...]:
    return tuple(one for one in running_pipelines(root) if one.holder.place != own.place)


def newest_holder(root: str) -> tuple[int, LakeHolder | None]:
    """Return the newest epoch of a lake, 0 if there is none, and the pipeline that took it."""
    for epoch in sorted(_epochs(root), reverse=True):
        try:
            return epoch, HOLDER.read(store_of(root).read(_path(root, epoch)))
        except FileNotFoundError:  # another pipeline took the next one at this moment
            continue
        except JsonMismatch:
            return epoch, None
    return 0, None


def _epochs(root: str) -> list[int]:
    try:
        names = [file.name for file in store_of(root).files(f"{root}/{FOLDER}")]
    except FileNotFoundError:
        return []
    return [int(name[:_DIGITS]) for name in names if name[:_DIGITS].isdecimal()]


def _path(root: str, epoch: int) -> str:
    return f"{root}/{FOLDER}/{epoch:0{_DIGITS}}.json"
