"""The pacing of deliveries, with a clock that the test controls."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidemark.engine.batching import BURST, SPACING_S, DeliveryPacing

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
