"""The states of an engine: exactly the listed transitions succeed."""

import itertools

import pytest

from tidemark.engine.lifecycle import NEXT, EngineState, IllegalTransition, change

LEGAL = {
    ("created", "preparing"),
    ("created", "stopped"),
    ("preparing", "starting"),
    ("preparing", "closing"),
    ("starting", "running"),
    ("starting", "closing"),
    ("running", "draining"),
    ("draining", "closing"),
    ("closing", "stopped"),
}


@pytest.mark.feature("A24")
@pytest.mark.parametrize(
    ("before", "after"), list(itertools.product(EngineState, EngineState)), ids=lambda state: state.name
)
def test_exactly_the_listed_transitions_succeed(before: EngineState, after: EngineState) -> None:
    if (before.value, after.value) in LEGAL:
        assert change(before, before, after) is after
    else:
        with pytest.raises(IllegalTransition, match=f"is {before.value}: it cannot change to {after.value}"):
            change(before, before, after)


@pytest.mark.feature("A24")
def test_a_transition_from_another_state_than_the_expected_one_is_refused() -> None:
    with pytest.raises(IllegalTransition, match="is draining"):
        change(EngineState.DRAINING, EngineState.RUNNING, EngineState.DRAINING)
    with pytest.raises(IllegalTransition, match="is draining"):
        change(EngineState.DRAINING, EngineState.STARTING, EngineState.CLOSING)


@pytest.mark.feature("A25")
def test_stopped_is_final_and_each_state_reaches_it() -> None:
    assert NEXT[EngineState.STOPPED] == frozenset()
    for state in EngineState:
        reached = {state}
        while more := {after for before in reached for after in NEXT[before]} - reached:
            reached |= more
        assert EngineState.STOPPED in reached
    assert len(EngineState) == 7
