"""Decides when a capture restarts for requested copies: once a restart loses nothing (`first_copy.recopying`).

A restart reads WAL from the restart LSN. If a transaction has been open for long, the node may have removed that WAL:
without an archive the restart would end the capture. And the copy waits for transactions that are older than its start,
with no delivery meanwhile, and is postponed after `recopying.OLDER_WAIT_S`. So before the capture is stopped, the node
must confirm that it has the WAL, and the transactions that are open by then have to end.
"""

from concurrent.futures import Future

from tidemark.engine.progress import Progress
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import describe_error
from tidemark.io.node.node_queries import NodeQueries, OlderOpen
from tidemark.model.errors import NodeUnreachable
from tidemark.model.lsn import INVALID_LSN, FullXid, Lsn, format_lsn
from tidemark.model.position import Epoch
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.first_copy.recopying import Due, Recopying

QUERY_S = 5.0  # interval of queries for the WAL
OLDER_QUERY_S = 1.0  # interval of queries for older transactions

WalQuery = Future[bool]
OlderQuery = Future[OlderOpen]


class StillOpen(NodeUnreachable):
    """The copy would wait for open transactions."""

    hint = "end them (COMMIT, ROLLBACK PREPARED, pg_terminate_backend); the request is kept, and the stream continues"


class NoWalForRestart(NodeUnreachable):
    """The node has removed WAL that a restart of the capture would read."""

    hint = "end the transactions that are open since then, or raise wal_keep_size; the request is kept"


class RecopyRestart:
    """Decides when to stop a running capture so that the next one copies the requested tables."""

    def __init__(self, context: CaptureContext, node_queries: NodeQueries) -> None:
        self._recopying = Recopying(context.store)
        self._node_queries = node_queries
        self._log = context.log
        self._errors = context.metrics.errors
        self._clock = SystemClock()
        self._wal_query: WalQuery | None = None
        self._queried_lsn: Lsn = INVALID_LSN
        self._older_query: OlderQuery | None = None
        self._below: FullXid | None = None  # transactions older than this must end first
        self._has_wal = self._are_older_over = False
        self._not_before_s = 0.0
        self._reported = ""
        self.waits_for = ""  # why a due request is not served yet

    def queue(self, epoch: Epoch) -> None:
        """Queue the due requests: a capture is about to begin."""
        self._recopying.queue(epoch, self._now_s())
        self._forget()

    @property
    def has_requests(self) -> bool:
        """Return whether there are requests whose copy is not complete, and has not failed."""
        return self._recopying.has_requests

    def is_due(self, progress: Progress, epoch: Epoch, *, copying: bool) -> bool:
        """Return whether the capture with this progress should be stopped now. `copying`: it makes a copy."""
        due = Due.NOTHING if copying else self._recopying.step(progress, epoch, self._now_s())
        if due is not Due.NOW:
            self._forget()
            self.waits_for = self._recopying.waits_for if due is Due.LATER else ""
        elif not self._has_wal:
            self._poll_wal(progress)
        elif not self._are_older_over:
            self._poll_older()
        return self._has_wal and self._are_older_over

    def _now_s(self) -> float:
        return self._clock.monotonic_s()

    def _forget(self) -> None:
        self._wal_query, self._older_query, self._below = None, None, None
        self._has_wal, self._are_older_over, self.waits_for = False, False, ""

    def _poll_wal(self, progress: Progress) -> None:
        """Query the node for the WAL that a restart reads, until it has it."""
        now_s = self._now_s()
        if self._wal_query is None:
            if now_s >= self._not_before_s and progress.delivered is not None:
                self._not_before_s = now_s + QUERY_S
                self._queried_lsn = progress.delivered.restart_lsn
                self._wal_query = self._node_queries.has_wal(self._queried_lsn)
            return
        if not self._wal_query.done():
            return
        query, self._wal_query = self._wal_query, None
        error = query.exception()
        if error is not None:
            self._errors.inc()
        elif not query.result():
            start = format_lsn(self._queried_lsn)
            error = NoWalForRestart(f"the node has removed WAL from {start} on, but a restart of the capture needs it")
        if error is None:
            self._has_wal, self._not_before_s = True, 0.0
        else:
            self._report(error)

    def _poll_older(self) -> None:
        """Query the node for the transactions that were open at the first query, until they have ended."""
        now_s = self._now_s()
        if self._older_query is None:
            if now_s >= self._not_before_s:
                self._not_before_s = now_s + OLDER_QUERY_S
                self._older_query = self._node_queries.find_older(self._below)
            return
        if not self._older_query.done():
            return
        query, self._older_query = self._older_query, None
        if (error := query.exception()) is not None:
            self._errors.inc()
            self._report(error)
            return
        self._record_older(query.result(), is_first=self._below is None)

    def _record_older(self, found: OlderOpen, *, is_first: bool) -> None:
        self._below = found.below
        if found.names is not None:
            error = StillOpen(f"the copy would wait for open transactions: {found.names}")
            self._report(error, is_logged=not is_first)  # most end before the second query
            return
        self._are_older_over, self._has_wal = True, is_first  # after a wait, check again: the node may have removed WAL
        self._not_before_s = 0.0

    def _report(self, error: BaseException, *, is_logged: bool = True) -> None:
        described = describe_error(error)
        self.waits_for = described["error"]
        if is_logged and self.waits_for != self._reported:
            self._reported = self.waits_for
            self._log.warning("requested copies wait", **described)
