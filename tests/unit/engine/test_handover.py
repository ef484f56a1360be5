"""The stage table: complete, without dead ends, and equal to its drawing."""

import pytest

from tidemark.engine import handover
from tidemark.engine.handover import NEXT, REFUSED, STOPS, Effect, Event, Refused, move
from tidemark.model.mode import Mode, Role, Stage


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("event", list(Event))
def test_every_event_moves_every_stage_or_is_refused_with_the_reason(stage: Stage, event: Event) -> None:
    if (stage, event) in NEXT:
        assert (stage, event) not in REFUSED
        assert move(stage, event) is NEXT[stage, event]
    else:
        with pytest.raises(Refused, match=REFUSED[stage, event]) as caught:
            move(stage, event)
        assert stage.value in caught.value.hint


def test_every_stage_is_reached_from_every_other() -> None:
    for start in Stage:
        reached, frontier = {start}, [start]
        while frontier:
            stage = frontier.pop()
            new = {found.stage for (of, _), found in NEXT.items() if of is stage} - reached
            reached |= new
            frontier += new
        assert reached == set(Stage)


def test_a_process_that_stops_delivering_records_that_before_another_one_begins() -> None:
    for (stage, event), found in NEXT.items():
        leaves = stage.deliverer is Role.SIDECAR and found.stage is not stage
        by_itself = event is not Event.SIDECAR_LOST
        assert (Effect.STOP_CAPTURE in found.effects) == (leaves and by_itself), (stage, event)
        if event in STOPS:
            assert Effect.WRITE_STOP_MARKER in found.effects


def test_realtime_begins_only_after_a_return_a_stalled_archive_or_a_promotion() -> None:
    into = {(stage, event) for (stage, event), found in NEXT.items() if found.stage is Stage.REALTIME is not stage}
    assert into == {
        (Stage.RETURNED, Event.TAKEN_OVER),
        (Stage.ARCHIVE, Event.ARCHIVE_STALLED),
        (Stage.RETURNING, Event.ARCHIVE_STALLED),
        (Stage.FOLLOWER, Event.PROMOTED),
    }


def test_only_the_operator_ends_an_off_of_the_operator() -> None:
    out = {event for (stage, event), found in NEXT.items() if stage is Stage.HELD is not found.stage}
    assert out == {Event.OPERATOR_ON, Event.DEMOTED}
    for stage in Stage:
        if stage is not Stage.FOLLOWER:
            assert move(stage, Event.OPERATOR_OFF).stage is Stage.HELD


def test_exported_numbers_stay_and_every_mode_has_a_stage_of_its_name() -> None:
    assert {stage.name: stage.number for stage in Stage} == {
        "REALTIME": 1,
        "ARCHIVE": 2,
        "FOLLOWER": 3,
        "HELD": 4,
        "RETURNING": 5,
        "RETURNED": 6,
    }
    for mode in Mode:
        assert Stage(mode.value).mode is mode


def test_the_drawing_names_every_stage() -> None:
    assert handover.__doc__ is not None
    assert all(stage.name in handover.__doc__ for stage in Stage)
