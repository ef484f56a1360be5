"""Random events and crashes at every step: never two deliverers, never a gap, never backwards, always a way on."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.handover_model import World
from tidemark.engine.handover import STOPS, Event

PLAIN_STEPS = (
    "begin",
    "begin",
    "archive",
    "recycle",
    "want_return",
    "write_marker",
    "sidecar_step",
    "kill_sidecar",
    "start_sidecar",
    "watchdog",
    "kill_hung_sidecar",
    "archiver_step",
    "kill_archiver",
    "start_archiver",
)
SHELL = settings(max_examples=300, stateful_step_count=60, deadline=None, report_multiple_bugs=False)


class Capture(RuleBasedStateMachine):
    """Any step may follow any other."""

    checks_epoch = True

    @initialize()
    def make(self) -> None:
        self.world = World(checks_epoch=self.checks_epoch)

    @rule(step=st.sampled_from(PLAIN_STEPS))
    def step(self, step: str) -> None:
        getattr(self.world, step)()

    @rule(times=st.integers(1, 8))
    def archiver_works(self, times: int) -> None:
        self.world.archive()
        for _ in range(times):
            self.world.archiver_step()

    @rule(times=st.integers(1, 8))
    def sidecar_works(self, times: int) -> None:
        for _ in range(times):
            self.world.sidecar_step()

    @rule(choice=st.integers(0, 3), begun=st.booleans())
    def commit(self, choice: int, begun: bool) -> None:  # noqa: FBT001 - drawn
        if begun:
            self.world.begin()
        self.world.commit(choice)

    @rule(event=st.sampled_from([*STOPS, Event.OPERATOR_OFF, Event.OPERATOR_ON]))
    def happen(self, event: Event) -> None:
        if event not in STOPS or self.world.sidecar is not None:
            self.world.happen(event)

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.settle()


@pytest.mark.feature("I12")
def test_every_change_is_delivered_once_whatever_happens() -> None:
    run_state_machine_as_test(Capture, settings=SHELL)


class Unfenced(Capture):
    """The same without the check of the epoch."""

    checks_epoch = False


def test_without_the_check_of_the_epoch_something_is_delivered_twice() -> None:
    with pytest.raises(AssertionError, match="of"):
        run_state_machine_as_test(Unfenced, settings=SHELL)
