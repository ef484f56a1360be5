"""The decode thread as its owner observes it."""

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.support.forged import groups
from tidemark.engine.progress import Progress
from tidemark.engine.ring import Ring
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId
from tidemark.model.position import Position
from tidemark.runtime.capture.decoding import DecodeThread, WalReader
from tidemark.runtime.capture.group_queue import GroupQueue
from tidemark.runtime.capture.signal import Signal
from tidemark.wal.segments import WalSlice


class Stuck(WalReader):
    """A reader that blocks in its slice until it is released, and then fails."""

    def __init__(self) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self.cpu_s = 0.0

    def feed(self, segment: WalSlice) -> Iterator[ChangeGroup]:
        self.inside.set()
        assert self.leave.wait(30)
        raise ZeroDivisionError(segment.start_lsn)


def test_a_stop_returns_whether_the_thread_may_still_write_to_the_journal() -> None:
    ring, reader, arrived = Ring(1 << 20, Lsn(8192)), Stuck(), Signal()
    thread = DecodeThread(
        ring,
        arrived,
        reader,
        GroupQueue(1 << 16, arrived),
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


class Numbering(WalReader):
    """Emits two groups of a slice at once and keeps a third pending; records the thread."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.threads: list[str] = []
        self._read_lsn = START_LSN
        self._is_gathering = False
        self.made = 0

    def feed(self, segment: WalSlice) -> Iterator[ChangeGroup]:
        self.threads.append(threading.current_thread().name)
        for _ in range(FULL_OF_SLICE):
            yield self._next()
        self._is_gathering = True
        self._read_lsn = segment.end_lsn

    def flush(self, *, also_empty: bool) -> ChangeGroup | None:
        assert not also_empty
        was_gathering, self._is_gathering = self._is_gathering, False
        return self._next() if was_gathering else None

    def tend(self, segment: WalSlice) -> None:
        assert segment.end_lsn == self._read_lsn

    @property
    def is_gathering(self) -> bool:
        return self._is_gathering

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


class Between:
    """A ring, a decode thread and a queue; this thread is the network's, and the test's is the application thread."""

    def __init__(self, reader: Numbering) -> None:
        self.ring, self.reader, self.arrived = Ring(1 << 20, START_LSN), reader, Signal()
        self.progress = Progress(received_lsn=START_LSN)
        self.group_queue = GroupQueue(4000, self.arrived)
        self.thread = DecodeThread(
            self.ring,
            self.arrived,
            self.reader,
            self.group_queue,
            delivered=Position(TimelineId(1), START_LSN, 0),
            progress=self.progress,
            idle_pointer_s=1000.0,
        )
        self.thread.start()

    def receive(self) -> None:
        """Put a slice, as the network thread does."""
        segment = WalSlice(self.ring.write_lsn, bytes(100), TimelineId(1))
        self.progress.receive(segment.end_lsn)
        self.ring.put(segment)
        self.arrived.set()

    def take(self, timeout_s: float = DEADLINE_S) -> int:
        """Get a group; return its number."""
        group = self.group_queue.take(timeout_s)
        assert group is not None
        return group.last.position.commit_lsn - NUMBERS_FROM

    def stop(self) -> None:
        """End the decode thread, which must not have failed."""
        self.group_queue.close()
        assert self.thread.stop()
        assert self.thread.error is None


@pytest.fixture
def between() -> Iterator[Between]:
    made = Between(Numbering())
    yield made
    made.stop()


def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(DEADLINE_S * 100):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError


def test_who_waits_for_changes_decodes_them_by_itself(between: Between) -> None:
    for number in range(20):  # sometimes the decode thread polls at that moment
        later = threading.Timer(0.01, between.receive)
        later.start()
        for which in range(FULL_OF_SLICE + 1):
            assert between.take() == number * (FULL_OF_SLICE + 1) + which + 1
        later.join()
    assert between.reader.threads.count(threading.current_thread().name) > len(between.reader.threads) // 2


def test_decoding_goes_on_while_the_application_is_busy(between: Between) -> None:
    between.receive()
    eventually(lambda: between.group_queue.byte_count > 0)
    between.receive()
    eventually(lambda: len(between.reader.threads) == 2)
    assert set(between.reader.threads) == {"decode"}
    assert between.take() == 1


def test_the_rest_of_a_slice_is_decoded_while_its_first_changes_are_delivered(between: Between) -> None:
    later = threading.Timer(0.2, between.receive)
    later.start()
    assert between.take() == 1
    later.join()
    eventually(lambda: between.group_queue.byte_count > 0)
    assert [between.take(), between.take()] == [2, 3]


def test_the_order_is_the_same_for_both_decoding_threads(between: Between) -> None:
    draw = random.Random(1)
    pauses = [draw.choice((0.0, 0.0, 0.0001, 0.002)) for _ in range(SLICES)]

    def receive_all() -> None:
        for pause_s in pauses:
            between.receive()
            threading.Event().wait(pause_s)

    network = threading.Thread(target=receive_all)
    network.start()
    taken: list[ChangeGroup] = []
    while network.is_alive() or between.reader.read_lsn < between.ring.write_lsn or between.group_queue.byte_count:
        group = between.group_queue.take(0.05)
        taken += [group] if group is not None else []
        threading.Event().wait(draw.choice((0.0, 0.0, 0.0001, 0.003)))
    taken += iter(partial(between.group_queue.take, 0.05), None)
    numbers = [group.last.position.commit_lsn - NUMBERS_FROM for group in taken]
    assert numbers == list(range(1, between.reader.made + 1))
    assert len(set(between.reader.threads)) == 2


class Halting(Numbering):
    """Emits no group for its first slice, and blocks in it until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.leave = threading.Event(), threading.Event()

    def feed(self, segment: WalSlice) -> Iterator[ChangeGroup]:
        if not self.inside.is_set():
            self.inside.set()
            assert self.leave.wait(30)
            self._read_lsn = segment.end_lsn
        else:
            yield from super().feed(segment)


class Socket:
    """A source of WAL that any thread can read."""

    def __init__(self, bring: Callable[[], None]) -> None:
        self._bring = bring

    def bring(self, timeout_s: float) -> bool:
        """Read it."""
        assert timeout_s > 0
        self._bring()
        return True


def test_who_could_not_decode_comes_to_the_socket_once_the_other_is_done() -> None:
    reader = Halting()
    between = Between(reader)
    between.receive()
    assert reader.inside.wait(30)
    between.group_queue.wal_source = Socket(between.receive)
    later = threading.Timer(0.2, reader.leave.set)
    later.start()
    assert between.take() == 1
    later.join()
    between.stop()
