"""The decode thread as its owner observes it."""

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue

import pytest

from tests.support.forged import groups
from tests.support.processes.waiting import let_pass, wait_until
from tidemark.engine.batching import DeliveryPacing
from tidemark.engine.progress import Progress
from tidemark.engine.ring import Ring
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId
from tidemark.model.position import Position
from tidemark.runtime.capture.decode_thread import DecodeThread
from tidemark.runtime.capture.group_queue import GroupQueue
from tidemark.runtime.capture.group_reader import GroupReader
from tidemark.runtime.capture.stream_lease import NEXT, LeaseEvent, LeaseState, StreamLease
from tidemark.runtime.capture.wal_reader import WalReader
from tidemark.wal.segments import WalSlice


class Stuck(WalReader):
    """A reader that blocks in its slice until it is released, and then fails."""

    def __init__(self) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self.cpu_s = 0.0

    def feed(self, wal_slice: WalSlice) -> Iterator[ChangeGroup]:
        self.inside.set()
        assert self.leave.wait(30)
        raise ZeroDivisionError(wal_slice.start_lsn)


def test_a_stop_returns_whether_the_thread_may_still_write_to_the_journal() -> None:
    ring, reader, lease = Ring(1 << 20, Lsn(8192)), Stuck(), StreamLease()
    thread = DecodeThread(
        ring,
        lease,
        reader,
        GroupQueue(1 << 16, lease.woken),
        delivered=Position(TimelineId(1), Lsn(8192), 0),
        progress=Progress(),
        idle_pointer_s=1.0,
    )
    ring.put(WalSlice(Lsn(8192), bytes(100), TimelineId(1)))
    thread.start()
    assert reader.inside.wait(30)
    assert not thread.stop(0.01)
    reader.leave.set()
    assert thread.stop()
    assert isinstance(thread.error, ZeroDivisionError)


FULL_OF_SLICE = 2
NUMBERS_FROM = 1000
SLICES = 300
START_LSN = Lsn(8192)
DEADLINE_S = 60
CHECK_S = 0.01
READ_S = 0.005


class Numbering(WalReader):
    """Emits two groups of a slice at once and keeps a third pending; records the thread."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.threads: list[str] = []
        self._read_lsn = START_LSN
        self._is_collecting = False
        self.made = 0

    def feed(self, wal_slice: WalSlice) -> Iterator[ChangeGroup]:
        self.threads.append(threading.current_thread().name)
        self._read_lsn = wal_slice.end_lsn  # before its groups, as a framer has it
        for _ in range(FULL_OF_SLICE):
            yield self._next()
        self._is_collecting = True

    def flush(self, *, also_empty: bool) -> ChangeGroup | None:
        assert not also_empty
        was_collecting, self._is_collecting = self._is_collecting, False
        return self._next() if was_collecting else None

    def maintain(self, wal_slice: WalSlice) -> None:
        assert wal_slice.end_lsn == self._read_lsn

    @property
    def is_collecting(self) -> bool:
        return self._is_collecting

    @property
    def is_halted(self) -> bool:
        return False

    @property
    def read_lsn(self) -> Lsn:
        return self._read_lsn

    @property
    def last_record_lsn(self) -> Lsn:
        return INVALID_LSN

    def _next(self) -> ChangeGroup:
        self.made += 1
        return groups.group(NUMBERS_FROM + self.made, [])


class Network:
    """Slices arrive at a socket that is read by a thread of this class or, while it is offered, by another thread."""

    def __init__(self, ring: Ring, progress: Progress, lease: StreamLease) -> None:
        self.is_offering = False
        self.readers: list[str] = []
        self._ring, self._progress, self._lease = ring, progress, lease
        self._socket: SimpleQueue[WalSlice] = SimpleQueue()
        self._sent_lsn = START_LSN
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="network")
        self._thread.start()

    def send(self) -> None:
        """Let a slice arrive at the socket."""
        wal_slice = WalSlice(self._sent_lsn, bytes(100), TimelineId(1))
        self._sent_lsn = wal_slice.end_lsn
        self._socket.put(wal_slice)

    @property
    def sent_lsn(self) -> Lsn:
        """The end of what was sent."""
        return self._sent_lsn

    def read_leased(self, timeout_s: float, collect: Callable[[], None]) -> bool:
        """Read as the application thread."""
        assert self._lease.state in (LeaseState.READING, LeaseState.LEAVING)
        if self._read(timeout_s):
            collect()
        return self._socket.empty()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self.is_offering and self._lease.may_offer and self._socket.empty():
                self._lease.offer()
                while self._lease.is_used_within(CHECK_S) and not self._stopping.is_set():
                    pass
                assert self._lease.recall(DEADLINE_S)
            if self._read(READ_S):
                self._lease.arrived.set()

    def _read(self, timeout_s: float) -> bool:
        try:
            wal_slice = self._socket.get(timeout=timeout_s)
        except Empty:
            return False
        self.readers.append(threading.current_thread().name)
        self._progress.receive(wal_slice.end_lsn)
        self._ring.put(wal_slice)
        return True


class Between:
    """A ring, a decode thread and a queue, between a network thread and the test's as the application thread."""

    def __init__(self, reader: Numbering) -> None:
        self.ring, self.reader, self.lease = Ring(1 << 20, START_LSN), reader, StreamLease()
        self.progress = Progress(received_lsn=START_LSN)
        self.group_queue = GroupQueue(4000, self.lease.woken)
        self.network = Network(self.ring, self.progress, self.lease)
        self.group_reader = GroupReader(self.group_queue, self.lease, self.network, DeliveryPacing(0, 0))
        self.thread = DecodeThread(
            self.ring,
            self.lease,
            self.reader,
            self.group_queue,
            delivered=Position(TimelineId(1), START_LSN, 0),
            progress=self.progress,
            idle_pointer_s=1000.0,
        )
        self.thread.start()
        self.group_reader.decode_with(self.thread)

    def receive(self, timeout_s: float = DEADLINE_S) -> int:
        """Receive a group; return its number."""
        group = self.group_reader.receive(timeout_s)
        assert group is not None
        return group.last.position.commit_lsn - NUMBERS_FROM

    def receive_inline(self) -> None:
        """Receive until a group was decoded in this thread."""
        self.network.is_offering = True
        here = threading.current_thread().name
        for _ in range(DEADLINE_S):
            later = threading.Timer(0.05, self.network.send)
            later.start()
            for _ in range(FULL_OF_SLICE + 1):
                self.receive()
            later.join()
            if self.reader.threads[-1] == self.network.readers[-1] == here:
                return
        raise AssertionError

    def stop(self) -> None:
        """End the threads, none of which may have met an error."""
        self.network.stop()
        self.group_queue.close()
        assert self.thread.stop()
        assert self.thread.error is None


@pytest.fixture
def between() -> Iterator[Between]:
    made = Between(Numbering())
    yield made
    made.stop()


def test_in_a_quiet_stream_the_application_thread_reads_and_decodes(between: Between) -> None:
    """On a busy host the network thread takes the stream back now and then, when this thread comes late."""
    between.receive_inline()
    before = len(between.reader.threads)
    for _ in range(20):
        between.receive_inline()
    slices = list(zip(between.network.readers[before:], between.reader.threads[before:], strict=True))
    here = threading.current_thread().name
    assert slices.count((here, here)) > len(slices) / 2


def test_the_decode_thread_decodes_while_the_application_is_busy(between: Between) -> None:
    between.network.send()
    wait_until(lambda: between.group_queue.byte_count > 0)
    between.network.send()
    wait_until(lambda: len(between.reader.threads) == 2)
    assert set(between.reader.threads) == {"decode"}
    assert between.receive() == 1


def test_collected_changes_are_queued_once_the_application_waits(between: Between) -> None:
    """The decode thread has collected the third group of a slice, and sleeps."""
    between.network.send()
    wait_until(lambda: between.reader.is_collecting)
    assert [between.receive() for _ in range(3)] == [1, 2, 3]


def test_an_application_that_does_not_read_delays_no_slice(between: Between) -> None:
    between.receive_inline()
    between.network.send()
    wait_until(lambda: between.reader.read_lsn == between.network.sent_lsn)
    assert between.network.readers[-1] == "network"
    assert between.reader.threads[-1] == "decode"


def test_the_rest_of_a_slice_is_decoded_while_its_first_changes_are_delivered(between: Between) -> None:
    between.receive_inline()
    made = between.reader.made
    between.network.send()
    assert between.receive() == made + 1
    wait_until(lambda: between.group_queue.byte_count > 0)
    assert [between.receive(), between.receive()] == [made + 2, made + 3]


class NoSocket:
    """An input from which nothing may be read."""

    def read_leased(self, timeout_s: float, collect: Callable[[], None]) -> bool:
        raise AssertionError(timeout_s, collect)


def test_only_the_last_group_of_a_slice_leaves_the_stream_with_the_application_thread() -> None:
    """The socket must be read, and the rest decoded, while the first changes of a large transaction are delivered."""
    ring, lease, progress = Ring(1 << 20, START_LSN), StreamLease(), Progress(received_lsn=START_LSN)
    queue = GroupQueue(4000, lease.woken)
    position = Position(TimelineId(1), START_LSN, 0)
    reader = GroupReader(queue, lease, NoSocket(), DeliveryPacing(0, 0))
    reader.decode_with(
        DecodeThread(ring, lease, Numbering(), queue, delivered=position, progress=progress, idle_pointer_s=1000.0)
    )
    wal_slice = WalSlice(START_LSN, bytes(100), TimelineId(1))
    progress.receive(wal_slice.end_lsn)
    ring.put(wal_slice)
    states = []
    for _ in range(FULL_OF_SLICE + 1):
        lease.offer()
        lease.drained()
        assert reader.receive(DEADLINE_S) is not None
        states.append(lease.state)
    assert states == [LeaseState.THREADED] * FULL_OF_SLICE + [LeaseState.OFFERED]


def test_wal_that_arrived_after_the_last_group_is_decoded_before_anyone_waits_for_more() -> None:
    """The thread that continues the decoder is not the one that made the group, and its signal may be used up."""
    ring, lease, progress = Ring(1 << 20, START_LSN), StreamLease(), Progress(received_lsn=START_LSN)
    queue = GroupQueue(4000, lease.woken)
    position = Position(TimelineId(1), START_LSN, 0)
    reader = GroupReader(queue, lease, NoSocket(), DeliveryPacing(0, 0))
    reader.decode_with(
        DecodeThread(ring, lease, Numbering(), queue, delivered=position, progress=progress, idle_pointer_s=1000.0)
    )
    for start_lsn in (START_LSN, Lsn(START_LSN + 100)):
        wal_slice = WalSlice(start_lsn, bytes(100), TimelineId(1))
        progress.receive(wal_slice.end_lsn)
        ring.put(wal_slice)
        for _ in range(FULL_OF_SLICE + 1):
            lease.offer()
            lease.drained()
            assert reader.receive(DEADLINE_S) is not None
        assert lease.recall(0)


def test_groups_have_one_order_whichever_thread_decodes(between: Between) -> None:
    draw = random.Random(1)
    between.network.is_offering = True

    def send_all() -> None:
        for pause_s in [draw.choice((0.0, 0.0, 0.0001, 0.002, 0.02)) for _ in range(SLICES)]:
            between.network.send()
            let_pass(pause_s, "random pauses of the sender")

    sender = threading.Thread(target=send_all)
    sender.start()
    received: list[ChangeGroup] = []
    while sender.is_alive() or between.reader.read_lsn < between.network.sent_lsn or between.group_queue.byte_count:
        group = between.group_reader.receive(0.05)
        received += [group] if group is not None else []
        let_pass(draw.choice((0.0, 0.0, 0.0001, 0.003, 2 * CHECK_S)), "random pauses of the receiver")
    received += iter(partial(between.group_reader.receive, 0.05), None)
    numbers = [group.last.position.commit_lsn - NUMBERS_FROM for group in received]
    assert numbers == list(range(1, between.reader.made + 1))
    assert len(set(between.reader.threads)) == 2
    assert len(set(between.network.readers)) == 2


class BlockingCodec(Numbering):
    """Blocks in the slices that the application thread decodes, until it is released."""

    def __init__(self, application: str) -> None:
        super().__init__()
        self.inside, self.leave = threading.Event(), threading.Event()
        self._application = application

    def feed(self, wal_slice: WalSlice) -> Iterator[ChangeGroup]:
        if threading.current_thread().name == self._application:
            self.inside.set()
            assert self.leave.wait(DEADLINE_S)
        yield from super().feed(wal_slice)


def test_the_network_thread_reads_while_the_application_thread_decodes_for_long() -> None:
    reader = BlockingCodec("application")
    between = Between(reader)
    received: list[int] = []
    stopping = threading.Event()

    def receive_all() -> None:
        while not stopping.is_set():
            group = between.group_reader.receive(CHECK_S)
            received.extend([] if group is None else [group.last.position.commit_lsn - NUMBERS_FROM])

    application = threading.Thread(target=receive_all, name="application", daemon=True)
    application.start()
    between.network.is_offering = True

    def is_inside() -> bool:
        """Send a slice; the decode thread has it instead if the stream was recalled at this moment."""
        if between.lease.state is LeaseState.READING:
            between.network.send()
        return reader.inside.wait(CHECK_S)

    wait_until(is_inside)
    by_decode_thread = len(reader.threads)
    for _ in range(5):
        between.network.send()
    wait_until(lambda: between.ring.write_lsn == between.network.sent_lsn)
    assert between.network.readers[-1] == "network"
    assert len(reader.threads) == by_decode_thread, "nobody decodes beside the application thread"
    reader.leave.set()
    wait_until(lambda: not (between.ring.used_bytes or reader.is_collecting) and len(received) == reader.made)
    stopping.set()
    application.join(DEADLINE_S)
    between.stop()
    assert received == list(range(1, reader.made + 1))


class Endless(Numbering):
    """Slices without changes for the consumer; while one is decoded the stream is recalled, and another one arrives."""

    def __init__(self, ring: Ring, progress: Progress, lease: StreamLease) -> None:
        super().__init__()
        self._ring, self._progress, self._lease = ring, progress, lease

    def feed(self, wal_slice: WalSlice) -> Iterator[ChangeGroup]:
        assert self._lease.recall(DEADLINE_S)
        assert wal_slice.start_lsn == START_LSN, "the lease did not end"
        self.put(wal_slice.end_lsn)
        yield from ()

    def put(self, start_lsn: Lsn) -> None:
        wal_slice = WalSlice(start_lsn, bytes(100), TimelineId(1))
        self._progress.receive(wal_slice.end_lsn)
        self._ring.put(wal_slice)
        self._read_lsn = start_lsn

    def maintain(self, wal_slice: WalSlice) -> None:
        assert wal_slice.end_lsn == self._read_lsn


def test_a_lease_ends_after_the_slice_during_which_the_stream_was_recalled() -> None:
    """The network thread may put slices as fast as they are decoded, and the application thread has other work."""
    ring, lease, progress = Ring(1 << 20, START_LSN), StreamLease(), Progress(received_lsn=START_LSN)
    queue, endless = GroupQueue(4000, lease.woken), Endless(ring, progress, lease)
    position = Position(TimelineId(1), START_LSN, 0)
    reader = GroupReader(queue, lease, NoSocket(), DeliveryPacing(0, 0))
    decoder = DecodeThread(ring, lease, endless, queue, delivered=position, progress=progress, idle_pointer_s=1000.0)
    reader.decode_with(decoder)
    endless.put(START_LSN)
    lease.offer()
    lease.drained()
    assert reader.receive(CHECK_S) is None
    assert lease.state is LeaseState.THREADED
    assert decoder.error is None
    assert ring.used_bytes == 100
    assert lease.arrived.wait(0)


NETWORK, DECODE, APPLICATION = "network", "decode", "application"
OWNERS = {  # which thread reads, and which decodes
    LeaseState.THREADED: (NETWORK, DECODE),
    LeaseState.DRAINING: (None, DECODE),
    LeaseState.OFFERED: (None, None),
    LeaseState.INLINE: (None, APPLICATION),
    LeaseState.READING: (APPLICATION, None),
    LeaseState.LEAVING: (APPLICATION, None),
    LeaseState.RECALLED: (NETWORK, APPLICATION),
}
REPORTERS = {LeaseEvent.OFFER: NETWORK, LeaseEvent.DRAINED: DECODE, LeaseEvent.RECALL: NETWORK}  # else the application


@pytest.mark.parametrize(("state", "event"), NEXT)
def test_an_event_ends_the_reading_or_decoding_of_the_thread_that_reports_it_only(
    state: LeaseState, event: LeaseEvent
) -> None:
    reporter = REPORTERS.get(event, APPLICATION)
    for before, after in zip(OWNERS[state], OWNERS[NEXT[state, event]], strict=True):
        assert before in (None, reporter, after)


@pytest.mark.parametrize("state", LeaseState)
def test_from_each_state_a_recall_leads_to_the_threads_once_the_application_has_left(state: LeaseState) -> None:
    after = NEXT.get((state, LeaseEvent.RECALL), state)
    assert LeaseEvent.RECALL not in {event for of, event in NEXT if of is after}
    for event in (LeaseEvent.HAVE_READ, LeaseEvent.LEAVE):  # one of the two ends the lease
        after = NEXT.get((after, event), after)
    assert after is LeaseState.THREADED


def test_the_socket_is_recalled_while_the_application_decodes_and_decoding_after_that() -> None:
    lease = StreamLease()
    lease.offer()
    assert not lease.enter()  # the decode thread still decodes
    permissions = [(lease.may_decode, lease.may_offer)]
    lease.drained()
    assert lease.enter()
    assert lease.recall(0)
    assert not lease.begin_read()
    assert not lease.recall_all(0.01)
    permissions.append((lease.may_decode, lease.may_offer))
    lease.leave()
    assert lease.recall_all(0)
    assert not lease.enter()
    permissions.append((lease.may_decode, lease.may_offer))
    assert permissions == [(True, False), (False, False), (True, True)]


def test_the_socket_is_recalled_only_after_the_read_which_then_ends_the_lease() -> None:
    lease = StreamLease()
    lease.offer()
    lease.drained()
    assert lease.enter()
    assert lease.begin_read()
    assert not lease.recall(0.01)
    assert lease.arrived.wait(0)  # of the offer
    decodes = [lease.may_decode]
    assert not lease.end_read()
    assert lease.recall(0)
    decodes.append(lease.may_decode)
    assert decodes == [False, True]
    assert lease.arrived.wait(0)
