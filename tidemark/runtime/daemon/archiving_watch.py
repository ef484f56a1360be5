"""Both processes' watch on archiving: does WAL arrive in the archive, and can it (I25, I28, I31).

The node is queried first and the folder is listed afterwards: a segment that the server reports as archived, and that
is neither in the folder nor recorded as a hole, was given up without a record. Trimming keeps the newest segment, so a
folder that ends before that segment never had it.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TypeVar

from tidemark.io.archive.archive_progress import (
    Missing,
    Unrecorded,
    has_no_filler,
    is_off_over,
    missing,
    reached_lsn,
    unrecorded,
    waiting_segments,
)
from tidemark.io.archive.archive_state import ArchiveState
from tidemark.io.archive.spool import NoSpool, Spool
from tidemark.io.archive.spool_access import ServerCannotArchive, record_user, spool_access_error
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.disk import StateFull
from tidemark.io.node.node import NodeArchiving
from tidemark.io.process.config import ArchiveConfig
from tidemark.io.state.state import StateStore
from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import INVALID_LSN, Lsn
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.node_requests import NodeRequests
from tidemark.wal.segments import segment_of, segment_start
from tidemark.wire.state.values import Archiving

QUERY_S = 10.0
START_S = 3.0  # a start waits this long for the node's answer, and then for the folder's
ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class ArchivingWatch:
    """Queries the node at intervals; the results go into the state and the metrics."""

    context: CaptureContext
    archive: ArchiveConfig
    node_requests: NodeRequests
    _query: Future[NodeArchiving] | None = None
    _queried_s: float = -QUERY_S
    _answer: NodeArchiving | None = None
    _reported: str | None = None
    holes: int = 0  # that are not recorded; one that shows by later segments counts once this process saw it twice
    _missing_first: str = ""  # by this process's last comparison: the other process reads the same folder
    _clock: SystemClock = field(default_factory=SystemClock)

    def poll(self) -> None:
        """Query the node if it is time, and read its answer if that has arrived."""
        now_s = time.monotonic()
        if self._query is not None and self._query.done():
            if self._query.exception() is None:
                self._answer = self._query.result()
            self._query = None
        if self._query is None and now_s - self._queried_s >= QUERY_S:
            self._queried_s = now_s
            self._query = self.node_requests.find_archiving()

    @property
    def answer(self) -> NodeArchiving | None:
        """The node's last answer; to be read before the folder is listed."""
        return self._answer

    def compare(self, answer: NodeArchiving | None, found: ArchiveState) -> Archiving:
        """Compare the node's report with the folder; record the result if it has changed."""
        store = self.context.store
        before = store.archiving()
        beginning = store.beginning()
        if answer is None or beginning is None:
            self._show(before)
            return before
        user = answer.server if answer.is_on else None
        lost = Unrecorded()
        if answer.is_on and self.archive.filled_by == "archive_command":  # otherwise it is not for this spool
            lost = unrecorded(found, answer.archived_file, beginning.lsn, beginning.timeline)
        off_lsn, on_lsn = self._when_off(before, answer, found)
        absent = self._missing(found, off_lsn)
        due_lsn = max(beginning.lsn, on_lsn)  # WAL completed while archive_mode was off is not waited for
        waiting, reached = waiting_segments(found, answer.insert_lsn, due_lsn), reached_lsn(found)
        stays = before.waiting_since_us and before.reached_lsn == reached
        seen = Archiving(
            uid=before.uid if user is None else user.uid,
            gid=before.gid if user is None else user.gid,
            groups=before.groups if user is None else user.groups,
            waiting_since_us=(before.waiting_since_us if stays else self._clock.wall_us()) if waiting else 0,
            waiting=waiting,
            reached_lsn=reached if waiting else INVALID_LSN,
            unrecorded_first=lost.first,
            unrecorded=lost.count,
            off_lsn=off_lsn,
            on_lsn=on_lsn,
            missing_first=absent.first,
            missing=absent.count,
        )
        with suppress(StateFull):  # it is for people, and will be detected again
            store.record_archiving(seen)
        self._show(seen)
        self.holes = lost.count + (absent.count if self._missing_first == absent.first else 0)
        self._missing_first = absent.first
        self._report(lost, spool_access_error(self.archive, user))
        return seen

    def _when_off(self, before: Archiving, answer: NodeArchiving, found: ArchiveState) -> tuple[Lsn, Lsn]:
        """Return `off_lsn` and `on_lsn` by the node's answer: of a server that fills our spool."""
        if answer.insert_lsn == INVALID_LSN:
            return before.off_lsn, before.on_lsn  # a standby does not report it
        begin_lsn = segment_start(segment_of(answer.insert_lsn, found.segment_bytes), found.segment_bytes)
        if has_no_filler(answer, found, self.archive.filled_by):
            return begin_lsn, INVALID_LSN
        if not answer.is_on or begin_lsn < before.off_lsn:  # other programs fill it; or the node went back in its WAL
            return INVALID_LSN, INVALID_LSN
        start = self.context.store.marks().start
        if start is not None and is_off_over(found, start.restart_lsn, before.on_lsn):
            return INVALID_LSN, INVALID_LSN  # a later gap has another cause
        return before.off_lsn, before.on_lsn or begin_lsn if before.off_lsn else INVALID_LSN

    def _missing(self, found: ArchiveState, off_lsn: Lsn) -> Missing:
        start = self.context.store.marks().start
        if start is None:
            return Missing()
        return missing(found, start.position.timeline, start.restart_lsn, off_lsn)

    def _show(self, seen: Archiving) -> None:
        since_us = seen.waiting_since_us
        waited_s = max(0.0, (self._clock.wall_us() - since_us) / USECS_PER_SECOND) if since_us else 0.0
        self.context.metrics.archive_waiting_seconds.set(waited_s)

    def _report(self, lost: Unrecorded, access_error: str | None) -> None:
        """Log a problem, once as long as it stays the same."""
        reason = None
        if access_error is not None:
            reason = f"the server cannot fill the spool: {access_error}"
        elif lost.count:
            reason = (
                f"{lost.count} segments from {lost.first} on never arrived, although the server reports them "
                "as archived"
            )
        if reason is not None and reason != self._reported:
            self.context.log.warning("the archive does not receive WAL", reason=reason, hint=ServerCannotArchive.hint)
        self._reported = reason


def check_archiving(archive: ArchiveConfig, store: StateStore, node_requests: NodeRequests) -> None:
    """Raise, before a daemon begins, if the server's user cannot fill the spool, or if it is another cluster's.

    The errors are `ServerCannotArchive` and `ConfigError`. A node that is down, or a folder that does not answer, does
    not prevent the start: `ArchivingWatch` checks again.
    """
    if not archive.folder:
        return
    spool = Spool(Path(archive.folder))
    with suppress(NotInTime, OSError, NoSpool):
        in_time(lambda: spool.check_owner(store.identity.system_identifier), START_S)
    try:
        answer = node_requests.find_archiving().result(START_S)
        user = answer.server
        if user is None or not answer.is_on:  # a server that runs no archive_command loses nothing by it
            return
        record_user(store, user)
        access_error = in_time(lambda: spool_access_error(archive, user), START_S)
    except (TidemarkError, NotInTime, OSError):
        return
    if access_error is not None:
        raise ServerCannotArchive(f"the server cannot fill the spool {archive.folder}: {access_error}")


def in_time(read: Callable[[], ResultT], wait_s: float) -> ResultT:
    """Return what `read` returns; raise `TimeoutError` if its file system does not answer in time."""
    answer: Future[ResultT] = Future()

    def run() -> None:
        try:
            answer.set_result(read())
        except Exception as error:  # noqa: BLE001 - it is the asker's
            answer.set_exception(error)

    Thread(target=run, name="archive query", daemon=True).start()
    return answer.result(wait_s)
