"""One pipeline for each lake: a lock in the lake's folder that names its holder.

`_positions` records the owner of a lake's tables, but after the loss of a state another state continues the capture
under the same name. The lock refuses a second pipeline that is not such a successor but runs beside the first. The
kernel releases it when the holder dies. The hosts of one capture, which share one marker key, each run a pipeline:
after a switchover, the one at the new deliverer writes, while the other still holds the lock and has nothing to write.
Such a pair, and a pair on hosts whose file system does not share locks, is fenced by the commits of the tables
(`TableFenced`). The pipeline without the lock takes it when its holder ends, so that a later pipeline or command sees
it as running; a separate thread does this, so that a long batch does not matter. A lake in an object store has no lock
but an epoch (`tidemark.pipeline.landing.lake_epoch`).
"""

import os
import pwd
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

from tidemark.io.host.clock import host_name
from tidemark.io.host.disk import is_full
from tidemark.io.host.file_locks import lock_file, read_holder, write_holder
from tidemark.model.errors import ConfigError
from tidemark.pipeline.lake.positions.positions import LakeOfAnother
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, LakeFull
from tidemark.wire.json_form import JsonForm, JsonMismatch
from tidemark.wire.state.values import Identity

FILE = "_pipeline.lock"
_FILE_MODE = 0o600
TAKE_S = 1.0  # interval at which a pipeline beside the holder tries to take the lock: one request, on NFS to its server
END_S = 5.0  # how long the end of a pipeline waits for such a request
OTHER_USER = (
    f"run the pipelines of a lake as one user; or, while none runs, remove {FILE}: the next pipeline creates it again"
)
NO_LOCKS = (
    "put the lake on a file system that supports open file description locks (on NFS: without nolock, with its "
    "lock service)"
)


@dataclass(frozen=True, slots=True)
class LakeHolder:
    """The pipeline that holds a lake's lock."""

    capture: str
    system_identifier: str
    state: str
    reader: str
    host: str
    pid: int
    marker_keys: tuple[str, ...]  # key names, which do not reveal the keys
    token: int = 0  # of an epoch in an object store
    state_host: str = ""  # if it is another host: the pipeline reads from its outbox server

    def is_beside(self, other: "LakeHolder") -> bool:
        """Return whether both are pipelines of one capture on two of its hosts."""
        is_same_state = self.state_place == other.state_place
        return not is_same_state and bool(set(self.marker_keys) & set(other.marker_keys))

    @property
    def state_place(self) -> tuple[str, str]:
        """Host and path of the state folder."""
        return self.state_host or self.host, self.state

    @property
    def place(self) -> tuple[str, ...]:
        """Host, state folder and reader: of pipelines with equal ones, one runs at a time."""
        return self.host, *self.state_place, self.reader

    def __str__(self) -> str:
        at = f" on {self.state_host}" if self.state_host else ""
        return (
            f"the pipeline {self.reader!r} of capture {self.capture!r} of the cluster {self.system_identifier} "
            f"(state {self.state}{at}, process {self.pid} on {self.host})"
        )


HOLDER: JsonForm[LakeHolder] = JsonForm(LakeHolder)


def this_pipeline(
    identity: Identity, state: Path, reader: str, marker_keys: Collection[str], state_host: str
) -> LakeHolder:
    """Return the pipeline of this process as the holder of a lake; `state_host`: if the state is on another host."""
    return LakeHolder(
        identity.capture,
        str(identity.system_identifier),
        str(state.absolute()),
        reader,
        host_name(),
        os.getpid(),
        tuple(sorted(marker_keys)),
        state_host=state_host,
    )


class LakeInUse(LakeOfAnother):
    """Another pipeline writes to this lake."""

    hint = "give each capture a separate lake and a separate name (capture.name), or stop the other pipeline first"


class UnusableLakeFolder(ConfigError):
    """The path of a lake is not that of a folder, or this user may not create it or write there."""

    hint = "give --lake a folder that the user of the pipeline can create or write to"


class LakeLock:
    """The lock of one lake, held until it is closed; with `beside` not held until that pipeline ends."""

    def __init__(self, path: Path, pipeline: LakeHolder) -> None:
        """Open and lock `path`.

        Raises `LakeInUse` if another process has it and is no pipeline `beside` this one, and `UnusableLakeFolder`.
        """
        self._path, self._pipeline = path, pipeline
        self.beside: LakeHolder | None = None
        self._refusal: LakeInUse | None = None
        self._ended = Event()
        self._taking: Thread | None = None
        with _writing_lake(path), _usable_folder(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            self.beside = self._take()
            if self.beside is not None:
                self._taking = Thread(target=self._take_later, name="tidemark-lake-lock", daemon=True)
                self._taking.start()
        except BaseException:
            os.close(self._descriptor)
            raise

    @classmethod
    def acquire(
        cls,
        lake: Path,
        identity: Identity,
        state: Path,
        reader: str,
        marker_keys: Collection[str],
        *,
        state_host: str = "",
    ) -> Self:
        """Acquire the lock of `lake`; create a missing folder; raise `LakeInUse` if another process has the lock."""
        return cls(lake / FILE, this_pipeline(identity, state, reader, marker_keys, state_host))

    is_newest = False  # no other pipeline can have the lock
    others = ()  # `beside` is the only one

    def check(self) -> None:
        """Raise `LakeInUse` if another pipeline has taken the lock for which this one waits."""
        if self._refusal is not None:
            raise self._refusal

    check_idle = check

    def _take(self) -> LakeHolder | None:
        """Take the lock; return its holder if that pipeline is beside this one."""
        try:
            with _locking(self._path):
                lock_file(self._descriptor)
        except BlockingIOError:
            with _locking(self._path):
                holder = _holder(self._descriptor)
            if holder is None and self.beside is not None:  # another one takes the lock at this moment
                return self.beside
            if holder is not None and self._pipeline.is_beside(holder):
                return holder
            by = holder or "another pipeline, which starts at this moment"
            raise LakeInUse(f"{self._path.parent} is written by {by}; this is {self._pipeline}") from None
        with _writing_lake(self._path):
            write_holder(self._descriptor, HOLDER.write(self._pipeline))
        return None

    def _take_later(self) -> None:
        while self.beside is not None and self._refusal is None and not self._ended.wait(TAKE_S):
            try:
                self.beside = self._take()
            except LakeInUse as refusal:
                self._refusal = refusal
            except (LakeFailed, LakeFull):  # the pipeline reports it with its own next write
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; the end of the process does, if a request for it has no answer."""
        self._ended.set()
        if self._taking is not None:
            self._taking.join(END_S)
            if self._taking.is_alive():
                return
        os.close(self._descriptor)


@contextmanager
def _usable_folder(path: Path) -> Iterator[None]:
    """Raise `UnusableLakeFolder` for errors of opening `path` that only an operator can resolve.

    NB: only at the start of a pipeline: a lake that refuses writes later may accept them again.
    """
    try:
        yield
    except PermissionError as error:
        user = _name(os.geteuid())
        with suppress(OSError):
            owner = _name(path.stat().st_uid)
            reason = f"{path} belongs to the user {owner} and is not writable for {user}"
            raise UnusableLakeFolder(reason, hint=OTHER_USER) from error
        reason = f"the lake {path.parent} cannot be created or written by the user {user}: {error.strerror}"
        raise UnusableLakeFolder(reason) from error
    except (FileExistsError, NotADirectoryError) as error:
        file = next((each for each in path.parents if each.exists() and not each.is_dir()), None)
        reason = (error.strerror or "") if file is None else f"{file} is a file"
        raise UnusableLakeFolder(f"the lake {path.parent} cannot be a folder: {reason}") from error


@contextmanager
def _writing_lake(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise (LakeFull if is_full(error) else LakeFailed)(f"{path}: {error.strerror}") from error


@contextmanager
def _locking(path: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise LakeFailed(f"{path} cannot be locked: {error.strerror}", hint=NO_LOCKS) from error


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _holder(descriptor: int) -> LakeHolder | None:
    """Return the holder of the lock; the text is missing for a moment between locking and writing."""
    try:
        return HOLDER.read(read_holder(descriptor))
    except JsonMismatch:
        return None
