"""The archiver's work in each stage of the stage table: read markers and watch, or deliver.

    ARCHIVE, HELD     ACTIVE: a capture from the archive
    RETURNING         ACTIVE up to the try-start marker; then it hands over
    REALTIME          PASSIVE: reads markers, watches the sidecar
    RETURNED          PASSIVE: watches the sidecar
    FOLLOWER          PASSIVE: reads markers, trims the spool; the same until a promoted sidecar has found its start

One thread runs one step at a time. Delivery never depends on the node: the node may be down.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from tidemark.engine.handover import Event
from tidemark.engine.retry import Backoff
from tidemark.io.host.clock import boot_ns
from tidemark.io.host.logs import describe_error
from tidemark.io.process.config import ArchiveConfig, Config, RetryConfig, WatchdogConfig
from tidemark.io.process.control import CommandHandler
from tidemark.io.process.watchdog import Condition, Watch
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.state_views import StateMarks
from tidemark.io.state.switching import Switched
from tidemark.model.errors import ConfigError, Disposition, Fenced, TidemarkError
from tidemark.model.lsn import INVALID_LSN, Lsn, format_lsn
from tidemark.model.mode import Role, Stage
from tidemark.model.position import Pointer, Position
from tidemark.runtime.capture.capture_settings import CaptureSettings
from tidemark.runtime.capture.wal_source import WalSettings, from_archive
from tidemark.runtime.daemon.epoch_run import EpochRun
from tidemark.runtime.daemon.marker_scan import MarkerScan
from tidemark.runtime.daemon.service import DaemonContext
from tidemark.runtime.daemon.stage_transition import Perform, StageTransition
from tidemark.runtime.plugins.plugins import Plugins
from tidemark.runtime.pool.worker_template import WorkerTemplate
from tidemark.runtime.recovery.promotion import is_waited_for
from tidemark.wire.control import Json
from tidemark.wire.marker import MarkerKind
from tidemark.wire.state.values import HandOver
from tidemark_archiver.archive_maintenance import ArchiveMaintenance, ForcedSwitches

WATCHED = (Stage.REALTIME, Stage.RETURNING, Stage.RETURNED)  # stages in which the sidecar has work to do


class ArchiveNotConfigured(ConfigError):
    """The configuration names no archive."""

    hint = "set archive.folder; docs/operate.md describes how the node fills it"


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """The settings that the archiver reads."""

    archive: ArchiveConfig
    retry: RetryConfig
    watchdog: WatchdogConfig
    capture: CaptureSettings
    wal: WalSettings

    @classmethod
    def of(
        cls,
        config: Config,
        segment_bytes: int,
        plugins: Plugins | None = None,
        template: WorkerTemplate | None = None,
    ) -> Self:
        """Return the settings of a configuration, for a node with such segments."""
        capture, wal = CaptureSettings.of(config, plugins, template), WalSettings.of(config, segment_bytes)
        return cls(config.archive, config.retry, config.watchdog, capture, wal)


class Archive:
    """The archiver's behaviour in each stage of the stage table."""

    def __init__(self, daemon: DaemonContext, settings: ArchiveSettings) -> None:
        """Raise `ArchiveNotConfigured` if the configuration names no archive."""
        context = daemon.context
        if not settings.archive.folder:
            raise ArchiveNotConfigured("archive.folder is not set: the archiver has no archive to read")
        self._context = context
        self._settings = settings
        self._store = context.store
        self._owner = daemon.owner
        self._node_requests = daemon.node_requests
        self._markers = daemon.markers
        self._fence = daemon.fence
        self._run = EpochRun(context, settings.capture, Slot.ARCHIVER)
        self._scan: MarkerScan | None = None
        self._attempt = 0  # the sidecar's attempt to return, from the last try-start marker
        self._backoff = Backoff(settings.retry.first_s, settings.retry.max_s)
        self._watch = Watch.configured(context.store.environment, Role.SIDECAR, settings.watchdog)
        self._maintenance = ArchiveMaintenance(context, settings.archive, daemon.node_requests)
        self._transition = StageTransition(context.store, _nothing_to_do, context.metrics, context.log)
        self._forced_switches = ForcedSwitches(daemon.node_requests, settings.archive.switch_s)

    def start(self) -> None:
        """Do nothing: all work happens in `step`."""

    def step(self) -> None:
        """Do the work of the present stage."""
        marks = self._store.marks()
        self._context.metrics.mode.set(marks.stage.number)
        self._fence.step(marks, self._run.progress)
        is_active = marks.stage.deliverer is Role.ARCHIVER and not is_waited_for(marks)
        self._context.metrics.archiver_active.set(is_active)
        if is_active:
            self._end_scan()
            self._deliver(marks)
            self._forced_switches.step(time.monotonic())
        else:
            self._run.release()
            self._scan_markers(marks)
        if marks.stage in WATCHED:
            self._watch_sidecar(marks)
        self._maintenance.step(self._scan.read_lsn if self._scan is not None else None)  # else it would report a hole

    @property
    def is_quiet(self) -> bool:
        """Return false: each step reads the archive's folder."""
        return False

    def pause(self) -> None:
        """Release the capture."""
        self._run.release()

    def stop(self) -> None:
        """Stop delivery."""
        try:
            self._end_scan()
            self._run.stop()
        finally:
            self._node_requests.close()

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return none: operators use the state or the sidecar."""
        return {}

    def status(self) -> Mapping[str, Json]:
        """Return the archiver's status."""
        if self._run.capture is None:
            scan = self._scan
            read_lsn = scan.read_lsn if scan is not None else INVALID_LSN
            return {"role": "passive", "read_lsn": format_lsn(read_lsn)}
        status = self._run.capture.status()
        return {
            "role": "active",
            "copying": status.copying,
            **({"waits_for_room": status.progress.waits_for_room} if status.progress.waits_for_room else {}),
            "open_transactions": status.open_transactions,
            "received_lsn": format_lsn(status.progress.received_lsn),
            "decoded_lsn": format_lsn(status.progress.decoded_lsn),
            "delivered": str(status.progress.delivered.position) if status.progress.delivered else None,
        }

    # --- ACTIVE

    def _deliver(self, marks: StateMarks) -> None:
        try:
            if self._run.capture is None:
                if self._backoff.wait_s(time.monotonic()) > 0:
                    return
                make_wal_source = partial(from_archive, self._context, self._settings.wal)
                self._run.begin(self._store.begin_epoch(self._owner, self._context.log), make_wal_source, self._halts)
            assert self._run.capture is not None, "it was begun"
            error = self._run.capture.poll()
            if error is not None:
                raise error
        except Fenced as fenced:
            self._run.release()
            if self._store.marks().is_fenced_by_own(Role.ARCHIVER):
                raise
            self._context.log.warning("another process delivers now", **describe_error(fenced))
            return
        except TidemarkError as failed:
            if self._run.restarts_after_fork(failed):
                return
            self._run.release()
            if failed.disposition is not Disposition.RETRY:
                raise
            self._context.metrics.errors.inc()
            delay_s = self._backoff.failed(time.monotonic())
            self._context.log.warning("the archiver retries", retry_s=delay_s, **describe_error(failed))
            return
        halted_at = self._run.capture.halted_at
        if halted_at is None:
            self._run.copies_now()
        else:
            self._hand_over(marks, halted_at)

    def _halts(self, lsn: Lsn, content: bytes) -> bool:
        """Return whether a marker ends delivery because the sidecar returns there; called by the decode thread."""
        marker, capture = self._markers.read(lsn, content), self._run.capture
        if marker is None:
            return False
        is_own = self._fence.check(lsn, capture.timeline if capture is not None else None, marker)
        if marker.kind is not MarkerKind.TRY_START or not is_own:
            return False
        view = self._store.view()
        self._attempt = int(marker.sequence)
        return view.stage is Stage.RETURNING and marker.sequence == view.hand_over.attempt

    def _hand_over(self, marks: StateMarks, halted_at: Pointer) -> None:
        """Hand over to the sidecar: everything that commits before its marker is delivered."""
        self._run.release()
        if self._store.hand_over().attempt != self._attempt:
            return  # the sidecar has started another attempt; its marker is further on
        position = halted_at.position
        reached = HandOver(self._attempt, position.timeline, position.commit_lsn)
        self._transition.try_move(Event.MARKER_REACHED, epoch=self._run.epoch, hand_over=reached, only_from=marks.stage)

    # --- PASSIVE

    def _scan_markers(self, marks: StateMarks) -> None:
        if self._scan is None:
            start = marks.delivered.pointer.position.commit_lsn if marks.delivered else INVALID_LSN
            context = self._context
            folder, identity = Path(self._settings.archive.folder), context.store.identity
            self._scan = MarkerScan(
                folder,
                identity,
                start,
                self._watch_marker,
                metrics=context.metrics,
                log=context.log,
                delivered=self._delivered,
            )
            self._scan.start()
        if self._scan.error is not None:
            raise self._scan.error

    def _delivered(self) -> Position | None:
        """Return the position up to which changes were delivered; called by the scan's thread."""
        delivered = self._store.marks().delivered
        return delivered.pointer.position if delivered is not None else None

    def _watch_marker(self, lsn: Lsn, content: bytes) -> None:
        """Read a marker while another process delivers; called by the scan's thread."""
        marker, scan = self._markers.read(lsn, content), self._scan
        if marker is not None:
            self._fence.watch(lsn, scan.timeline if scan is not None else None, marker)

    def _end_scan(self) -> None:
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.stop()

    def _watch_sidecar(self, marks: StateMarks) -> None:
        """If the sidecar has ended or hangs, kill its remaining processes and take over (I20)."""
        condition = self._watch.condition(boot_ns())
        if condition not in (Condition.GONE, Condition.HUNG):
            return
        if not self._watch.kill_process() and self._watch.condition(boot_ns()) is Condition.ALIVE:
            return  # a heartbeat arrived at the last moment
        self._context.log.warning("the sidecar is lost, and the archiver takes over", condition=condition.value)
        epoch = marks.term.epoch if marks.term is not None else None
        # In stage RETURNING the archiver has the epoch already, and its capture continues.
        new_owner = None if marks.stage is Stage.RETURNING else self._owner
        self._transition.try_move(Event.SIDECAR_LOST, epoch=epoch, new_owner=new_owner, only_from=marks.stage)


def _nothing_to_do(_switched: Switched) -> Perform:
    """Return no effects: the archiver's transitions have none."""
    return {}
