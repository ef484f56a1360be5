"""A process moves the stage: the transaction, the count, and the effects behind it (I12)."""

from collections.abc import Callable
from typing import Unpack

from tidemark.engine.handover import Event, Refused
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import describe_error
from tidemark.io.state.switching import Switched, Terms, switch
from tidemark.model.errors import Fenced
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.effects import Perform, perform

Effects = Callable[[str], Perform]  # of the reason, how this process performs what a move asks for


class Mover:
    """Moves for one process."""

    def __init__(self, context: CaptureContext, effects: Effects) -> None:
        self._context = context
        self._effects = effects
        self._clock = SystemClock()

    def move(self, event: Event, **terms: Unpack[Terms]) -> Switched:
        """Move, and do what is to be done behind it; raise `Refused`, or `Fenced` where somebody else moved first."""
        context = self._context
        switched = switch(context.store, event, log=context.log, now_us=self._clock.wall_us(), **terms)
        if switched.before is not switched.after:
            context.metrics.switches.inc(event.name)
        perform(switched.effects, self._effects(terms.get("reason") or event.value))
        return switched

    def try_move(self, event: Event, **terms: Unpack[Terms]) -> Switched | None:
        """Move as `move` does; None, with a line in the log, where the stage has changed meanwhile."""
        try:
            return self.move(event, **terms)
        except (Refused, Fenced) as error:
            self._context.log.warning("the stage has changed meanwhile", **describe_error(error))
            return None
