"""What the sidecar does in each stage of the mode table: deliver, rest, buffer on its way back, take over.

    REALTIME          a capture from the node; an error that the archive can help with moves to ARCHIVE
    ARCHIVE           rests; when it may return: buffers the stream, then asks for the return
    HELD              rests until the operator says otherwise
    RETURNING         buffers, sees to it that the try-start marker is written
    RETURNED          takes the epoch: archive up to the buffer, then the buffer
    FOLLOWER          is not supported yet

One thread, a step at a time. Nothing here waits for the node: it is asked by errands.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from tidemark.engine.handover import Effect, Event, Refused
from tidemark.engine.marking import Confirmed, ConfirmPacing
from tidemark.engine.retry import Backoff
from tidemark.io.clock import SystemClock
from tidemark.io.control import Handler
from tidemark.io.heartbeat import Slot
from tidemark.io.logs import describe_error
from tidemark.io.replication import NodeIdentity
from tidemark.io.state_views import StateMarks
from tidemark.io.switching import Switched, switch
from tidemark.model.errors import Fenced, NodeUnfit
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch
from tidemark.runtime.archive_report import ArchiveReport
from tidemark.runtime.capture import Capture, DecodingStuck
from tidemark.runtime.daemon import START_S_MAX, STOP_S_MAX
from tidemark.runtime.effects import Perform, perform
from tidemark.runtime.inflow import LiveBuffer, MakeInflow, from_node
from tidemark.runtime.service import Means
from tidemark.runtime.source_thread import Link
from tidemark.runtime.stops import event_of
from tidemark.wire.control import Json
from tidemark.wire.marker import MarkerKind
from tidemark.wire.state import HandOver, Owner

LOOK_S = 1.0  # how often the node is asked where it is while a return is wanted
STEADY_SHARE = 10  # realtime that lasts so many first delays has succeeded: the next return does not wait longer


class StandbyNotSupported(NodeUnfit):
    """The state says that its node is a standby."""

    hint = "run the sidecar at the primary"


class Realtime:
    """The sidecar's part of the mode table."""

    def __init__(self, means: Means) -> None:
        around = means.around
        config, identity = around.config, around.store.identity
        self._around = around
        self._store = around.store
        self._owner = means.owner
        self._errands = means.errands
        self._markers = means.markers
        self._clock = SystemClock()
        self._capture: Capture | None = None
        self._buffer: LiveBuffer | None = None
        self._epoch: Epoch | None = None
        self._asked_node: Future[NodeIdentity] | None = None
        self._marker: Future[Lsn] | None = None  # the try-start marker that was asked for
        self._not_before_s = 0.0
        self._since_s = 0.0  # when realtime began
        self._wants_soon = False
        self._backoff = Backoff(config.realtime.return_first_s, config.realtime.return_max_s)
        self._report = ArchiveReport(around)
        bytes_min = config.markers.min_bytes or identity.segment_bytes
        self._pacing = ConfirmPacing(config.markers.confirm_s, bytes_min)
        self._lag_bytes_max = config.return_lag_bytes_max(identity.segment_bytes)

    def start(self) -> None:
        """Begin; what an earlier process had under way is gone with its buffer."""
        stage = self._store.marks().stage
        if stage in (Stage.RETURNING, Stage.RETURNED):
            self._move(Event.SIDECAR_LOST, reason="the sidecar was started anew on its way back")
        elif stage is Stage.REALTIME:
            self._deliver()

    def step(self) -> None:
        """Do what the stage asks for."""
        marks = self._store.marks()
        self._around.metrics.mode.set(marks.stage.number)
        if marks.stage is not Stage.REALTIME:
            self._let_go()
        if marks.stage not in (Stage.ARCHIVE, Stage.RETURNING, Stage.RETURNED):
            self._drop_buffer()
        match marks.stage:
            case Stage.REALTIME:
                self._deliver()
            case Stage.ARCHIVE:
                self._return_if_due(marks)
            case Stage.RETURNING:
                self._see_to_marker(marks)
            case Stage.RETURNED:
                self._take_over()
            case Stage.FOLLOWER:
                raise StandbyNotSupported(f"the stage of {self._store.folder.root} is follower")
        self._confirm(marks)
        received_lsn = self._capture.progress.received_lsn if self._capture is not None else None
        self._report.step(self._clock.monotonic_s(), received_lsn)

    def stop(self) -> None:
        """Stop delivering; whoever waits for us finds the lock free."""
        try:
            self._drop_buffer()
            if self._capture is not None:
                self._capture.stop()
        finally:
            self._errands.close()

    def commands(self) -> Mapping[str, Handler]:
        """Return the operator's switches."""
        return {"realtime-on": partial(self._operator, Event.OPERATOR_ON), "realtime-off": self._off}

    def status(self) -> Mapping[str, Json]:
        """Return how the capture does, where there is one."""
        capture = self._capture
        if capture is None:
            return {"link": None}
        status = capture.status()
        progress = status.progress
        return {
            "link": status.link.value,
            "copying": status.copying,
            "ring_used_bytes": status.ring_used_bytes,
            "ring_high_water_bytes": status.ring_high_water_bytes,
            "ring_bytes": status.ring_bytes,
            "queue_bytes": status.queue_bytes,
            "open_transactions": status.open_transactions,
            "received_lsn": format_lsn(progress.received_lsn),
            "decoded_lsn": format_lsn(progress.decoded_lsn),
            "lag_bytes": progress.lag_bytes,
            "delivered": str(progress.delivered.position) if progress.delivered else None,
            "confirmed": str(progress.confirmed.position) if progress.confirmed else None,
        }

    # --- REALTIME

    def _deliver(self) -> None:
        if self._capture is None:
            self._epoch = self._store.take_epoch(self._owner)
            self._begin(self._epoch, partial(from_node, self._around))
        assert self._capture is not None, "it was begun"
        error = self._capture.poll()
        if error is not None:
            self._fail_over(error)
        elif self._clock.monotonic_s() - self._since_s > STEADY_SHARE * self._around.config.realtime.return_first_s:
            self._backoff.succeeded()

    def _begin(self, epoch: Epoch, make_inflow: MakeInflow) -> None:
        self._around.log.info("epoch taken", epoch=str(epoch))
        self._store.environment.heartbeat.beat(Slot.SIDECAR, ahead_s=START_S_MAX)
        self._since_s = self._clock.monotonic_s()
        self._capture = Capture(self._around, epoch, make_inflow, on_marker=self._markers.pass_over)
        self._capture.start()

    def _fail_over(self, error: BaseException) -> None:
        """Give delivering up to the archiver, where there is one and it can do better; else raise `error`."""
        if isinstance(error, Fenced) and self._store.marks().stage is not Stage.REALTIME:
            self._around.log.warning("somebody else delivers now", **describe_error(error))
            self._let_go()
            return
        event = event_of(error) if self._around.config.has_archive else None
        if event is None:
            raise error
        self._backoff.failed(self._clock.monotonic_s())
        self._move(event, epoch=self._epoch, reason=str(error))

    def _let_go(self) -> None:
        """Stop the capture, if there is one; what it has in hand and cannot end comes again."""
        capture, self._capture = self._capture, None
        if capture is None:
            return
        self._store.environment.heartbeat.beat(Slot.SIDECAR, ahead_s=STOP_S_MAX)
        try:
            capture.stop()
        except DecodingStuck:
            raise
        except Exception as error:  # noqa: BLE001 - it is over, and the mode says who goes on
            self._around.log.warning("the capture did not stop in order", **describe_error(error))

    # --- the way back

    def _return_if_due(self, marks: StateMarks) -> None:
        now_s = self._clock.monotonic_s()
        if self._buffer is not None:
            self._ask_for_return()
        elif self._asked_node is not None:
            if self._asked_node.done():
                self._consider_return(marks, self._asked_node)
                self._asked_node = None
        elif now_s >= self._not_before_s and self._may_return(now_s):
            self._not_before_s = now_s + LOOK_S
            self._asked_node = self._errands.find_node()

    def _may_return(self, now_s: float) -> bool:
        """Tell if it is time, and there is an archiver that would meet the marker."""
        age_s = self._store.environment.heartbeat.age_s(Slot.ARCHIVER)
        if age_s is None or age_s > self._around.config.watchdog.watchdog_s:
            return False
        if self._wants_soon:
            return True
        return self._around.config.realtime.automatic_return and self._backoff.wait_s(now_s) <= 0

    def _consider_return(self, marks: StateMarks, asked: Future[NodeIdentity]) -> None:
        """Begin to buffer, if the node answers and the archiver is near."""
        error = asked.exception()
        if error is not None:
            self._around.log.warning("cannot return yet", **describe_error(error))
            self._backoff.failed(self._clock.monotonic_s())
            return
        here = asked.result()
        behind = here.flush_lsn - (marks.delivered.pointer.position.commit_lsn if marks.delivered else 0)
        if behind <= self._lag_bytes_max:
            self._buffer = LiveBuffer(self._around, here)
            self._buffer.start()

    def _ask_for_return(self) -> None:
        """Ask, once the stream is being buffered: the marker has to stand in what the buffer holds."""
        assert self._buffer is not None, "it was begun"
        if self._buffer.input.error is not None:
            self._give_up_return(self._buffer.input.error)
        elif self._buffer.input.link is Link.STREAMING:
            attempt = self._store.view().hand_over.attempt + 1
            self._wants_soon = False
            self._move(Event.RETURN_WANTED, hand_over=HandOver(attempt))

    def _see_to_marker(self, marks: StateMarks) -> None:
        if self._buffer is None:
            self._move(Event.SIDECAR_LOST, reason="what was buffered is gone")
        elif self._buffer.input.error is not None:
            self._give_up_return(self._buffer.input.error)
        elif self._marker is not None and self._marker.done() and self._marker.exception() is not None:
            now_s = self._clock.monotonic_s()
            if now_s >= self._not_before_s:
                self._not_before_s = now_s + LOOK_S
                self._around.log.warning("the try-start marker was not written", error=str(self._marker.exception()))
                self._write_try_start(marks)

    def _take_over(self) -> None:
        """Take the epoch, and go on from the archive up to the buffer, then from the buffer."""
        buffer, reached = self._buffer, self._store.view().hand_over
        if buffer is None or buffer.start_lsn > reached.lsn:
            self._move(Event.SIDECAR_LOST, reason="what was buffered is gone, or begins behind the marker")
            return
        if buffer.input.error is not None:
            self._give_up_return(buffer.input.error)
            return
        switched = self._move(Event.TAKEN_OVER, taking=self._owner)
        if switched is None or switched.epoch is None:
            return
        self._buffer, self._marker, self._epoch = None, None, switched.epoch
        try:
            self._begin(switched.epoch, buffer.inflow)
        except Exception as error:  # noqa: BLE001 - `_fail_over` raises what it does not know
            buffer.stop()
            self._fail_over(error)

    def _give_up_return(self, error: BaseException) -> None:
        """Let the archiver go on; the buffer overflowed, or the node has removed what it needs."""
        self._backoff.failed(self._clock.monotonic_s())
        self._drop_buffer()
        event = event_of(error)
        if event is None:
            raise error
        self._around.log.warning("the return is given up", **describe_error(error))
        if self._store.marks().stage is not Stage.ARCHIVE:
            self._move(event, reason=str(error))

    def _drop_buffer(self) -> None:
        buffer, self._buffer, self._marker = self._buffer, None, None
        if buffer is not None:
            buffer.stop()

    # --- the operator

    def _operator(self, event: Event, _request: dict[str, Json]) -> Mapping[str, Json]:
        switched = switch(self._store, event, log=self._around.log, now_us=self._clock.wall_us(), only_from=None)
        self._after(switched, event, switched.before.value)
        return {"before": switched.before.value, "stage": switched.after.value}

    def _off(self, request: dict[str, Json]) -> Mapping[str, Json]:
        return self._operator(Event.OPERATOR_OFF, request)

    # --- moves

    def _move(
        self,
        event: Event,
        *,
        epoch: Epoch | None = None,
        taking: Owner | None = None,
        hand_over: HandOver | None = None,
        reason: str = "",
    ) -> Switched | None:
        """Move, and do what is to be done behind it; None where the stage has changed meanwhile."""
        try:
            switched = switch(
                self._store,
                event,
                log=self._around.log,
                now_us=self._clock.wall_us(),
                epoch=epoch,
                taking=taking,
                hand_over=hand_over,
                reason=reason,
            )
        except (Refused, Fenced) as error:
            self._around.log.warning("the stage has changed meanwhile", **describe_error(error))
            return None
        self._after(switched, event, reason)
        return switched

    def _after(self, switched: Switched, event: Event, reason: str) -> None:
        if switched.before is not switched.after:
            self._around.metrics.switches.inc(event.name)
        perform(switched.effects, self._effects(reason or event.value))

    def _effects(self, reason: str) -> Perform:
        return {
            Effect.STOP_CAPTURE: self._let_go,
            Effect.WRITE_STOP_MARKER: partial(self._write_stop, reason),
            Effect.WRITE_TRY_START_MARKER: lambda: self._write_try_start(self._store.marks()),
            Effect.SWITCH_SEGMENT: self._errands.switch_segment,
            Effect.RETURN_SOON: self._return_soon,
        }

    def _return_soon(self) -> None:
        self._wants_soon = True
        self._not_before_s = 0.0

    def _write_stop(self, reason: str) -> None:
        marks = self._store.marks()
        assert marks.term is not None, "somebody has delivered"
        pointer = marks.horizon.pointer if marks.horizon else None
        self._errands.write(MarkerKind.STOP, marks.term.epoch, pointer, reason=reason)

    def _write_try_start(self, marks: StateMarks) -> None:
        assert marks.term is not None, "somebody has delivered"
        pointer = marks.horizon.pointer if marks.horizon else None
        attempt = self._store.view().hand_over.attempt
        self._marker = self._errands.write(MarkerKind.TRY_START, marks.term.epoch, pointer, sequence=attempt)

    def _confirm(self, marks: StateMarks) -> None:
        """Write down in the WAL how far everything is confirmed, if that is worth a marker."""
        horizon, term = marks.horizon, marks.term
        if horizon is None or term is None:
            return
        lsn = horizon.pointer.position.commit_lsn
        confirmed = Confirmed(horizon.sequence, horizon.commit_time_us, lsn)
        if self._pacing.is_due(confirmed, self._clock.monotonic_s()):
            self._errands.write(MarkerKind.CONFIRM, term.epoch, horizon.pointer, sequence=horizon.sequence)
