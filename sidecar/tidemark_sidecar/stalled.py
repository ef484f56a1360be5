"""Detects an archive that does not advance: the sidecar continues from the node, if the node has the WAL (I17).

`tidemark.engine.archive_wait` defines how long it waits; a row of the stage table defines the next stage.
"""

from concurrent.futures import Future

from tidemark.engine.archive_wait import ArchiveProgress, ArchiveWait
from tidemark.io.host.clock import NS_PER_S, boot_ns
from tidemark.io.host.logs import describe_error
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.state_views import StateMarks
from tidemark.model.lsn import Lsn
from tidemark.runtime.daemon.service import DaemonContext


class StalledArchive:
    """Measures how long the archive has not advanced, then queries the node for the WAL."""

    def __init__(self, daemon: DaemonContext, *, archive_wait_s: float, watchdog_s: float) -> None:
        context = daemon.context
        self._log = context.log
        self._errors = context.metrics.errors
        self._heartbeat = context.store.environment.heartbeat
        self._watchdog_s = watchdog_s
        self._node_requests = daemon.node_requests
        self._wait = ArchiveWait(archive_wait_s, context.store.identity.segment_bytes)
        self._wal_query: Future[bool] | None = None
        self._archived_lsn: Lsn | None = None  # from the last listing of the archive
        self._stalled_lsn: Lsn | None = None  # the archive's end when the sidecar continued without it

    @property
    def archiver_is_alive(self) -> bool:
        """Whether the archiver's heartbeat is recent."""
        age_s = self._heartbeat.age_s(Slot.ARCHIVER)
        return age_s is not None and age_s <= self._watchdog_s

    def record_archive_end(self, end_lsn: Lsn | None) -> None:
        """Record the end of the archive."""
        self._archived_lsn = end_lsn

    def is_over(self, marks: StateMarks, *, waits: bool) -> bool:
        """Return whether the sidecar should continue from the node; `waits`: its return waits for the archiver."""
        start = marks.start
        if not waits or start is None:
            self._wait.restart()
            self._wal_query = None
            return False
        if self._wal_query is not None:
            return self._wal_query.done() and self._has_wal(self._wal_query)
        delivered = marks.delivered.pointer.position if marks.delivered is not None else None
        seen = ArchiveProgress(delivered, self._archived_lsn, self.archiver_is_alive)
        if self._wait.is_over(seen, boot_ns() / NS_PER_S):
            self._wal_query = self._node_requests.has_wal(start.restart_lsn)
        return False

    def record_continued(self) -> None:
        """Record that the sidecar delivers without the archive."""
        self._stalled_lsn = self._archived_lsn

    def archive_has_grown(self) -> bool:
        """Return whether the archive has grown since: only then is a hand-over to the archiver useful."""
        return self._archived_lsn is not None and self._archived_lsn > (self._stalled_lsn or 0)

    def _has_wal(self, query: Future[bool]) -> bool:
        self._wal_query = None
        self._wait.restart()
        error = query.exception()
        if error is not None:
            self._errors.inc()
            self._log.warning("the archive does not arrive, and the node does not answer", **describe_error(error))
            return False
        if not query.result():
            self._log.warning(
                "the archive does not arrive, and the node has removed WAL that is needed",
                hint="check archive_command and the folder of the archive: delivery waits for them",
            )
        return query.result()
