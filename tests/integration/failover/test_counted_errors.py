"""An error that is logged and retried is counted by `tidemark_errors_total`, in each of the loops that retry."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tidemark_archiver.archive_maintenance import ArchiveMaintenance
from tidemark_sidecar.following import Following
from tidemark_sidecar.realtime_return import RealtimeReturn
from tidemark_sidecar.stalled import StalledArchive

from tests.support.processes.waiting import wait_until
from tidemark.engine.handover import Event
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.log_output import get_log
from tidemark.io.process.config import Config
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.incarnations import begin_incarnation
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.switching import switch
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.model.mode import Role
from tidemark.model.position import NO_SEQUENCE, Pointer, Position
from tidemark.runtime.capture.capture_settings import CaptureSettings
from tidemark.runtime.capture.wal_source import WalSettings
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.archive_report import LISTING_S, ArchiveReport
from tidemark.runtime.daemon.archiving_watch import ArchivingWatch
from tidemark.runtime.daemon.fencing import Fence
from tidemark.runtime.daemon.marker_reading import MarkerReader
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings
from tidemark.runtime.daemon.service import DaemonContext
from tidemark.runtime.daemon.stage_transition import StageTransition
from tidemark.runtime.plugins.plugins import built_in
from tidemark.wire.state.state_keys import DELIVERED
from tidemark.wire.state.values import Identity, Watermark

KEY = b"k" * 16
IDENTITY = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, 4 << 20)
UNREACHABLE = "host=127.0.0.1 port=1"
DELIVERED_TO = Watermark(Pointer(Position(TimelineId(1), Lsn(800), 0), Lsn(792)), NO_SEQUENCE)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return a configuration with an unreachable node and an archive that does not exist."""
    chosen = {
        "TIDEMARK_ARCHIVE__FOLDER": str(tmp_path / "archive"),
        "TIDEMARK_CAPTURE__DSN": UNREACHABLE,
        "TIDEMARK_REALTIME__ARCHIVE_WAIT_S": "1e-6",
    }
    return load_config(None, chosen)


@pytest.fixture
def daemon(config: Config, tmp_path: Path) -> Iterator[DaemonContext]:
    """Return the context of a daemon in stage ARCHIVE."""
    folder, metrics, log = StateFolder(tmp_path / "state"), Metrics("main"), get_log("")
    with StateStore.create(folder, IDENTITY) as store, RoleLock.acquire(folder, "sidecar") as lock:
        with store.transaction(None) as transaction:
            transaction.put(DELIVERED, DELIVERED_TO)
        switch(store, Event.SIDECAR_LOST, log=log, now_us=SystemClock().wall_us())
        incarnation = begin_incarnation(store, Role.SIDECAR, log)
        context = CaptureContext(store, metrics, log)
        with closing(
            NodeRequests(NodeSettings.of(config), store, KEY, incarnation, counts=metrics, log=log)
        ) as node_requests:
            fence = Fence(context, incarnation, node_requests)
            markers = MarkerReader(store.identity, KEY, metrics, log)
            yield DaemonContext(context, lock.owner, node_requests, markers, fence, built_in("outbox"))


def errors(daemon: DaemonContext) -> float | None:
    return daemon.context.metrics.registry.get_sample_value("tidemark_errors_total", {"capture": "main"})


def list_archive(report: ArchiveReport, daemon: DaemonContext, now_s: float) -> None:
    """Begin a listing, and step until it has failed."""
    before = errors(daemon)

    def has_failed() -> bool:
        report.step(now_s)
        return errors(daemon) != before

    wait_until(has_failed)


def watched_archive(config: Config, daemon: DaemonContext) -> StalledArchive:
    wait_s, watchdog_s = config.realtime.archive_wait_s, config.watchdog.watchdog_s
    return StalledArchive(daemon, archive_wait_s=wait_s, watchdog_s=watchdog_s)


def test_each_failed_listing_of_the_archive_is_counted(config: Config, daemon: DaemonContext) -> None:
    watch = ArchivingWatch(daemon.context, config.archive, daemon.node_requests)
    report = ArchiveReport(daemon.context, config.archive.folder, watch)
    for count in (1, 2):
        list_archive(report, daemon, count * LISTING_S)
        assert errors(daemon) == count


def test_a_failed_maintenance_of_the_spool_is_counted(config: Config, daemon: DaemonContext) -> None:
    (folder := Path(config.archive.folder)).mkdir()
    (folder / ".tidemark").write_text("5\n")  # another cluster's
    for count in (1, 2):
        ArchiveMaintenance(daemon.context, config.archive, daemon.node_requests).step(None)
        assert errors(daemon) == count


def test_a_node_that_does_not_answer_during_a_return_is_counted(config: Config, daemon: DaemonContext) -> None:
    context = daemon.context
    stalled = watched_archive(config, daemon)
    transition = StageTransition(context.store, lambda _switched: {}, context.metrics, context.log)
    segment_bytes = IDENTITY.segment_bytes
    returning = RealtimeReturn(
        daemon,
        transition,
        stalled,
        realtime=config.realtime,
        wal=WalSettings.of(config, segment_bytes),
        lag_bytes_max=config.return_lag_bytes_max(segment_bytes),
    )
    returning.return_soon()

    def is_counted() -> bool:
        context.store.environment.heartbeat.beat(Slot.ARCHIVER)
        returning.step(context.store.marks())
        return errors(daemon) == 1

    wait_until(is_counted)


def test_a_node_that_does_not_answer_while_the_archive_is_stalled_is_counted(
    config: Config, daemon: DaemonContext
) -> None:
    stalled = watched_archive(config, daemon)

    def is_counted() -> bool:
        assert not stalled.is_over(daemon.context.store.marks(), waits=True)
        return errors(daemon) == 1

    wait_until(is_counted)


def test_a_node_that_does_not_report_whether_it_is_a_standby_is_counted(config: Config, daemon: DaemonContext) -> None:
    transition = StageTransition(daemon.context.store, lambda _switched: {}, daemon.context.metrics, daemon.context.log)
    following = Following(
        daemon,
        transition,
        is_enabled=True,
        capture=CaptureSettings.of(config),
        wal=WalSettings.of(config, IDENTITY.segment_bytes),
    )

    def is_counted() -> bool:
        following.poll_node()
        return errors(daemon) == 1

    wait_until(is_counted)
