"""The pacing of deliveries, with a clock that the test controls."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidemark.engine.batching import BURST, BUSY_KNOWN_S, SPACING_S, DeliveryPacing
from tidemark.engine.host_load import BUSY_FROM, BUSY_UNTIL, WINDOW_S, HostLoad

RATE_MAX = 100.0
INTERVAL_S = 1 / RATE_MAX
FOREVER_S = 1e6
EPSILON_S = 1e-6
GAPS_S = st.lists(st.floats(0, 0.1) | st.floats(0, 0.002), min_size=1, max_size=300)


def delivered_at(pacing: DeliveryPacing, gaps_s: list[float]) -> list[tuple[float, float]]:
    """Return the time of each delivery, and the time at which its first commit arrived, for commits with these gaps."""
    made: list[tuple[float, float]] = []
    now_s, free_s = 1000.0, 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        if now_s < free_s:
            continue  # part of the delivery that still waits
        free_s = now_s + pacing.wait_s(now_s)
        pacing.delivered(free_s)
        made.append((free_s, now_s))
    return made


@given(GAPS_S)
def test_the_rate_of_deliveries_is_bounded_over_any_time(gaps_s: list[float]) -> None:
    times_s = [time_s for time_s, _ in delivered_at(DeliveryPacing(RATE_MAX, FOREVER_S), gaps_s)]
    for first, from_s in enumerate(times_s):
        for last in range(first, len(times_s)):
            most = RATE_MAX * (times_s[last] - from_s + EPSILON_S) + BURST + 1
            assert last - first + 1 <= most


@given(GAPS_S, st.floats(0, 0.05))
def test_no_commit_waits_longer_than_the_linger_time(gaps_s: list[float], linger_s: float) -> None:
    for delivered_s, arrived_s in delivered_at(DeliveryPacing(RATE_MAX, linger_s), gaps_s):
        assert delivered_s - arrived_s <= linger_s + EPSILON_S


@given(GAPS_S)
def test_after_a_quiet_moment_a_commit_is_delivered_at_once(gaps_s: list[float]) -> None:
    pacing = DeliveryPacing(RATE_MAX, FOREVER_S)
    last_s, _ = delivered_at(pacing, gaps_s)[-1]
    assert pacing.wait_s(last_s + INTERVAL_S + EPSILON_S) == 0.0


@given(GAPS_S, st.floats(0, 0.05))
def test_deliveries_faster_than_the_rate_do_not_prolong_the_quiet_time(gaps_s: list[float], linger_s: float) -> None:
    """A linger time shorter than the interval of the rate permits them, and full groups never wait."""
    pacing = DeliveryPacing(RATE_MAX, linger_s)
    last_s, _ = delivered_at(pacing, gaps_s)[-1]
    for _ in gaps_s:
        pacing.delivered(last_s)
    assert pacing.wait_s(last_s) <= linger_s
    assert pacing.wait_s(last_s + linger_s + EPSILON_S) == 0.0


@given(GAPS_S, st.floats(SPACING_S, 0.05))
def test_two_deliveries_are_never_closer_than_the_spacing(gaps_s: list[float], linger_s: float) -> None:
    times_s = [time_s for time_s, _ in delivered_at(DeliveryPacing(RATE_MAX, linger_s), gaps_s)]
    assert all(later_s - earlier_s >= SPACING_S - EPSILON_S for earlier_s, later_s in pairwise(times_s))


@given(GAPS_S)
def test_commits_below_the_rate_never_wait(gaps_s: list[float]) -> None:
    for delivered_s, arrived_s in delivered_at(
        DeliveryPacing(RATE_MAX, FOREVER_S), [gap + INTERVAL_S for gap in gaps_s]
    ):
        assert delivered_s == arrived_s


@given(GAPS_S)
def test_without_a_rate_each_commit_is_delivered_at_once(gaps_s: list[float]) -> None:
    made = delivered_at(DeliveryPacing(0, FOREVER_S), gaps_s)
    assert all(delivered_s == arrived_s for delivered_s, arrived_s in made)
    assert len(made) == len(gaps_s)


def test_commits_that_arrive_close_together_are_delivered_together() -> None:
    made = delivered_at(DeliveryPacing(RATE_MAX, FOREVER_S), [0.0005] * 2000)  # 2,000 commits a second for a second
    assert RATE_MAX * 0.9 <= len(made) <= RATE_MAX + BURST + 2


class WaitedTime:
    """A counter of the time in which tasks waited, and its clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.waited_s: float | None = 5.0

    def counted_s(self) -> float | None:
        return self.waited_s

    def let_pass(self, seconds: float, share: float) -> None:
        self.now_s += seconds
        assert self.waited_s is not None
        self.waited_s += share * seconds

    def is_busy_after(self, load: HostLoad, share: float, seconds: float = WINDOW_S) -> bool:
        self.let_pass(seconds, share)
        assert self.now_s + EPSILON_S >= load.due_s
        load.measure(self.now_s)
        return load.is_busy


def busy_load() -> HostLoad:
    """Return the load of a host that stays busy."""
    load = HostLoad(lambda: None)
    load.is_busy, load.due_s = True, FOREVER_S
    return load


def test_a_host_is_busy_from_one_share_of_waiting_until_a_smaller_one() -> None:
    waiting = WaitedTime()
    load = HostLoad(waiting.counted_s)
    load.measure(waiting.now_s)
    assert not load.is_busy, "the first reading has none to compare with"
    shares = [BUSY_FROM - 0.01, BUSY_FROM + 0.01, BUSY_UNTIL + 0.01, BUSY_UNTIL - 0.01, BUSY_FROM - 0.01]
    assert [waiting.is_busy_after(load, share) for share in shares] == [False, True, True, False, False]
    assert not waiting.is_busy_after(load, BUSY_FROM / 100, seconds=100 * WINDOW_S), "over all of the time"


def test_a_host_without_the_counter_is_never_busy_and_one_that_loses_it_no_longer() -> None:
    waiting = WaitedTime()
    load = HostLoad(waiting.counted_s)
    load.measure(waiting.now_s)
    assert waiting.is_busy_after(load, 1.0)
    waiting.waited_s = None
    load.measure(waiting.now_s + WINDOW_S)
    assert not load.is_busy
    waiting.waited_s = 1e6
    load.measure(waiting.now_s + 2 * WINDOW_S)
    assert not load.is_busy


@given(GAPS_S, st.floats(SPACING_S, 0.05))
def test_on_a_busy_host_deliveries_are_the_busy_linger_time_apart_and_none_waits_longer(
    gaps_s: list[float], busy_linger_s: float
) -> None:
    made = delivered_at(DeliveryPacing(200.0, 0.005, busy_linger_s, busy_load()), gaps_s)
    assert all(later - earlier >= busy_linger_s - EPSILON_S for (earlier, _), (later, _) in pairwise(made))
    assert all(delivered_s - arrived_s <= max(busy_linger_s, 0.005) + EPSILON_S for delivered_s, arrived_s in made)


@given(GAPS_S)
def test_a_busy_host_makes_no_difference_without_a_busy_linger_time_or_without_a_rate(gaps_s: list[float]) -> None:
    for rate_max, linger_s, busy_linger_s in ((200.0, 0.005, 0.0), (200.0, 0.0, 0.02), (0.0, 0.005, 0.02)):
        busy = DeliveryPacing(rate_max, linger_s, busy_linger_s, busy_load())
        assert delivered_at(busy, gaps_s) == delivered_at(DeliveryPacing(rate_max, linger_s), gaps_s)


def test_a_host_that_is_no_longer_busy_delivers_as_before() -> None:
    waiting = WaitedTime()
    pacing = DeliveryPacing(200.0, 0.005, 0.02, HostLoad(waiting.counted_s))
    for share in (0.0, 1.0, 0.0):
        waiting.let_pass(WINDOW_S, share)
        pacing.delivered(waiting.now_s)
        assert pacing.is_busy == bool(share)
    assert pacing.wait_s(waiting.now_s) < SPACING_S + EPSILON_S


def test_a_host_does_not_count_as_busy_long_after_the_last_delivery() -> None:
    pacing = DeliveryPacing(200.0, 0.005, 0.02, busy_load())
    pacing.delivered(1000.0)
    assert pacing.is_busy_at(1000.0 + BUSY_KNOWN_S)
    assert not pacing.is_busy_at(1000.0 + BUSY_KNOWN_S + EPSILON_S)
