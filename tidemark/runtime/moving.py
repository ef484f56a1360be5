"""A process moves the stage: the transaction, the count, and the effects behind it (I12)."""

from collections.abc import Callable

from tidemark.engine.handover import Event, Refused
from tidemark.io.clock import SystemClock
from tidemark.io.logs import describe_error
from tidemark.io.switching import Switched, switch
from tidemark.model.errors import Fenced
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch
from tidemark.runtime.effects import Perform, perform
from tidemark.runtime.inflow import Surroundings
from tidemark.wire.state import HandOver, Owner

Effects = Callable[[str], Perform]  # of the reason, how this process performs what a move asks for


class Mover:
    """Moves for one process."""

    def __init__(self, around: Surroundings, effects: Effects) -> None:
        self._around = around
        self._effects = effects
        self._clock = SystemClock()

    def move(
        self,
        event: Event,
        *,
        epoch: Epoch | None = None,
        taking: Owner | None = None,
        hand_over: HandOver | None = None,
        only_from: Stage | None = None,
        reason: str = "",
    ) -> Switched:
        """Move, and do what is to be done behind it; raise `Refused`, or `Fenced` where somebody else moved first."""
        switched = switch(
            self._around.store,
            event,
            log=self._around.log,
            now_us=self._clock.wall_us(),
            epoch=epoch,
            taking=taking,
            hand_over=hand_over,
            only_from=only_from,
            reason=reason,
        )
        if switched.before is not switched.after:
            self._around.metrics.switches.inc(event.name)
        perform(switched.effects, self._effects(reason or event.value))
        return switched

    def try_move(
        self,
        event: Event,
        *,
        epoch: Epoch | None = None,
        taking: Owner | None = None,
        hand_over: HandOver | None = None,
        only_from: Stage | None = None,
        reason: str = "",
    ) -> Switched | None:
        """Move as `move` does; None, with a line in the log, where the stage has changed meanwhile."""
        try:
            return self.move(event, epoch=epoch, taking=taking, hand_over=hand_over, only_from=only_from, reason=reason)
        except (Refused, Fenced) as error:
            self._around.log.warning("the stage has changed meanwhile", **describe_error(error))
            return None
