"""The sidecar's work in each stage of the stage table: deliver, rest, buffer for the return, take over.

    REALTIME          a capture from the node; an error that the archive can help with moves to ARCHIVE
    ARCHIVE           rests; when it may return: buffers the stream, then requests the return (`realtime_return`)
    HELD              rests until an operator ends the hold
    RETURNING         buffers, ensures that the try-start marker is written (`realtime_return`); if the archive does not
                      advance, also in ARCHIVE: continues from the node without it (`stalled`)
    RETURNED          takes the epoch: archive up to the buffer, then the buffer
    FOLLOWER          follows a standby until it is promoted (`following`)

One thread runs one step at a time. It never waits for the node: requests to the node run in another thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

from tidemark.engine.handover import Effect, Event
from tidemark.engine.marking import Confirmed, ConfirmPacing
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import describe_error
from tidemark.io.process.config import ArchiveConfig, Config, MarkersConfig, RealtimeConfig
from tidemark.io.process.control import CommandHandler
from tidemark.io.state.locking.heartbeat import START_S_MAX, Slot
from tidemark.io.state.state_views import StateMarks
from tidemark.io.state.switching import Switched
from tidemark.model.errors import Fenced
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.mode import Role, Stage
from tidemark.model.position import Epoch
from tidemark.runtime.capture.capture import Capture
from tidemark.runtime.capture.capture_settings import CaptureSettings, CaptureStatus
from tidemark.runtime.capture.source_thread import Link
from tidemark.runtime.capture.wal_source import LiveBuffer, MakeWalSource, WalSettings, from_node
from tidemark.runtime.daemon.archive_report import ArchiveReport
from tidemark.runtime.daemon.archiving_watch import ArchivingWatch
from tidemark.runtime.daemon.epoch_run import EpochRun
from tidemark.runtime.daemon.service import DaemonContext
from tidemark.runtime.daemon.stage_transition import Perform, StageTransition, write_stop_marker
from tidemark.runtime.daemon.stops import NodeOutOfReach, event_of
from tidemark.runtime.first_copy.recopy_restart import RecopyRestart
from tidemark.runtime.first_copy.recopying import cancel_recopies, request_recopies
from tidemark.runtime.plugins.plugins import Plugins
from tidemark.runtime.pool.worker_template import WorkerTemplate
from tidemark.runtime.recovery.lake_inventory import ANSWER_S
from tidemark.runtime.recovery.promotion import PromotionSettings, find_start, is_waited_for
from tidemark.wire.control import Json
from tidemark.wire.marker import MarkerKind
from tidemark.wire.recopies import decode_cancellation, decode_request, encode_generations
from tidemark_sidecar.following import Following
from tidemark_sidecar.link_watch import LinkWatch
from tidemark_sidecar.realtime_return import RealtimeReturn
from tidemark_sidecar.stalled import StalledArchive

NOTHING_CONFIRMED = Confirmed(0, 0, 0)
STEADY_SHARE = 10  # realtime that lasts this many first delays has succeeded: the next return does not wait longer


@dataclass(frozen=True, slots=True)
class RealtimeSettings:
    """The settings that the sidecar reads."""

    realtime: RealtimeConfig
    markers: MarkersConfig
    archive: ArchiveConfig
    follows: bool
    watchdog_s: float
    return_lag_bytes_max: int
    capture: CaptureSettings
    wal: WalSettings
    promotion: PromotionSettings

    @classmethod
    def of(
        cls,
        config: Config,
        segment_bytes: int,
        plugins: Plugins | None = None,
        template: WorkerTemplate | None = None,
    ) -> Self:
        """Return the settings of a configuration, for a node with such segments."""
        return cls(
            config.realtime,
            config.markers,
            config.archive,
            config.standby.follow,
            config.watchdog.watchdog_s,
            config.return_lag_bytes_max(segment_bytes),
            CaptureSettings.of(config, plugins, template),
            WalSettings.of(config, segment_bytes),
            PromotionSettings.of(config),
        )


class Realtime:
    """The sidecar's behaviour in each stage of the stage table."""

    def __init__(self, daemon: DaemonContext, settings: RealtimeSettings) -> None:
        context, identity = daemon.context, daemon.context.store.identity
        self._settings = settings
        self._context = context
        self._store = context.store
        self._owner = daemon.owner
        self._node_requests = daemon.node_requests
        self._markers = daemon.markers
        self._fence = daemon.fence
        self._clock = SystemClock()
        self._run = EpochRun(context, settings.capture, Slot.SIDECAR)
        self._since_s = 0.0  # when realtime began
        self._transition = StageTransition(context.store, self._effects, context.metrics, context.log)
        self._stalled = StalledArchive(
            daemon, archive_wait_s=settings.realtime.archive_wait_s, watchdog_s=settings.watchdog_s
        )
        self._return = RealtimeReturn(
            daemon,
            self._transition,
            self._stalled,
            realtime=settings.realtime,
            wal=settings.wal,
            lag_bytes_max=settings.return_lag_bytes_max,
        )
        self._following = Following(
            daemon, self._transition, is_enabled=settings.follows, capture=settings.capture, wal=settings.wal
        )
        watch = ArchivingWatch(context, settings.archive, daemon.node_requests)
        self._report = ArchiveReport(context, settings.archive.folder, watch)
        self._link_watch = LinkWatch(settings.realtime.away_s)
        self._recopies = RecopyRestart(context, daemon.node_requests)
        bytes_min = settings.markers.min_bytes or identity.segment_bytes
        self._pacing = ConfirmPacing(settings.markers.confirm_s, bytes_min)
        self._last_commit = 0  # of the state, at the last step
        self._is_quiet = False

    def start(self) -> None:
        """Start; the unfinished return of an earlier process is lost with its buffer."""
        marks = self._store.marks()
        if marks.horizon is not None:
            self._confirm(marks)  # sets the base before anything is delivered
        else:
            self._pacing.is_due(NOTHING_CONFIRMED, self._clock.monotonic_s())
        stage = marks.stage
        if stage in (Stage.RETURNING, Stage.RETURNED):
            self._transition.try_move(
                Event.SIDECAR_LOST, reason="the sidecar was restarted while it returned to realtime"
            )
        elif stage is Stage.REALTIME:
            self._find_start(marks)
            self._deliver()

    def step(self) -> None:
        """Do the work of the present stage."""
        self._run.check()
        self._following.poll_node()
        marks = self._store.marks()
        self._context.metrics.mode.set(marks.stage.number)
        self._fence.step(marks, self._run.progress)
        if marks.stage is not Stage.REALTIME:
            self._run.release()
        if marks.stage is not Stage.FOLLOWER:
            self._following.release()
            self._find_start(marks)
        match marks.stage:
            case Stage.REALTIME:
                self._deliver()
            case Stage.ARCHIVE | Stage.RETURNING | Stage.RETURNED:
                buffer = self._return.step(marks)
                waits = self._return.waits_for_archive(marks) and self._following.may_deliver
                if buffer is not None:
                    self._take_over(buffer)
                elif self._stalled.is_over(marks, waits=waits):
                    self._continue_without_archive(marks)
            case Stage.HELD:
                self._return.drop()
            case Stage.FOLLOWER:
                self._return.drop()
                self._following.follow(marks)
        self._confirm(marks)
        self._check_archive(marks)
        last_commit = self._store.environment.last_commit
        status = self._status_without_copy(marks)
        is_steady = status is not None and status.link is Link.STREAMING
        self._is_quiet = is_steady and last_commit == self._last_commit
        self._last_commit = last_commit

    @property
    def is_quiet(self) -> bool:
        """Return whether delivery from the node runs, and the state did not change between the last two steps."""
        return self._is_quiet

    def pause(self) -> None:
        """Release the capture; the buffer of a return uses no disk."""
        self._run.release()
        self._following.release()

    def stop(self) -> None:
        """Stop delivery; release the lock for waiting processes."""
        try:
            self._return.drop()
            self._run.stop()
            self._following.stop()
        finally:
            self._node_requests.close()

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the operator's switches and requests."""
        return {
            "realtime-on": partial(self._operator, Event.OPERATOR_ON),
            "realtime-off": partial(self._operator, Event.OPERATOR_OFF),
            "recopy": self._request_recopies,
            "recopy-cancel": self._cancel_recopies,
        }

    def status(self) -> Mapping[str, Json]:
        """Return the status of the capture, if there is one."""
        following = self._following.capture
        capture = following or self._run.capture
        if capture is None:
            return {"link": None}
        status = capture.status()
        progress = status.progress
        return {
            **(self._following.status(self._store.marks()) if following is not None else {}),
            "link": status.link.value,
            "copying": status.copying,
            **({"waits_for_room": progress.waits_for_room} if progress.waits_for_room else {}),
            "recopy_waits_for": self._recopies.waits_for or None,
            "ring_used_bytes": status.ring_used_bytes,
            "ring_high_water_bytes": status.ring_high_water_bytes,
            "ring_bytes": status.ring_bytes,
            "queue_bytes": status.queue_bytes,
            "open_transactions": status.open_transactions,
            "received_lsn": format_lsn(progress.received_lsn),
            "decoded_lsn": format_lsn(progress.decoded_lsn),
            "lag_bytes": progress.lag_bytes,
            "delivered": str(progress.delivered.position) if progress.delivered and following is None else None,
            "confirmed": str(progress.confirmed.position) if progress.confirmed else None,
        }

    # --- REALTIME

    def _check_archive(self, marks: StateMarks) -> None:
        capture, now_s = self._run.capture, self._clock.monotonic_s()
        received_lsn = capture.progress.received_lsn if capture is not None else None
        found = self._report.step(now_s, received_lsn)
        if found is not None:
            self._stalled.record_archive_end(found.end_lsn)
        status = self._status_without_copy(marks)
        if status is not None:  # a first copy needs the node in any case
            link, received_lsn = status.link, status.progress.received_lsn
        elif self._waits_for_node(marks) and marks.delivered is not None:
            link, received_lsn = Link.CONNECTING, marks.delivered.pointer.position.commit_lsn
        else:
            self._link_watch.forget()
            return
        try:
            archived_lsn = found.end_lsn if found is not None else None
            self._link_watch.check(link, received_lsn, archived_lsn, now_s)
        except NodeOutOfReach as error:
            self._fail_over(error)

    def _status_without_copy(self, marks: StateMarks) -> CaptureStatus | None:
        """Return the status of the capture that delivers from the node; None without one, or during a first copy."""
        if marks.stage is not Stage.REALTIME or self._run.capture is None:
            return None
        status = self._run.capture.status()
        return None if status.copying else status

    def _waits_for_node(self, marks: StateMarks) -> bool:
        """Return whether capture has not begun because the node has not reported that it is a primary."""
        return marks.stage is Stage.REALTIME and self._run.capture is None and not self._following.may_deliver

    def _deliver(self) -> None:
        if self._run.capture is None and not (self._following.may_deliver and self._began()):
            return
        assert self._run.capture is not None, "it was begun"
        error = self._run.capture.poll()
        if error is not None:
            self._fail_over(error)
        elif self._run.copies_now() or self._restarted_to_recopy(self._run.capture):
            return
        elif self._clock.monotonic_s() - self._since_s > STEADY_SHARE * self._settings.realtime.return_first_s:
            self._return.succeeded()

    def _restarted_to_recopy(self, capture: Capture) -> bool:
        """Release the capture if requested tables are to be copied again: the next step starts another capture."""
        assert self._run.epoch is not None, "a capture has an epoch"
        if not self._recopies.is_due(capture.progress, self._run.epoch, copying=capture.status().copying):
            return False
        self._context.log.info("restarting capture to copy the tables that were requested")
        self._run.release()
        return True

    def _find_start(self, marks: StateMarks) -> None:
        """Find the start of a promoted follower, unless that is done; takes as long as the lake needs to answer."""
        if is_waited_for(marks):
            self._context.store.environment.heartbeat.beat(Slot.SIDECAR, ahead_s=START_S_MAX + ANSWER_S)
            find_start(self._context, self._settings.promotion, self._owner)

    def _began(self) -> bool:
        """Start delivery from the node; return false if another process delivers by now."""
        try:
            epoch = self._store.begin_epoch(self._owner, self._context.log)
            self._recopies.queue(epoch)
        except Fenced as error:
            self._context.log.warning("another process delivers now", **describe_error(error))
            return False
        self._begin(epoch, partial(from_node, self._context, self._settings.wal))
        return True

    def _begin(self, epoch: Epoch, make_wal_source: MakeWalSource) -> None:
        self._since_s = self._clock.monotonic_s()
        self._run.begin(epoch, make_wal_source, self._on_marker)

    def _fail_over(self, error: BaseException) -> None:
        """Hand delivery over to the archiver if there is one and the error permits it; else raise `error`.

        If a capture is released here and the stage does not change, the next step starts another capture.
        """
        if self._run.restarts_after_fork(error):
            return
        if isinstance(error, Fenced) and not self._store.marks().is_fenced_by_own(Role.SIDECAR):
            self._context.log.warning("another process delivers now", **describe_error(error))
            self._run.release()
            return
        event = event_of(error) if self._settings.archive.folder else None
        if event is None:
            raise error
        self._return.failed()
        moved = self._transition.try_move(event, epoch=self._run.epoch, reason=str(error))
        if moved is None and self._store.marks().stage is Stage.REALTIME:
            raise error

    def _take_over(self, buffer: LiveBuffer) -> None:
        """Take the epoch; continue from the archive up to the buffer, then from the buffer."""
        switched = self._transition.try_move(Event.TAKEN_OVER, new_owner=self._owner)
        if switched is None or switched.epoch is None:
            buffer.stop()
            return
        try:
            self._begin(switched.epoch, buffer.wal_source)
        except Exception as error:  # noqa: BLE001 - `_fail_over` raises what it does not know
            buffer.stop()
            self._fail_over(error)

    def _continue_without_archive(self, marks: StateMarks) -> None:
        """Take the epoch, which fences the archiver, and continue from the node's WAL: the archive does not advance."""
        switched = self._transition.try_move(Event.ARCHIVE_STALLED, new_owner=self._owner, only_from=marks.stage)
        if switched is None or switched.epoch is None:
            return
        self._return.cancel()
        self._stalled.record_continued()
        try:
            overflow = self._stalled.archive_has_grown
            self._begin(switched.epoch, partial(from_node, self._context, self._settings.wal, may_overflow=overflow))
        except Exception as error:  # noqa: BLE001 - `_fail_over` raises what it does not know
            self._fail_over(error)

    # --- the operator

    def _operator(self, event: Event, _request: dict[str, Json]) -> Mapping[str, Json]:
        switched = self._transition.move(event)
        return {"before": switched.before.value, "stage": switched.after.value}

    def _request_recopies(self, request: dict[str, Json]) -> Mapping[str, Json]:
        requested, after_lsn = decode_request(request)
        return encode_generations(request_recopies(self._store, requested, after_lsn, self._clock.wall_us()))

    def _cancel_recopies(self, request: dict[str, Json]) -> Mapping[str, Json]:
        left = cancel_recopies(self._store, decode_cancellation(request), is_copying=True)
        return {"left": [step.value for step in left.values()]}

    # --- markers

    def _on_marker(self, lsn: Lsn, content: bytes) -> bool:
        """Read a marker and continue, unless it fences this state; called by the decode thread."""
        marker, capture = self._markers.read(lsn, content), self._run.capture
        if marker is not None:
            self._fence.check(lsn, capture.timeline if capture is not None else None, marker)
        return False

    def _effects(self, switched: Switched) -> Perform:
        return {
            Effect.STOP_CAPTURE: self._run.release,
            Effect.WRITE_STOP_MARKER: partial(write_stop_marker, self._store, self._node_requests, switched),
            Effect.WRITE_TRY_START_MARKER: self._return.write_marker,
            Effect.SWITCH_SEGMENT: self._node_requests.switch_segment,
            Effect.RETURN_SOON: self._return.return_soon,
            Effect.FIND_START: lambda: self._find_start(self._store.marks()),
        }

    def _confirm(self, marks: StateMarks) -> None:
        """Write the confirmed pointer into the WAL if it has advanced enough for a marker."""
        horizon, term = marks.horizon, marks.term
        if horizon is None or marks.followed is not None:
            return
        record_bytes = self._run.capture.record_bytes if self._run.capture is not None else 0
        confirmed = Confirmed(horizon.sequence, horizon.commit_time_us, record_bytes)
        if self._pacing.is_due(confirmed, self._clock.monotonic_s()) and term is not None:
            self._node_requests.write(MarkerKind.CONFIRM, term.epoch, horizon.pointer, sequence=horizon.sequence)
