"""The sidecar's return to REALTIME: buffer, request, ensure the marker, take over when it is reached (I15, I17).

Nothing is delivered here. The buffer survives a failed attempt only while the stage permits another one.
"""

from concurrent.futures import Future

from tidemark.engine.handover import Event
from tidemark.engine.retry import Backoff
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import describe_error
from tidemark.io.node.replication import NodeIdentity
from tidemark.io.process.config import RealtimeConfig
from tidemark.io.process.marker_key import KeysDiffer
from tidemark.io.state.state_views import StateMarks
from tidemark.model.lsn import Lsn
from tidemark.model.mode import Stage
from tidemark.runtime.capture.source_thread import Link
from tidemark.runtime.capture.wal_source import LiveBuffer, WalSettings
from tidemark.runtime.daemon.service import DaemonContext
from tidemark.runtime.daemon.stage_transition import StageTransition
from tidemark.runtime.daemon.stops import event_of
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.wire.marker import MarkerKind
from tidemark.wire.state.values import HandOver
from tidemark_sidecar.stalled import StalledArchive

QUERY_S = 1.0  # interval of queries for the node's position, and of retries of the marker
MARKER_LOST_S = 60.0  # a failover may lose the marker with the primary; any marker of the attempt is sufficient


class RealtimeReturn:
    """Attempts to return to REALTIME, one at a time."""

    def __init__(
        self,
        daemon: DaemonContext,
        transition: StageTransition,
        stalled: StalledArchive,
        *,
        realtime: RealtimeConfig,
        wal: WalSettings,
        lag_bytes_max: int,
    ) -> None:
        """`lag_bytes_max`: how far the archiver may be behind the node at a return."""
        context = daemon.context
        self._context = context
        self._store = context.store
        self._wal = wal
        self._automatic = realtime.automatic_return
        self._stalled = stalled
        self._node_requests = daemon.node_requests
        self._transition = transition
        self._clock = SystemClock()
        self._buffer: LiveBuffer | None = None
        self._node_query: Future[NodeIdentity] | None = None
        self._marker: Future[Lsn] | None = None  # the requested try-start marker
        self._marker_requested_s = 0.0
        self._not_before_s = 0.0
        self._is_requested = False
        self._reported_keys = False
        self._is_too_far = False  # at the last query: the archiver's lag to the node was too great
        self._backoff = Backoff(realtime.return_first_s, realtime.return_max_s)
        self._lag_bytes_max = lag_bytes_max

    def failed(self) -> None:
        """Record that realtime or an attempt has failed: the next attempt waits longer."""
        self._context.metrics.errors.inc()
        self._backoff.failed(self._clock.monotonic_s())

    def succeeded(self) -> None:
        """Record that realtime is stable."""
        self._backoff.succeeded()

    def return_soon(self) -> None:
        """Try as soon as possible, at the operator's request."""
        self._is_requested = True
        self._not_before_s = 0.0

    def cancel(self) -> None:
        """Drop the buffer and the operator's request: realtime continues without a return."""
        self._is_requested = False
        self.drop()

    def drop(self) -> None:
        """Drop the buffer."""
        buffer, self._buffer, self._marker = self._buffer, None, None
        if buffer is not None:
            buffer.stop()

    def step(self, marks: StateMarks) -> LiveBuffer | None:
        """Do the step for the present stage; return the buffer, once, when delivery can continue from it."""
        if self._buffer is not None and self._buffer.input.error is not None:
            self._give_up(marks, self._buffer.input.error)
        elif marks.stage is Stage.ARCHIVE:
            self._return_if_due(marks)
        elif marks.stage is Stage.RETURNING:
            self._check_marker(marks)
        elif marks.stage is Stage.RETURNED:
            return self._buffer_at_marker()
        return None

    def waits_for_archive(self, marks: StateMarks) -> bool:
        """Return whether the return waits for the archiver: to be alive, to be near, or to reach the marker."""
        if marks.stage is not Stage.ARCHIVE:
            return marks.stage is Stage.RETURNING
        is_due = self._is_due(self._clock.monotonic_s())
        return is_due and (self._is_too_far or not self._stalled.archiver_is_alive)

    def write_marker(self) -> None:
        """Request the try-start marker of this attempt."""
        view = self._store.view()
        assert view.term is not None, "a process has delivered"
        pointer = view.horizon.pointer if view.horizon else None
        attempt = view.hand_over.attempt
        self._marker = self._node_requests.write(MarkerKind.TRY_START, view.term.epoch, pointer, sequence=attempt)
        self._marker_requested_s = self._clock.monotonic_s()

    def _return_if_due(self, marks: StateMarks) -> None:
        now_s = self._clock.monotonic_s()
        if self._buffer is not None:
            self._request_return(self._buffer)
        elif self._node_query is not None:
            if self._node_query.done():
                self._begin_buffering(marks, self._node_query)
                self._node_query = None
        elif now_s >= self._not_before_s and self._may_return(now_s):
            self._not_before_s = now_s + QUERY_S
            self._node_query = self._node_requests.find_node()

    def _may_return(self, now_s: float) -> bool:
        """Return whether an attempt is due and a live archiver would reach the marker and be able to verify it."""
        if not self._stalled.archiver_is_alive:
            return False
        if not self._store.marker_keys().are_one:
            if not self._reported_keys:
                self._reported_keys = True
                self._context.log.warning("cannot return", **describe_error(KeysDiffer()))
            return False
        self._reported_keys = False
        return self._is_due(now_s)

    def _is_due(self, now_s: float) -> bool:
        is_time = self._automatic and self._backoff.wait_s(now_s) <= 0
        return self._is_requested or is_time

    def _begin_buffering(self, marks: StateMarks, request: Future[NodeIdentity]) -> None:
        """Start to buffer if the node answers and the archiver is near."""
        error = request.exception()
        if error is not None:
            self._context.log.warning("cannot return to realtime yet", **describe_error(error))
            self.failed()
            return
        here = request.result()
        delivered = marks.delivered.pointer.position if marks.delivered else None
        behind = here.flush_lsn - (delivered.commit_lsn if delivered else 0)
        self._is_too_far = behind > self._lag_bytes_max
        if not self._is_too_far:
            self._buffer = LiveBuffer(self._context, self._wal, here, delivered)
            self._buffer.start()

    def _request_return(self, buffer: LiveBuffer) -> None:
        """Request the return once the stream is being buffered: the buffer must contain the marker."""
        if buffer.input.link is Link.STREAMING:
            self._is_requested = False
            attempt = self._store.hand_over().attempt + 1
            self._transition.try_move(Event.RETURN_READY, hand_over=HandOver(attempt))

    def _check_marker(self, marks: StateMarks) -> None:
        if self._buffer is None:
            self._transition.try_move(Event.SIDECAR_LOST, only_from=marks.stage, reason="the buffered WAL was lost")
            return
        now_s = self._clock.monotonic_s()
        if (error := _failure(self._marker)) is not None and now_s >= self._not_before_s:
            self._not_before_s = now_s + QUERY_S
            self._context.metrics.errors.inc()
            self._context.log.warning("the try-start marker was not written", **describe_error(error))
            self.write_marker()
        elif self._marker is not None and self._marker.done() and now_s - self._marker_requested_s >= MARKER_LOST_S:
            self._context.log.warning(
                "the archiver did not reach the try-start marker; writing it again", after_s=MARKER_LOST_S
            )
            self.write_marker()
            self._node_requests.switch_segment()

    def _buffer_at_marker(self) -> LiveBuffer | None:
        """Return the buffer once it contains the marker, on the timeline on which the archiver reached it."""
        buffer, reached = self._buffer, self._store.hand_over()
        timeline = buffer.timeline_at(reached.lsn) if buffer is not None else None
        if buffer is not None and timeline == reached.timeline:
            self._buffer, self._marker = None, None
            return buffer
        if buffer is None or buffer.start_lsn > reached.lsn:
            reason = "the buffered WAL was lost, or begins after the marker"
            self._transition.try_move(Event.SIDECAR_LOST, only_from=Stage.RETURNED, reason=reason)
        elif timeline is not None:
            self.failed()
            self.drop()
            reason = (
                f"the archiver reached the marker on timeline {reached.timeline}, but the buffered WAL is of "
                f"timeline {timeline}"
            )
            self._transition.try_move(Event.SIDECAR_LOST, only_from=Stage.RETURNED, reason=reason)
        return None

    def _give_up(self, marks: StateMarks, error: BaseException) -> None:
        """Abandon the return, the archiver continues: the buffer overflowed, or the node has removed needed WAL."""
        self.failed()
        self.drop()
        event = _given_up_by(error)
        if event is None:
            raise error
        self._context.log.warning("the return to realtime was abandoned", **describe_error(error))
        if marks.stage is not Stage.ARCHIVE:
            self._transition.try_move(event, only_from=marks.stage, reason=str(error))


def _given_up_by(error: BaseException) -> Event | None:
    """Return the event of the stage table for a buffer's error; None if the error ends the process."""
    if isinstance(error, DeadBranchDelivered) and error.fork_lsn is not None:
        return Event.SIDECAR_LOST  # nothing was delivered from the buffer: the next one begins after the fork
    return event_of(error)


def _failure(request: Future[Lsn] | None) -> BaseException | None:
    """Return the error of a request to the node, if it failed."""
    return request.exception() if request is not None and request.done() else None
