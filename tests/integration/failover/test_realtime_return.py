"""The sidecar, step by step, where another process or the node is a moment ahead of it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tidemark_sidecar import realtime_return
from tidemark_sidecar.realtime import Realtime, RealtimeSettings

from tests.support.processes.captures import config_for
from tests.support.processes.failover import archiving_node
from tests.support.processes.waiting import wait_until
from tests.support.servers.archiving import ArchivingServer
from tidemark.engine.handover import Event
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.log_output import get_log
from tidemark.io.node.replication import NodeIdentity
from tidemark.io.node.wal_end import node_identity
from tidemark.io.process.marker_key import load_marker_key
from tidemark.io.process.metrics import Metrics
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.incarnations import begin_incarnation
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_views import StateMarks
from tidemark.io.state.switching import switch
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.mode import Role, Stage
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer
from tidemark.runtime.capture.capture import Capture, DecodingStuck
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.fencing import Fence
from tidemark.runtime.daemon.marker_reading import MarkerReader
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings
from tidemark.runtime.daemon.service import DaemonContext
from tidemark.runtime.plugins.plugins import built_in
from tidemark.runtime.seed.initialise import initialise
from tidemark.wire.marker import MarkerKind
from tidemark.wire.state.values import HandOver

RING_BYTES = 4 << 20  # a segment switch skips one of the node's
SMALL_RING_BYTES = 2 << 20
AT_ONCE_S = 1e-6
NEVER_S = 3600.0
STEPS = 5  # more than the sidecar needs to detect a stalled archive, and to request the WAL


class SlowRequests(NodeRequests):
    """Reports an old position of the node."""

    def __init__(self, context: CaptureContext, settings: NodeSettings, key: bytes) -> None:
        super().__init__(settings, context.store, key, counts=context.metrics, log=context.log)
        self._node = (settings.captured_dsn, context.store.identity.system_identifier)
        self.look_again()
        self.asked = 0
        self.written: list[MarkerKind] = []
        self.asked_wal = 0

    def look_again(self) -> None:
        """Report the node's present position from now on."""
        self.was_at = node_identity(*self._node)

    def find_node(self) -> Future[NodeIdentity]:
        """Answer at once, with an old answer."""
        self.asked += 1
        answer: Future[NodeIdentity] = Future()
        answer.set_result(self.was_at)
        return answer

    def has_wal(self, lsn: Lsn) -> Future[bool]:
        """Ask the node, and count that."""
        self.asked_wal += 1
        return super().has_wal(lsn)

    def write(
        self, kind: MarkerKind, epoch: Epoch, pointer: Pointer | None, *, sequence: int = 0, reason: str = ""
    ) -> Future[Lsn]:
        """Write a marker, and record its kind."""
        self.written.append(kind)
        return super().write(kind, epoch, pointer, sequence=sequence, reason=reason)


@contextmanager
def made(
    node: ArchivingServer,
    root: Path,
    ring_bytes: int = RING_BYTES,
    *,
    automatic_return: bool = True,
    archive_wait_s: float = AT_ONCE_S,
) -> Iterator[tuple[Realtime, StateStore, SlowRequests]]:
    """Return the sidecar's part of a new capture."""
    config = config_for(node.node, "postgres")
    config = replace(
        config,
        archive=replace(config.archive, folder=str(node.spool.folder)),
        ring=replace(config.ring, bytes_max=ring_bytes),
        realtime=replace(
            config.realtime,
            return_first_s=0.1,
            return_max_s=0.1,
            archive_wait_s=archive_wait_s,
            automatic_return=automatic_return,
        ),
        markers=replace(config.markers, confirm_s=AT_ONCE_S),
    )
    folder = StateFolder(root / "state")
    initialise(config, folder)
    with StateStore.open(folder) as store, RoleLock.acquire(folder, "sidecar") as lock:
        context = CaptureContext(store, Metrics("main"), get_log("test"))
        key = load_marker_key(config, folder)
        incarnation = begin_incarnation(store, Role.SIDECAR, context.log)
        node_requests = SlowRequests(context, NodeSettings.of(config), key)
        fence = Fence(context, incarnation, node_requests)
        markers = MarkerReader(store.identity, key, context.metrics, context.log)
        daemon = DaemonContext(context, lock.owner, node_requests, markers, fence, built_in("outbox"))
        realtime = Realtime(daemon, RealtimeSettings.of(config, store.identity.segment_bytes))
        try:
            yield realtime, store, node_requests
        finally:
            realtime.stop()


@pytest.fixture(scope="module")
def node() -> Iterator[ArchivingServer]:
    with archiving_node() as started:
        yield started


def fail_over(store: StateStore) -> None:
    """Move to ARCHIVE as the archiver does."""
    switch(store, Event.SIDECAR_LOST, log=get_log("test"), now_us=SystemClock().wall_us())


def step_until(realtime: Realtime, store: StateStore, condition: Callable[[], bool]) -> None:
    """Run the sidecar's steps beside a live archiver."""

    def holds() -> bool:
        if condition():
            return True
        store.environment.heartbeat.beat(Slot.ARCHIVER)
        realtime.step()
        return False

    wait_until(holds)


def test_a_stage_that_changes_just_before_the_epoch_begins_ends_nothing(
    node: ArchivingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(node, tmp_path) as (realtime, store, _):
        before = store.marks()
        assert before.stage is Stage.REALTIME
        fail_over(store)
        current, seen = store.marks, [before]

        def late_marks() -> StateMarks:
            return seen.pop() if seen else current()

        monkeypatch.setattr(store, "marks", late_marks)
        realtime.step()
        assert not seen
        assert realtime.status() == {"link": None}
        assert store.marks().stage is Stage.ARCHIVE


def test_decoding_that_does_not_end_after_the_operators_off_ends_the_process(
    node: ArchivingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Capture.stop

    def stuck(capture: Capture) -> None:
        stop(capture)
        raise DecodingStuck("it does not end")

    with made(node, tmp_path) as (realtime, store, _):
        realtime.start()
        monkeypatch.setattr(Capture, "stop", stuck)
        with pytest.raises(DecodingStuck):
            realtime.commands()["realtime-off"]({})
        assert store.marks().stage is Stage.HELD
        with pytest.raises(DecodingStuck):
            realtime.step()


@pytest.mark.parametrize("is_same", [True, False], ids=["same", "other"])
def test_realtime_continues_only_from_the_timeline_on_which_the_archiver_reached_the_marker(
    node: ArchivingServer, tmp_path: Path, *, is_same: bool
) -> None:
    with made(node, tmp_path) as (realtime, store, node_requests):
        realtime.step()
        fail_over(store)
        node_requests.look_again()
        step_until(realtime, store, lambda: store.marks().stage is Stage.RETURNING)
        view = store.view()
        timeline = node_requests.was_at.timeline if is_same else TimelineId(node_requests.was_at.timeline + 1)
        met = HandOver(view.hand_over.attempt, timeline, node_requests.was_at.flush_lsn)
        switch(store, Event.MARKER_REACHED, log=get_log("test"), now_us=SystemClock().wall_us(), hand_over=met)
        step_until(realtime, store, lambda: store.marks().stage is not Stage.RETURNED)
        assert store.marks().stage is (Stage.REALTIME if is_same else Stage.ARCHIVE)


def test_a_buffer_that_is_full_before_it_reaches_the_nodes_position_is_given_up(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with made(node, tmp_path, SMALL_RING_BYTES) as (realtime, store, node_requests):
        realtime.step()
        fail_over(store)
        node.node.sql("CREATE TABLE much AS SELECT n, repeat('x', 500) FROM generate_series(1, 20000) n")
        step_until(realtime, store, lambda: node_requests.asked > 1)


def test_a_marker_that_is_never_read_is_written_again(
    node: ArchivingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime_return, "MARKER_LOST_S", 0.1)
    with made(node, tmp_path, archive_wait_s=NEVER_S) as (realtime, store, node_requests):
        realtime.step()
        fail_over(store)
        node_requests.look_again()
        step_until(realtime, store, lambda: node_requests.written.count(MarkerKind.TRY_START) > 1)
        assert store.marks().stage is Stage.RETURNING
        assert store.view().hand_over.attempt == 1


def step_alone_until(realtime: Realtime, condition: Callable[[], bool]) -> None:
    """Run the sidecar's steps without an archiver."""

    def holds() -> bool:
        if not condition():
            realtime.step()
            return False
        return True

    wait_until(holds)


@pytest.mark.feature("I31")
def test_the_first_confirmation_in_a_new_state_gets_its_marker_although_nothing_follows(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with made(node, tmp_path) as (realtime, store, node_requests), OutboxReader.open(store.folder) as reader:
        reader.register("spark")
        marks = store.marks()
        assert marks.horizon == marks.delivered, "only what precedes the beginning is confirmed"
        realtime.start()
        node.node.sql("CREATE TABLE confirmed_once (id int)")
        step_alone_until(realtime, lambda: reader.head() > NO_SEQUENCE)
        reader.confirm("spark", reader.head(), reader.head())
        step_alone_until(realtime, lambda: MarkerKind.CONFIRM in node_requests.written)


@pytest.mark.feature("I17")
def test_the_operators_wish_to_return_ends_with_a_return_without_the_archive(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with made(node, tmp_path, automatic_return=False) as (realtime, store, node_requests):
        realtime.step()
        fail_over(store)
        realtime.step()
        assert realtime.commands()["realtime-on"]({})["stage"] == "archive"
        step_alone_until(realtime, lambda: store.marks().stage is Stage.REALTIME)
        asked = node_requests.asked_wal
        fail_over(store)
        for _ in range(STEPS):
            realtime.step()
        assert store.marks().stage is Stage.ARCHIVE
        assert node_requests.asked_wal == asked > 0
