"""A daemon's fence over a real LMDB, step by step: which markers stop it, and when it writes its start marker (I21)."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.processes.clocks import HandClock
from tidemark.engine.progress import Progress
from tidemark.io.host.log_output import get_log
from tidemark.io.node.replication import NodeIdentity
from tidemark.io.process.config import Config
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.incarnations import begin_incarnation, expect_markers_ahead
from tidemark.io.state.overtaken import OvertakenState
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import NodeUnreachable
from tidemark.model.incarnation import Incarnation
from tidemark.model.lsn import NO_TIMELINE, Lsn, SystemIdentifier, TimelineId
from tidemark.model.mode import Role
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer, Position, Sequence
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.fencing import ANSWERED_MAX, FIRST_START, TRY_AGAIN_S, Fence
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings, NoMarkersOnStandby
from tidemark.wal.versions import PAGE_BYTES
from tidemark.wire.marker import Instance, Marker, MarkerKind
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import DELIVERED, FOLLOWED
from tidemark.wire.state.values import Followed, Identity, Overtaken, Watermark

pytestmark = pytest.mark.feature("I21")
IDENTITY = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, 4 << 20)
INSTANCE = Instance(IDENTITY.system_identifier, IDENTITY.capture)
OWNER = Owner("sidecar", "host", "boot", 1, 1)
FIRST = TimelineId(1)
LESSER, GREATER = Incarnation(""), Incarnation("z")  # than any incarnation of hexadecimal digits
BEGAN, STARTED = Lsn(100), Lsn(1000)  # where the state begins to deliver, and its own start marker
AFTER, LATER = Lsn(STARTED + 8), Lsn(STARTED + 16)
LONG_S = 100 * TRY_AGAIN_S
KINDS = [kind for kind in MarkerKind if kind is not MarkerKind.CHECK]


def pointer_to(lsn: int) -> Pointer:
    return Pointer(Position(FIRST, Lsn(lsn), 0), Lsn(lsn))


@dataclass(frozen=True)
class WrittenMarker:
    """A marker that the fence has requested, and the node's answer."""

    kind: MarkerKind
    epoch: Epoch
    pointer: Pointer | None
    sequence: int
    answer: Future[Lsn]


class OpenRequests(NodeRequests):
    """Leaves the requests open: the test answers them."""

    def __init__(self, context: CaptureContext, incarnation: Incarnation) -> None:
        settings = NodeSettings.of(Config())
        super().__init__(settings, context.store, b"k" * 16, incarnation, counts=context.metrics, log=context.log)
        self.queries: list[Future[NodeIdentity]] = []
        self.written: list[WrittenMarker] = []

    def find_node(self) -> Future[NodeIdentity]:
        """Keep the query."""
        self.queries.append(Future())
        return self.queries[-1]

    def write(
        self, kind: MarkerKind, epoch: Epoch, pointer: Pointer | None, *, sequence: int = 0, reason: str = ""
    ) -> Future[Lsn]:
        """Keep the marker."""
        del reason
        self.written.append(WrittenMarker(kind, epoch, pointer, sequence, Future()))
        return self.written[-1].answer


class FencedDaemon:
    """A daemon's fence, with a clock and a node whose answers the test gives. Its state has delivered up to BEGAN."""

    def __init__(self, store: StateStore) -> None:
        log = get_log("test")
        self.store, self.clock = store, HandClock()
        self.deliver_to(BEGAN)
        self.own = begin_incarnation(store, Role.SIDECAR, log)
        self.context = CaptureContext(store, Metrics("main"), log)
        self.requests = OpenRequests(self.context, self.own)
        self.fence = Fence(self.context, self.own, self.requests, self.clock)
        self.epoch = store.begin_epoch(OWNER)

    def errors(self) -> float | None:
        return self.context.metrics.registry.get_sample_value("tidemark_errors_total", {"capture": "main"})

    def deliver_to(self, lsn: int) -> None:
        with self.store.transaction(None) as transaction:
            transaction.put(DELIVERED, Watermark(pointer_to(lsn), NO_SEQUENCE))

    def expect_markers_ahead(self) -> None:
        with self.store.transaction(None) as transaction:
            expect_markers_ahead(transaction)

    def is_confirmed(self) -> bool:
        return self.store.incarnations()[0].is_confirmed

    def marker(
        self,
        incarnation: Incarnation | None,
        kind: MarkerKind = MarkerKind.CONFIRM,
        *,
        ahead: int = 0,
        sequence: int = 0,
        reached: int | None = None,
    ) -> Marker:
        """Return a marker; `ahead`: epochs after the daemon's first one; `reached`: the LSN of its pointer."""
        epoch = replace(self.epoch, number=self.epoch.number + ahead)
        pointer = pointer_to(reached) if reached is not None else None
        return Marker(kind, INSTANCE, epoch, Sequence(sequence), pointer, incarnation=incarnation)

    def read_own_start(self, lsn: int = STARTED) -> None:
        start = self.marker(self.own, MarkerKind.START, sequence=FIRST_START)
        assert self.fence.check(Lsn(lsn), FIRST, start)

    def step(self, decoded_lsn: int | None = 0, *, later_s: float = 0.0) -> None:
        """Run one step of the daemon's loop; None: it has no capture."""
        self.clock.now_s += later_s
        progress = Progress(decoded_lsn=Lsn(decoded_lsn)) if decoded_lsn is not None else None
        self.fence.step(self.store.marks(), progress)

    def answer(self, flush_lsn: int) -> None:
        """Have the node answer the last query."""
        self.requests.queries[-1].set_result(NodeIdentity(IDENTITY.system_identifier, FIRST, Lsn(flush_lsn)))

    def write_start(self) -> WrittenMarker:
        """Run the steps that write the first start marker."""
        self.step()
        self.answer(0)
        self.step()
        (written,) = self.requests.written
        return written


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FencedDaemon]:
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as store:
        made = FencedDaemon(store)
        with closing(made.requests):
            yield made


# --- markers that the process reads


@pytest.mark.parametrize("kind", KINDS)
def test_a_marker_is_of_this_state_if_its_writer_is_known_or_not_named(daemon: FencedDaemon, kind: MarkerKind) -> None:
    assert daemon.fence.check(Lsn(8), FIRST, daemon.marker(daemon.own, kind))
    assert daemon.fence.check(AFTER, FIRST, daemon.marker(None, kind))
    assert not daemon.fence.check(AFTER, FIRST, daemon.marker(GREATER, kind, ahead=-1))


def test_a_marker_of_a_check_is_not_judged(daemon: FencedDaemon) -> None:
    assert not daemon.fence.check(AFTER, FIRST, daemon.marker(None, MarkerKind.CHECK))
    ahead = daemon.marker(GREATER, MarkerKind.CHECK, ahead=1)
    assert not daemon.fence.check(AFTER, FIRST, ahead)
    daemon.fence.watch(AFTER, FIRST, ahead)
    assert daemon.store.marks().overtaken is None


def test_only_the_first_own_start_marker_is_the_start(daemon: FencedDaemon) -> None:
    for other in (
        daemon.marker(daemon.own, MarkerKind.CONFIRM),
        daemon.marker(GREATER, MarkerKind.START, ahead=-1),
    ):
        daemon.fence.check(Lsn(8), FIRST, other)
        assert not daemon.requests.has_read_start
    daemon.expect_markers_ahead()
    daemon.read_own_start()
    assert daemon.requests.has_read_start
    daemon.read_own_start(LATER)
    daemon.deliver_to(AFTER)
    daemon.step(None)
    assert not daemon.is_confirmed(), "all before the first one is delivered"


def test_the_own_start_marker_is_not_compared_with_the_state(daemon: FencedDaemon) -> None:
    start = daemon.marker(daemon.own, MarkerKind.START, ahead=1)
    assert daemon.fence.check(STARTED, FIRST, start)


def test_before_its_start_marker_a_state_is_fenced_by_a_position_beyond_its_begin(daemon: FencedDaemon) -> None:
    daemon.deliver_to(STARTED)
    assert not daemon.fence.check(Lsn(8), FIRST, daemon.marker(GREATER, reached=BEGAN))
    with pytest.raises(OvertakenState):
        daemon.fence.check(Lsn(16), FIRST, daemon.marker(LESSER, reached=BEGAN + 1))


def test_after_its_start_marker_positions_are_not_compared_but_incarnations_are(daemon: FencedDaemon) -> None:
    assert not daemon.fence.check(Lsn(8), FIRST, daemon.marker(GREATER))
    daemon.read_own_start()
    assert not daemon.fence.check(Lsn(16), FIRST, daemon.marker(GREATER)), "WAL from before it is read again"
    assert not daemon.fence.check(AFTER, FIRST, daemon.marker(LESSER, reached=LATER))
    with pytest.raises(OvertakenState):
        daemon.fence.check(AFTER, FIRST, daemon.marker(GREATER))


@pytest.mark.parametrize(
    ("kind", "sequence"), [(MarkerKind.START, 0), (MarkerKind.CONFIRM, FIRST_START)], ids=["confirmed", "no start"]
)
def test_of_two_first_start_markers_of_one_epoch_the_first_one_decides(
    daemon: FencedDaemon, kind: MarkerKind, sequence: int
) -> None:
    daemon.read_own_start()
    first = daemon.marker(GREATER, MarkerKind.START, sequence=FIRST_START)
    assert not daemon.fence.check(AFTER, FIRST, first)
    with pytest.raises(OvertakenState):
        daemon.fence.check(LATER, FIRST, replace(first, kind=kind, sequence=Sequence(sequence)))


@pytest.mark.parametrize("timeline", [FIRST, None])
def test_a_fenced_state_records_the_marker_and_every_later_step_fails(
    daemon: FencedDaemon, timeline: TimelineId | None
) -> None:
    daemon.read_own_start()
    rival = daemon.marker(GREATER, ahead=1)
    with pytest.raises(OvertakenState):
        daemon.fence.check(AFTER, timeline, rival)
    expected = Overtaken(GREATER, rival.epoch, timeline or NO_TIMELINE, AFTER, daemon.own, daemon.epoch)
    assert daemon.store.marks().overtaken == expected
    for decoded_lsn in (0, None):
        with pytest.raises(OvertakenState):
            daemon.step(decoded_lsn)


def test_a_process_that_only_watches_is_fenced_by_a_later_epoch_alone_and_answers_nothing(
    daemon: FencedDaemon,
) -> None:
    daemon.read_own_start()
    daemon.write_start().answer.set_result(STARTED)
    for behind in (daemon.marker(GREATER), daemon.marker(LESSER, ahead=-1)):
        daemon.fence.watch(AFTER, FIRST, behind)
    daemon.step(later_s=LONG_S)
    assert len(daemon.requests.written) == 1
    with pytest.raises(OvertakenState):
        daemon.fence.watch(AFTER, FIRST, daemon.marker(LESSER, ahead=1))


def test_a_state_whose_start_is_not_found_yet_watches_no_marker(daemon: FencedDaemon) -> None:
    with daemon.store.transaction(None) as transaction:
        transaction.put(FOLLOWED, Followed(pointer_to(BEGAN), pointer_to(BEGAN), has_start=False))
    daemon.fence.watch(AFTER, FIRST, daemon.marker(GREATER, ahead=1))
    assert daemon.store.marks().overtaken is None


# --- the start marker


def test_without_a_capture_no_node_is_queried_and_the_state_begins_where_it_is(daemon: FencedDaemon) -> None:
    daemon.deliver_to(200)
    daemon.step(None)
    assert not daemon.requests.queries
    assert not daemon.fence.check(Lsn(8), FIRST, daemon.marker(GREATER, reached=200))
    daemon.step()
    daemon.deliver_to(300)
    daemon.step(None)
    assert len(daemon.requests.queries) == 1
    with pytest.raises(OvertakenState):
        daemon.fence.check(Lsn(16), FIRST, daemon.marker(GREATER, reached=201))


def test_the_start_marker_is_written_once_all_that_the_node_had_written_is_decoded(daemon: FencedDaemon) -> None:
    flush_lsn = 10 * PAGE_BYTES
    for _ in range(2):
        daemon.step(flush_lsn)
    assert len(daemon.requests.queries) == 1
    assert not daemon.requests.written, "the node has not answered"
    daemon.answer(flush_lsn)
    daemon.step(flush_lsn - PAGE_BYTES - 1)
    assert not daemon.requests.written
    daemon.step(flush_lsn - PAGE_BYTES)
    (written,) = daemon.requests.written
    assert (written.kind, written.epoch, written.sequence) == (MarkerKind.START, daemon.epoch, FIRST_START)
    assert written.pointer == pointer_to(BEGAN)


def test_a_decoder_that_is_past_the_nodes_answer_is_not_waited_for(daemon: FencedDaemon) -> None:
    daemon.step(10 * PAGE_BYTES)
    daemon.answer(PAGE_BYTES)
    daemon.step(10 * PAGE_BYTES)
    assert len(daemon.requests.written) == 1


def test_a_confirmed_state_writes_its_start_marker_at_once_and_not_as_a_first_one(daemon: FencedDaemon) -> None:
    daemon.expect_markers_ahead()
    daemon.step()
    daemon.answer(10 * PAGE_BYTES)
    daemon.step()
    assert [written.sequence for written in daemon.requests.written] == [0]


def test_a_state_that_has_delivered_nothing_writes_a_start_marker_without_a_pointer(daemon: FencedDaemon) -> None:
    with daemon.store.transaction(None) as transaction:
        transaction.drop(DELIVERED)
    assert daemon.write_start().pointer is None
    daemon.read_own_start()
    daemon.step()


def test_no_start_marker_is_written_before_the_first_epoch(tmp_path: Path) -> None:
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as store:
        log = get_log("test")
        own = begin_incarnation(store, Role.SIDECAR, log)
        context = CaptureContext(store, Metrics("main"), log)
        with closing(OpenRequests(context, own)) as requests:
            fence = Fence(context, own, requests)
            fence.step(store.marks(), Progress())
            requests.queries[0].set_result(NodeIdentity(IDENTITY.system_identifier, FIRST, Lsn(0)))
            fence.step(store.marks(), Progress())
            assert not requests.written
            epoch = store.begin_epoch(OWNER)
            fence.step(store.marks(), Progress())
            assert [written.epoch for written in requests.written] == [epoch]


def test_a_node_that_does_not_answer_is_queried_again_after_a_pause(daemon: FencedDaemon) -> None:
    daemon.step()
    daemon.requests.queries[0].set_exception(NodeUnreachable("no answer"))
    daemon.step()
    assert len(daemon.requests.queries) == 2
    assert daemon.errors() == 1
    daemon.answer(0)
    daemon.step(later_s=TRY_AGAIN_S - 1)
    assert not daemon.requests.written
    daemon.step(later_s=1)
    assert len(daemon.requests.written) == 1


def test_a_start_marker_that_was_not_written_is_written_again_after_a_pause(daemon: FencedDaemon) -> None:
    failed = daemon.write_start()
    daemon.step(later_s=LONG_S)
    assert len(daemon.requests.written) == 1, "the node has not answered"
    failed.answer.set_exception(NodeUnreachable("no answer"))
    with capture_logs() as reported:
        daemon.step()
    assert [line["event"] for line in reported] == ["the start marker was not written"]
    assert daemon.errors() == 1
    daemon.step(later_s=TRY_AGAIN_S - 1)
    assert len(daemon.requests.written) == 1
    daemon.step(later_s=1)
    assert [written.sequence for written in daemon.requests.written] == [FIRST_START] * 2


def test_a_standby_that_accepts_no_marker_is_not_asked_again(daemon: FencedDaemon) -> None:
    daemon.write_start().answer.set_exception(NoMarkersOnStandby("the node is a standby"))
    with capture_logs() as reported:
        for _ in range(3):
            daemon.step(later_s=LONG_S)
    assert len(daemon.requests.written) == 1
    assert not reported


# --- rivals


def test_a_rival_that_is_behind_is_answered_once_with_a_start_marker_that_is_no_first_one(
    daemon: FencedDaemon,
) -> None:
    daemon.write_start().answer.set_result(STARTED)
    daemon.read_own_start()
    daemon.step(later_s=LONG_S)
    assert len(daemon.requests.written) == 1
    daemon.fence.check(AFTER, FIRST, daemon.marker(daemon.own))
    daemon.step()
    assert len(daemon.requests.written) == 1, "it is no rival"
    for _ in range(2):
        with capture_logs() as reported:
            assert not daemon.fence.check(AFTER, FIRST, daemon.marker(LESSER))
        daemon.step()
        daemon.step()
        assert len(daemon.requests.written) == 2
        if not daemon.requests.written[1].answer.done():
            assert [line["rival"] for line in reported] == [LESSER]
            daemon.requests.written[1].answer.set_result(LATER)
    answer = daemon.requests.written[1]
    assert (answer.kind, answer.sequence) == (MarkerKind.START, 0)


def test_the_number_of_answered_rivals_is_limited(daemon: FencedDaemon) -> None:
    daemon.read_own_start()
    with capture_logs() as reported:
        for number in range(ANSWERED_MAX + 2):
            daemon.fence.check(AFTER, FIRST, daemon.marker(Incarnation(f"{number:016x}"), ahead=-1))
    assert len(reported) == ANSWERED_MAX


# --- the confirmation of a copy


def test_a_confirmation_holds_until_all_before_the_start_marker_is_delivered(daemon: FencedDaemon) -> None:
    daemon.expect_markers_ahead()
    daemon.deliver_to(AFTER)
    daemon.step(None)
    assert daemon.is_confirmed(), "the start marker was not read"
    daemon.read_own_start(LATER)
    daemon.step(None)
    assert daemon.is_confirmed()
    daemon.deliver_to(LATER)
    daemon.step(None)
    assert not daemon.is_confirmed()
    daemon.expect_markers_ahead()
    daemon.step(None)
    assert daemon.is_confirmed(), "a later one holds, too"
