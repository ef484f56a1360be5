"""The ring compared with a list: all bytes are read, in order, within the limit."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import examples
from tidemark.engine.ring import RING_BYTES_MIN, SMALL_PUTS, TIMELINES_MAX, NoMemoryForRing, Ring, RingFull
from tidemark.model.errors import ConfigError, InternalError
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.wal.segments import SLICE_BYTES_MAX, WalSlice

START = Lsn((1 << 40) + 12345)
LARGE_BYTES = 256 << 20


@dataclass
class RingModel:
    """All bytes that were put and not released, each with its timeline."""

    content: list[tuple[int, int]] = field(default_factory=list)
    read_lsn: int = START
    timeline: int = 1
    high: int = 0


class RingBesideList(RuleBasedStateMachine):
    """Puts, peeks and releases in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(RING_BYTES_MIN, START)
        self.model = RingModel()

    @rule(length=st.one_of(st.integers(0, 300), st.integers(0, SLICE_BYTES_MAX)), seed=st.integers(0, 255))
    def put(self, length: int, seed: int) -> None:
        data = bytes([(seed + number) % 251 for number in range(min(length, 16))]) * (length // 16 + 1)
        data = data[:length]
        wal_slice = WalSlice(Lsn(self.model.read_lsn + len(self.model.content)), data, TimelineId(self.model.timeline))
        if len(self.model.content) + length > RING_BYTES_MIN:
            with pytest.raises(RingFull):
                self.ring.put(wal_slice)
            return
        self.ring.put(wal_slice)
        self.model.content += [(byte, self.model.timeline) for byte in data]
        self.model.high = max(self.model.high, len(self.model.content))

    @rule()
    def promote(self) -> None:
        self.model.timeline += 1

    @rule(share=st.floats(0, 1))
    def take(self, share: float) -> None:
        wal_slice = self.ring.peek()
        if not self.model.content:
            assert wal_slice is None
            return
        assert wal_slice is not None
        length = len(wal_slice.data)
        assert 0 < length <= SLICE_BYTES_MAX
        assert wal_slice.start_lsn == self.model.read_lsn
        expected = self.model.content[:length]
        assert bytes(wal_slice.data) == bytes(byte for byte, _ in expected)
        assert {timeline for _, timeline in expected} == {wal_slice.timeline}
        released = int(length * share)
        self.ring.release(released)
        del self.model.content[:released]
        self.model.read_lsn += released

    @precondition(lambda self: self.model.content)
    @rule()
    def drain(self) -> None:
        drained = bytearray()
        while (wal_slice := self.ring.peek()) is not None:
            drained += wal_slice.data
            self.ring.release(len(wal_slice.data))
        assert bytes(drained) == bytes(byte for byte, _ in self.model.content)
        self.model.read_lsn += len(self.model.content)
        self.model.content.clear()

    @precondition(lambda self: self.model.content)
    @rule(share=st.floats(0, 1, exclude_max=True))
    def put_a_timeline(self, share: float) -> None:
        at = int(len(self.model.content) * share)
        assert self.ring.timeline_at(Lsn(self.model.read_lsn + at)) == self.model.content[at][1]
        for outside in (self.model.read_lsn - 1, self.model.read_lsn + len(self.model.content)):
            assert self.ring.timeline_at(Lsn(outside)) is None

    @invariant()
    def counts_agree(self) -> None:
        assert self.ring.used_bytes == len(self.model.content)
        assert self.ring.free_bytes == RING_BYTES_MIN - len(self.model.content)
        assert self.ring.high_water_bytes == self.model.high


RingBesideList.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25)
test_the_ring_is_a_bounded_queue_of_bytes = RingBesideList.TestCase


@pytest.mark.feature("I04")
@pytest.mark.feature("I05")
def test_two_threads_pass_more_than_the_capacity_through_in_order() -> None:
    ring = Ring(RING_BYTES_MIN, START)
    total = 40 * RING_BYTES_MIN
    pattern = bytes(range(251)) * 600

    def produce() -> None:
        at = 0
        while at < total:
            length = min(SLICE_BYTES_MAX, total - at, 1 + at * 7 % SLICE_BYTES_MAX)
            data = pattern[at % 251 : at % 251 + length]
            wal_slice = WalSlice(Lsn(START + at), data, TimelineId(1 + at // (10 * RING_BYTES_MIN)))
            try:
                ring.put(wal_slice)
            except RingFull:
                continue
            at += length

    producer = threading.Thread(target=produce)
    producer.start()
    at = 0
    while at < total:
        wal_slice = ring.peek()
        if wal_slice is not None:
            assert wal_slice.start_lsn == START + at
            assert wal_slice.data == pattern[at % 251 : at % 251 + len(wal_slice.data)]
            at += len(wal_slice.data)
            ring.release(len(wal_slice.data))
    producer.join()
    assert ring.high_water_bytes <= RING_BYTES_MIN


def test_a_ring_uses_memory_only_for_what_was_written_to_it() -> None:
    before = anonymous_bytes()
    ring = Ring(LARGE_BYTES, START)
    for number in range(8):
        ring.put(WalSlice(Lsn(START + number * SLICE_BYTES_MAX), b"x" * SLICE_BYTES_MAX, TimelineId(1)))
    assert anonymous_bytes() - before < LARGE_BYTES // 8


def test_a_ring_that_is_emptied_again_and_again_uses_few_pages() -> None:
    before = anonymous_bytes()
    ring = Ring(LARGE_BYTES, START)
    for number in range(LARGE_BYTES // SLICE_BYTES_MAX // 4):
        ring.put(WalSlice(Lsn(START + number * SLICE_BYTES_MAX), b"x" * SLICE_BYTES_MAX, TimelineId(1)))
        ring.release(SLICE_BYTES_MAX)
    assert anonymous_bytes() - before < LARGE_BYTES // 32


def test_the_pages_of_a_burst_are_returned_when_later_puts_do_not_need_them() -> None:
    before, ring = anonymous_bytes(), Ring(LARGE_BYTES, START)
    piece = b"x" * SLICE_BYTES_MAX
    for _ in range(LARGE_BYTES // SLICE_BYTES_MAX):
        ring.put(WalSlice(ring.write_lsn, piece, TimelineId(1)))
    assert anonymous_bytes() - before > LARGE_BYTES * 3 // 4
    ring.release(ring.used_bytes)
    for number in range(SMALL_PUTS + 1):
        ring.put(WalSlice(ring.write_lsn, b"%09d" % number, TimelineId(1)))
        wal_slice = ring.peek()
        assert wal_slice is not None
        assert bytes(wal_slice.data) == b"%09d" % number
        ring.release(len(wal_slice.data))
    assert anonymous_bytes() - before < LARGE_BYTES // 4
    ring.put(WalSlice(ring.write_lsn, piece, TimelineId(1)))
    wal_slice = ring.peek()
    assert wal_slice is not None
    assert bytes(wal_slice.data) == piece


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) << 10


def test_a_ring_accepts_exactly_its_capacity() -> None:
    ring = Ring(RING_BYTES_MIN, START)
    ring.put(WalSlice(START, bytes(RING_BYTES_MIN), TimelineId(1)))
    assert ring.free_bytes == 0
    with pytest.raises(RingFull):
        ring.put(WalSlice(ring.write_lsn, b"x", TimelineId(1)))


def test_a_timeline_is_known_however_many_slices_it_came_in() -> None:
    ring = Ring(RING_BYTES_MIN, START)
    for number in range(TIMELINES_MAX + 1):
        ring.put(WalSlice(Lsn(START + number), b"x", TimelineId(7)))
    assert ring.timeline_at(START) == 7
    wal_slice = ring.peek()
    assert wal_slice is not None
    assert (wal_slice.timeline, len(wal_slice.data)) == (7, TIMELINES_MAX + 1)


def test_a_slice_that_does_not_follow_is_refused() -> None:
    ring = Ring(RING_BYTES_MIN, START)
    with pytest.raises(InternalError, match="does not follow the ring's end"):
        ring.put(WalSlice(Lsn(START + 8), b"x", TimelineId(1)))


def test_more_than_the_content_cannot_be_released() -> None:
    ring = Ring(RING_BYTES_MIN, START)
    ring.put(WalSlice(START, b"abc", TimelineId(1)))
    with pytest.raises(InternalError):
        ring.release(4)


def test_a_ring_too_small_for_a_few_messages_is_refused() -> None:
    with pytest.raises(ConfigError):
        Ring(RING_BYTES_MIN - 1, START)


def test_a_ring_larger_than_the_address_space_is_refused_with_its_key() -> None:
    with pytest.raises(NoMemoryForRing, match=f"a ring of {1 << 60} bytes cannot be reserved: .") as refused:
        Ring(1 << 60, Lsn(0))
    assert "ring.bytes_max" in refused.value.hint
