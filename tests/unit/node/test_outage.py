"""How long an outage of a node is tolerated by commands that follow it, by a clock of the test."""

import pytest

from tidemark.runtime.seed.steady_stream import RECONNECT_S_MAX, REPLAY_S_MAX, Outage

STEP_S = 20.0


@pytest.mark.parametrize(("is_behind", "limit_s"), [(True, REPLAY_S_MAX), (False, RECONNECT_S_MAX)])
def test_an_outage_for_one_reason_is_reported_once_and_tolerated_up_to_its_limit(
    limit_s: float, *, is_behind: bool
) -> None:
    outage = Outage()
    assert outage.failed(STEP_S, is_behind=is_behind)
    assert not outage.failed(STEP_S + limit_s, is_behind=is_behind)
    assert not outage.is_over_limit(STEP_S + limit_s)
    assert outage.is_over_limit(STEP_S + limit_s + 1)


def test_changes_of_the_reason_are_reported_and_do_not_extend_the_limit() -> None:
    outage, now_s = Outage(), 0.0
    while not outage.is_over_limit(now_s):
        now_s += STEP_S
        assert outage.failed(now_s, is_behind=now_s % (2 * STEP_S) > 0)
        assert now_s <= STEP_S + REPLAY_S_MAX + STEP_S
    assert now_s == STEP_S + REPLAY_S_MAX + STEP_S


def test_a_standby_that_was_behind_may_be_unreachable_as_long_as_any_node() -> None:
    outage = Outage()
    outage.failed(0.0, is_behind=True)
    outage.failed(REPLAY_S_MAX / 2, is_behind=False)
    assert not outage.is_over_limit(REPLAY_S_MAX / 2 + RECONNECT_S_MAX)
    assert outage.is_over_limit(REPLAY_S_MAX / 2 + RECONNECT_S_MAX + 1)


def test_a_received_event_begins_the_time_again() -> None:
    outage = Outage()
    outage.failed(0.0, is_behind=True)
    outage.ended()
    assert outage.failed(REPLAY_S_MAX, is_behind=True)
    assert not outage.is_over_limit(2 * REPLAY_S_MAX)
    assert outage.is_over_limit(2 * REPLAY_S_MAX + 1)
