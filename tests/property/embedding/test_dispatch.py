"""Work that finishes in any order: only a contiguous prefix is settled, lanes keep their order, barriers are alone."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.engine.pool.dispatch import Dispatch, Dispatched

LANES = st.none() | st.integers(0, 3)
UNITS = st.lists(st.lists(LANES, max_size=5), max_size=12)
CHOICES = st.lists(st.integers(0, 1 << 16), min_size=1, max_size=200)
WORKERS = st.integers(1, 5)


@dataclass
class ModelPool:
    """Runs parts in an order that `choices` selects; the numbers of parts are those of the stream."""

    units: Sequence[Sequence[Hashable | None]]
    workers: int
    choices: Sequence[int]
    started: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dispatch: Dispatch[int] = Dispatch()
        self.running: list[Dispatched[int]] = []
        self.preparing: list[Dispatched[int]] = []
        self.prepared: list[int] = []
        self.lanes: list[Hashable | None] = [lane for unit in self.units for lane in unit]
        self.ends = [sum(len(unit) for unit in self.units[: number + 1]) for number in range(len(self.units))]
        self.most_running = 0
        self.added = 0
        self._step = 0

    def run(self, steps: int | None = None) -> None:
        """Add, start and finish until all is done, or a kill after `steps`."""
        while self.added < len(self.units) or not self.dispatch.is_empty:
            if steps is not None and self._step >= steps:
                return
            self._act()
            self.check()

    def _act(self) -> None:
        choice = self.choices[self._step % len(self.choices)]
        self._step += 1
        if self.added < len(self.units) and (choice % 3 == 0 or self.dispatch.is_empty):
            start = self.ends[self.added - 1] if self.added else 0
            parts = [(start + number, lane) for number, lane in enumerate(self.units[self.added])]
            self.dispatch.add(parts, 10)
            self.added += 1
        elif len(self.running) + len(self.preparing) < self.workers and (taken := self.dispatch.take()) is not None:
            self.running.append(taken)
            self.started.append(taken.part)
            self.most_running = max(self.most_running, len(self.running))
        elif self.preparing and choice % 2:
            self.dispatch.prepared(self.preparing.pop(choice % len(self.preparing)))
        elif len(self.running) + len(self.preparing) < self.workers and self._takes_ahead():
            pass
        elif self.running:
            done = self.running.pop(choice % len(self.running))
            self.finished.append(done.part)
            self.dispatch.finish(done)
        elif self.preparing:
            self.dispatch.prepared(self.preparing.pop())

    def _takes_ahead(self) -> bool:
        ahead = self.dispatch.take_ahead(self.workers)
        if ahead is None:
            return False
        assert ahead.part not in (*self.started, *self.prepared)
        self.preparing.append(ahead)
        self.prepared.append(ahead.part)
        assert len({*self.prepared} - {*self.started}) <= self.workers
        return True

    def check(self) -> None:
        """Compare what is settled with the definition: each unit before it has only finished parts."""
        finished = set(self.finished)
        settled = self.dispatch.settled_units
        end = self.ends[settled - 1] if settled else 0
        assert finished >= set(range(end))
        if settled < self.added:
            assert not finished >= set(range(self.ends[settled]))
        assert self.dispatch.unsettled_bytes == 10 * (self.added - settled)
        assert not {id(each) for each in self.preparing} & {id(each) for each in self.running}
        running = [dispatched.lane for dispatched in self.running]
        assert len(set(running)) == len(running)
        assert None not in running or len(running) == 1


@pytest.mark.feature("A22")
@given(units=UNITS, workers=WORKERS, choices=CHOICES, steps=st.integers(0, 60))
@settings(max_examples=300)
def test_after_a_kill_at_any_point_what_is_settled_is_finished_and_the_rest_is_offered_again(
    units: Sequence[Sequence[Hashable | None]], workers: int, choices: Sequence[int], steps: int
) -> None:
    killed = ModelPool(units, workers, choices)
    killed.run(steps)
    settled = killed.dispatch.settled_units
    again = ModelPool(units[settled:], workers, choices)
    again.run()
    first = killed.ends[settled - 1] if settled else 0
    seen = {*killed.finished, *(first + part for part in again.finished)}
    assert seen == set(range(len(killed.lanes)))
    assert sorted(again.finished) == list(range(len(killed.lanes) - first))


@pytest.mark.feature("A05")
@given(units=UNITS, workers=WORKERS, choices=CHOICES)
@settings(max_examples=300)
def test_parts_of_one_lane_keep_their_order_and_nothing_passes_a_barrier(
    units: Sequence[Sequence[Hashable | None]], workers: int, choices: Sequence[int]
) -> None:
    pool = ModelPool(units, workers, choices)
    pool.run()
    for lane in {lane for lane in pool.lanes if lane is not None}:
        assert (own := [part for part in pool.finished if pool.lanes[part] == lane]) == sorted(own)
    for barrier in (number for number, lane in enumerate(pool.lanes) if lane is None):
        place = pool.started.index(barrier)
        assert all(part < barrier for part in pool.started[:place])
        assert all(part > barrier for part in pool.started[place + 1 :])


@pytest.mark.feature("A03")
@given(sizes=st.lists(st.integers(0, 5), max_size=12), workers=WORKERS, choices=CHOICES)
def test_parts_of_a_single_lane_finish_in_the_order_of_the_stream_for_any_number_of_workers(
    sizes: Sequence[int], workers: int, choices: Sequence[int]
) -> None:
    pool = ModelPool([[0] * size for size in sizes], workers, choices)
    pool.run()
    assert pool.finished == list(range(sum(sizes)))
    assert pool.most_running <= 1


@pytest.mark.feature("A04")
def test_parts_of_different_lanes_overtake_a_slow_one() -> None:
    dispatch: Dispatch[str] = Dispatch()
    dispatch.add([("slow", 1)], 10)
    dispatch.add([("fast", 2)], 10)
    slow, fast = dispatch.take(), dispatch.take()
    assert slow is not None
    assert fast is not None
    dispatch.finish(fast)
    assert (dispatch.settled_units, dispatch.unsettled_bytes) == (0, 20)
    dispatch.finish(slow)
    assert (dispatch.settled_units, dispatch.unsettled_bytes, dispatch.is_empty) == (2, 0, True)


def test_parts_that_wait_for_their_turn_are_prepared_meanwhile_the_first_one_first() -> None:
    dispatch: Dispatch[int] = Dispatch()
    dispatch.add([(part, 0) for part in range(5)], 10)
    first = dispatch.take()
    assert first is not None
    ahead = [dispatch.take_ahead(2) for _ in range(3)]
    assert [each and each.part for each in ahead] == [1, 2, None]
    dispatch.finish(first)
    assert dispatch.take() is None  # it is being prepared
    assert ahead[0] is not None
    dispatch.prepared(ahead[0])
    assert dispatch.take() is ahead[0]
    next_ahead = dispatch.take_ahead(2)
    assert next_ahead is not None
    assert next_ahead.part == 3


def test_a_unit_without_parts_is_settled_with_those_before_it() -> None:
    dispatch: Dispatch[str] = Dispatch()
    dispatch.add([], 10)
    assert dispatch.settled_units == 1
    dispatch.add([("part", 1)], 10)
    dispatch.add([], 10)
    taken = dispatch.take()
    assert taken is not None
    assert dispatch.settled_units == 1
    dispatch.finish(taken)
    assert dispatch.settled_units == 3
