"""Random events and crashes at every step: never two deliverers, a gap or a step back, and always progress."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.faults.handover_model import HandoverModel
from tidemark.engine.handover import STOPS, Event
from tidemark.model.mode import Stage

TIMES = st.integers(1, 5)
SEARCH = settings(max_examples=500, stateful_step_count=30)


class ModelCapture(RuleBasedStateMachine):
    """Any possible step may follow any other."""

    @initialize()
    def make(self) -> None:
        self.world = HandoverModel()

    @rule(choice=st.integers(0, 3), begun=st.integers(0, 2), ended=st.integers(1, 2))
    def work(self, choice: int, begun: int, ended: int) -> None:
        for _ in range(begun):
            self.world.begin()
        for _ in range(ended):
            self.world.commit(choice)

    @rule(recycled=st.booleans())
    def archive(self, recycled: bool) -> None:  # noqa: FBT001 - drawn
        self.world.archive()
        if recycled:
            self.world.recycle()

    @precondition(lambda self: self.world.sidecar is not None)
    @rule(times=TIMES, held=st.booleans())
    def sidecar_works(self, times: int, held: bool) -> None:  # noqa: FBT001 - drawn
        """Run the sidecar; `held`: it is stopped right before it commits its delivery."""
        for _ in range(times):
            self.world.sidecar_step()
        if held and self.world.sidecar is not None and self.world.sidecar.pending is None:
            self.world.sidecar_step()

    @precondition(lambda self: self.world.archiver is not None)
    @rule(times=TIMES | st.just(20), archived=st.booleans())
    def archiver_works(self, times: int, archived: bool) -> None:  # noqa: FBT001 - drawn
        if archived:
            self.world.archive()
        for _ in range(times):
            self.world.archiver_step()

    @precondition(lambda self: self.world.sidecar is not None)
    @rule(hung=st.booleans())
    def lose_sidecar(self, hung: bool) -> None:  # noqa: FBT001 - drawn
        if hung:
            self.world.kill_hung_sidecar()
        else:
            self.world.kill_sidecar()

    @precondition(lambda self: self.world.sidecar is None)
    @rule(noticed=st.booleans())
    def start_sidecar(self, noticed: bool) -> None:  # noqa: FBT001 - drawn
        if noticed:
            self.world.watchdog()
        self.world.start_sidecar()

    @precondition(lambda self: self.world.archiver is not None)
    @rule()
    def kill_archiver(self) -> None:
        self.world.kill_archiver()

    @precondition(lambda self: self.world.archiver is None)
    @rule()
    def start_archiver(self) -> None:
        self.world.start_archiver()

    @precondition(lambda self: self.world.sidecar is not None and self.world.state.stage is Stage.ARCHIVE)
    @rule(marked=st.booleans())
    def want_return(self, marked: bool) -> None:  # noqa: FBT001 - drawn
        self.world.want_return()
        if marked:
            self.world.write_marker()

    @precondition(lambda self: self.world.sidecar is not None and self.world.sidecar.marker_due)
    @rule()
    def write_marker(self) -> None:
        self.world.write_marker()

    @precondition(lambda self: self.world.state.stage in (Stage.ARCHIVE, Stage.RETURNING))
    @rule(times=TIMES)
    def archive_stalls(self, times: int) -> None:
        self.world.archive_stalls()
        for _ in range(times):
            self.world.sidecar_step()

    @precondition(lambda self: self.world.sidecar is not None)
    @rule(event=st.sampled_from(STOPS))
    def stop(self, event: Event) -> None:
        self.world.happen(event)

    @rule(event=st.sampled_from([Event.OPERATOR_OFF, Event.OPERATOR_ON]))
    def switch(self, event: Event) -> None:
        self.world.happen(event)

    @precondition(lambda self: self.world.sidecar is not None and not self.world.is_standby)
    @rule()
    def demote(self) -> None:
        self.world.demote()

    @precondition(lambda self: self.world.is_standby)
    @rule(times=TIMES, confirmed=st.booleans())
    def others_work(self, times: int, confirmed: bool) -> None:  # noqa: FBT001 - drawn
        for _ in range(times):
            self.world.others_deliver()
        if confirmed:
            self.world.others_confirm()

    @precondition(lambda self: self.world.is_standby)
    @rule()
    def promote(self) -> None:
        self.world.promote()

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if self.world.removed <= self.world.state.restart and len(self.world.wal) % 2:
            self.world.settle_without_archive()
            self.world.happen(Event.OPERATOR_OFF)
        self.world.settle()


@pytest.mark.feature("I12")
def test_every_change_is_delivered_once_whatever_happens() -> None:
    run_state_machine_as_test(ModelCapture, settings=SEARCH)


@pytest.mark.parametrize("checks_epoch", [True, False])
def test_only_the_check_of_the_epoch_prevents_a_stopped_sidecar_from_delivering_again(*, checks_epoch: bool) -> None:
    world = HandoverModel(checks_epoch=checks_epoch)
    world.begin()
    world.commit(0)
    world.sidecar_step()  # stopped right before it commits its delivery
    world.happen(Event.OPERATOR_OFF)
    world.archive()
    world.archiver_step()
    world.archiver_step()
    assert world.log == [0]
    world.sidecar_step()
    assert world.log == ([0] if checks_epoch else [0, 0])


@pytest.mark.parametrize("begins_at_marker", [True, False])
def test_only_the_marker_prevents_a_gap_at_a_promoted_follower(*, begins_at_marker: bool) -> None:
    world = HandoverModel(begins_at_marker=begins_at_marker)
    for _ in range(2):
        world.begin()
    world.demote()
    world.commit(0)
    world.others_deliver()
    world.others_confirm()
    world.commit(0)  # committed, but not delivered
    world.promote()
    for _ in range(20):
        world.sidecar_step()
    assert world.log == ([0, 1] if begins_at_marker else [0])


@pytest.mark.parametrize("checks_epoch", [True, False])
def test_only_the_check_of_the_epoch_fences_an_archiver_whose_archive_stalled(*, checks_epoch: bool) -> None:
    world = HandoverModel(checks_epoch=checks_epoch)
    world.kill_sidecar()
    world.watchdog()
    for _ in range(2):
        world.begin()
        world.commit(0)
    world.archive()
    world.archiver_step()  # stopped right before it commits its delivery
    world.start_sidecar()
    world.want_return()
    world.archive_stalls()
    for _ in range(6):
        world.sidecar_step()
    assert world.log == [0, 1]
    world.archiver_step()
    assert world.log == ([0, 1] if checks_epoch else [0, 1, 0])


def test_without_the_wal_on_the_node_the_archive_is_waited_for() -> None:
    world = HandoverModel()
    world.kill_sidecar()
    world.watchdog()
    world.begin()
    world.commit(0)
    world.archive()
    world.recycle()
    world.start_sidecar()
    world.want_return()
    world.archive_stalls()
    assert world.state.stage is Stage.RETURNING
