"""The network thread: owns the replication connection, fills the ring, and waits for the node only.

    CONNECTING ──► STREAMING ──► PAUSED (ring full: no connection) ──► CONNECTING ...

A broken connection is opened again, with back-off, at the ring's end; so is a connection that was closed because the
ring was full, once a share of the ring is free. Closing costs the node nothing, and an unread connection would delay
its shutdown. An error that cannot heal (WAL removed, another cluster) ends the thread; `error` has the reason.

In a quiet stream it offers the stream to the application thread (`stream_lease`), so that no commit waits for one
thread to wake another. This thread keeps the connection: every `CHECK_S` it checks whether the application thread has
read the socket since, and if not it reads again, so that neither a slow consumer nor a long decode delays WAL. It also
reads again if more WAL arrives than one lease reads, and at the end of the stream, for the node's
reason.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tidemark.engine.progress import Progress
from tidemark.engine.retry import Backoff
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.node.replication import StreamEvent, TimelineEnd, WalStream
from tidemark.io.process.metrics import Metrics
from tidemark.model.errors import Disposition, InternalError, NodeUnreachable, TidemarkError
from tidemark.model.lsn import INVALID_LSN, NO_TIMELINE, Lsn, SystemIdentifier, TimelineId, format_lsn
from tidemark.model.position import Position
from tidemark.runtime.capture.signal import Signal
from tidemark.runtime.capture.source_thread import Link, SourceThread
from tidemark.runtime.capture.stream_lease import StreamLease
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.wal.segments import SLICE_BYTES_MAX, TimelineHistory, WalSlice
from tidemark.wire.replication import Keepalive

READ_S = 0.2  # how soon a stop is noticed in a quiet stream; far below the wal_sender_timeout that we set
CHECK_S = 0.1  # how often it is checked whether the application thread reads; it may stay away for twice that
CHECK_QUIET_S = 2.0  # while no WAL comes
OFFER_BYTES_MAX = 64 << 10  # how much the ring may have: more is a backlog, which the decode thread decodes first
LEASED_BYTES_MAX = 1 << 20  # how much the application thread reads in a lease: more is a backlog, for this thread
READ_AGAIN_BYTES = 64 << 10  # in a lease: after less, the socket is probably empty, and the next wait shows if not
RECALL_S = 60.0  # a lease is far shorter, unless the consumer's process hangs


class RingOverflowed(TidemarkError):
    """The consumer does not keep up, and there is an archive to continue from."""

    disposition = Disposition.FAIL_OVER
    hint = "the archiver continues; ring.bytes_max is the size of the ring"


class NodeIsStandby(NodeUnreachable):
    """A node that returned as a standby, to a sidecar that follows standbys and delivers from none."""

    hint = "no action is needed: the sidecar becomes a follower (standby.follow)"


class Reached(NamedTuple):
    """WAL that is known to have happened, up to `lsn` along `timeline`; of two, the greater one is newer."""

    timeline: TimelineId
    lsn: Lsn

    @classmethod
    def by_delivering(cls, delivered: Position | None) -> "Reached":
        """Return what a delivered position shows: its record has begun there. None: it shows nothing."""
        if delivered is None:
            return cls(NO_TIMELINE, INVALID_LSN)
        return cls(delivered.timeline, Lsn(delivered.commit_lsn + 1))


MayOverflow = Callable[[], bool]  # called by the network thread


def always() -> bool:
    """Permit it."""
    return True


class WalSink(Protocol):
    """The destination of received WAL: the ring, or the spool around a first copy."""

    capacity: int

    @property
    def write_lsn(self) -> Lsn:
        """The LSN of the next byte to put."""

    @property
    def free_bytes(self) -> int:
        """Bytes that are free."""

    def put(self, wal_slice: WalSlice) -> None:
        """Accept a slice."""


class NetworkThread(SourceThread):
    """Streams WAL from the node into a sink."""

    def __init__(
        self,
        dsn: str,
        sink: WalSink,
        *,
        system_identifier: SystemIdentifier,
        timeline: TimelineId,
        progress: Progress,
        arrived: Signal,
        lease: StreamLease | None = None,
        metrics: Metrics,
        log: Log,
        backoff: Backoff,
        attempts_max: int = 0,
        reconnect_share: float,
        overflows: bool,
        may_overflow: MayOverflow = always,
        refuses_standby: bool = False,
        delivered: Position | None = None,
        restored_lsn: Lsn | None = None,
    ) -> None:
        """`timeline`: of the sink's end, or an earlier one that led to it: the catalog base may be from before a fork.

        `delivered`: the position of an earlier run; the sink's end may be before it.

        `lease`: by which the application thread may read; None: it never does.

        `attempts_max`: failed connections in a row that end the thread; 0: none does.
        `reconnect_share`: a full sink is reconnected once this share of it is free. `overflows`: a full sink ends the
        thread, if `may_overflow` permits it then.
        `refuses_standby`: a connection that leads to a standby is closed.

        An overflow never ends it before the thread has reached `restored_lsn` (None: the node's LSN at the first
        connection): that WAL is not at risk, it is in `pg_wal`, and comes as fast as it is received (I18).
        """
        super().__init__("network", arrived)
        self._dsn = dsn
        self._sink = sink
        self._system_identifier = system_identifier
        self._timeline = timeline
        self._delivered = Reached.by_delivering(delivered)
        self._progress = progress
        self._metrics = metrics
        self._log = log
        self._backoff = backoff
        self._attempts_max = attempts_max
        self._reconnect_share = reconnect_share
        self._overflows = overflows
        self._may_overflow = may_overflow
        self._refuses_standby = refuses_standby
        self._restored_lsn = restored_lsn
        self.is_located = False  # the sink's end was found in the node's history, by any connection so far
        self._clock = SystemClock()
        self._lease = lease
        self._leased: WalStream | None = None  # the stream that is offered
        self._leased_error: TidemarkError | None = None  # raised in the application thread, for this thread to handle

    def stop(self) -> None:
        """End the thread, and a read of the application thread."""
        self._stopping.set()
        if self._lease is not None:
            self._lease.recall(0.0)
        super().stop()

    def read_leased(self, timeout_s: float, collect: Callable[[], None]) -> bool:
        """Read what arrives within `timeout_s`, in the application thread; false if this thread has to continue."""
        stream = self._leased
        assert stream is not None, "the lease is entered while the stream is offered"
        read_bytes = 0
        try:
            if stream.wait(timeout_s):
                collect()
            event = stream.receive()
            while event is not None:
                read_bytes += self._accept_event(event)
                if read_bytes > LEASED_BYTES_MAX or self._sink.free_bytes < SLICE_BYTES_MAX:
                    return False
                event = stream.receive(is_read=read_bytes < READ_AGAIN_BYTES)
        except TidemarkError as error:
            self._leased_error = error
            return False
        return not stream.is_over

    def _is_quiet(self, stream: WalStream) -> bool:
        """Return whether the decode thread will soon have decoded everything: until then no thread would read."""
        return not stream.is_over and self._sink.capacity - self._sink.free_bytes <= OFFER_BYTES_MAX

    def _offer(self, lease: StreamLease, stream: WalStream) -> None:
        """Offer the stream while the application thread keeps reading; raise the error of a read there."""
        self._leased, self._leased_error = stream, None
        lease.offer(stream.wake)
        read_lsn, check_s = self._sink.write_lsn, CHECK_S
        while lease.is_used_within(check_s) and not self._stopping.is_set():
            check_s = CHECK_QUIET_S if self._sink.write_lsn == read_lsn else CHECK_S
            read_lsn = self._sink.write_lsn
        if not lease.recall(RECALL_S):
            raise InternalError("the application thread did not end its read of the node's stream in time")
        self._leased = None
        if self._leased_error is not None:
            raise self._leased_error

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._connect_and_stream()

    def _connect_and_stream(self) -> None:
        self._link = Link.CONNECTING
        self._stopping.wait(self._backoff.wait_s(self._clock.monotonic_s()))
        if self._stopping.is_set():
            return
        try:
            with WalStream(self._dsn) as stream:
                self._locate(stream)
                self.is_located = True
                self._stream(stream)
        except TidemarkError as error:
            if error.disposition is not Disposition.RETRY:
                raise
            delay_s = self._backoff.failed(self._clock.monotonic_s())
            self._metrics.errors.inc()
            if 0 < self._attempts_max <= self._backoff.failures:
                error.add_note(f"after {self._backoff.failures} attempts in a row (retry.attempts_max)")
                raise
            self._log.warning(
                "lost the connection to the node" if self.is_located else "no connection to the node so far",
                retry_s=delay_s,
                ring_end_lsn=self._sink.write_lsn,
                **describe_error(error),
            )
        finally:
            self._metrics.connected.set(0)
        if self._link is Link.PAUSED:
            self._wait_for_space()

    def _locate(self, stream: WalStream) -> None:
        """Check that the node is ours, and find the timeline of the ring's end in its history."""
        identity = stream.identify(self._system_identifier)
        # NB: periodic checks of the node come too late: a new primary's changes could be delivered twice.
        if self._refuses_standby and stream.is_standby():
            raise NodeIsStandby(f"{stream.where} is a standby")
        if self._restored_lsn is None:
            self._restored_lsn = identity.flush_lsn
        if {self._timeline, self._delivered.timeline or self._timeline} == {identity.timeline}:
            return
        history = stream.timeline_history(identity.timeline)
        check_delivered(history, self._delivered)
        reached = max(self._delivered, Reached(self._timeline, self._sink.write_lsn))
        if reached.timeline in history:  # else `start` reports it
            _check_fork(history, reached, is_delivered=False)
            self._timeline = history.timeline_at(self._sink.write_lsn)

    def _stream(self, stream: WalStream) -> None:
        ended = stream.start(self._sink.write_lsn, self._timeline)
        self._link = Link.STREAMING
        self._metrics.connected.set(1)
        self._metrics.reconnects.inc()
        self._log.info("streaming", start_lsn=self._sink.write_lsn, timeline=self._timeline, node=stream.where)
        is_heard = False
        while ended is None and not self._stopping.is_set():
            if self._sink.free_bytes < SLICE_BYTES_MAX:
                self._link = Link.PAUSED
                self._metrics.ring_full.inc()
                return
            event: StreamEvent | None = stream.receive()
            if event is None:
                if self._lease is not None and self._lease.may_offer and is_heard and self._is_quiet(stream):
                    self._offer(self._lease, stream)
                    continue
                event = stream.read(READ_S)
            if isinstance(event, TimelineEnd):
                ended = event
            elif event is not None:
                self._backoff.succeeded()
                is_heard = True
                if self._accept_event(event):
                    self._arrived.set()
        if ended is not None:
            self._follow(ended)

    def _accept_event(self, event: WalSlice | Keepalive) -> int:
        """Handle WAL, or the report of the node's position; return how many bytes of WAL."""
        if isinstance(event, Keepalive):
            self._progress.hear(event.server_end_lsn)
            return 0
        length = len(event.data)
        end_lsn = Lsn(event.start_lsn + length)
        self._progress.receive(end_lsn)  # NB: before the decode thread, which is quick, can read it
        self._sink.put(event)
        self._progress.flush_lsn = max(self._progress.flush_lsn, end_lsn)
        self._metrics.wal_bytes.inc(length)
        return length

    def _follow(self, ended: TimelineEnd) -> None:
        received = Reached(self._timeline, self._sink.write_lsn)
        if ended.next_start_lsn < received.lsn:
            raise _left(ended.next_timeline, ended.next_start_lsn, received)
        self._log.warning(
            "timeline ended", timeline=self._timeline, next_timeline=ended.next_timeline, at_lsn=ended.next_start_lsn
        )
        self._timeline = ended.next_timeline

    def _wait_for_space(self) -> None:
        is_restored = self._restored_lsn is not None and self._sink.write_lsn >= self._restored_lsn
        overflows = self._overflows and is_restored and self._may_overflow()
        self._log.warning(
            "ring is full, capture stops" if overflows else "ring is full, capture pauses",
            ring_end_lsn=self._sink.write_lsn,
            ring_bytes=self._sink.capacity,
        )
        if overflows:
            raise RingOverflowed(
                f"the ring of {self._sink.capacity} bytes is full at {format_lsn(self._sink.write_lsn)}"
            )
        wanted_bytes = max(SLICE_BYTES_MAX, int(self._sink.capacity * self._reconnect_share))
        while self._sink.free_bytes < wanted_bytes and not self._stopping.is_set():
            self._stopping.wait(READ_S)


def check_delivered(history: TimelineHistory, delivered: Reached) -> None:
    """Raise if the delivered position is not on the node's way to its timeline."""
    timeline = history.timeline
    if delivered.timeline and delivered.timeline not in history:
        raise DeadBranchDelivered(
            f"the node is on timeline {timeline}, which does not continue timeline {delivered.timeline} after "
            f"{format_lsn(delivered.lsn)}, the delivered position",
            hint="capture.dsn names a node that was replaced: set it to the current primary",
        )
    _check_fork(history, delivered, is_delivered=True)


def _check_fork(history: TimelineHistory, reached: Reached, *, is_delivered: bool) -> None:
    fork_lsn = history.fork_before(reached.timeline, reached.lsn)
    if fork_lsn is not None:
        error = _left(history.timeline, fork_lsn, reached)
        if is_delivered:
            error.fork_lsn = None
        raise error


def _left(next_timeline: TimelineId, fork_lsn: Lsn, reached: Reached) -> DeadBranchDelivered:
    error = DeadBranchDelivered(
        f"timeline {next_timeline} begins at {format_lsn(fork_lsn)}, but timeline {reached.timeline} was "
        f"received up to {format_lsn(reached.lsn)}"
    )
    error.fork_lsn = fork_lsn
    return error
