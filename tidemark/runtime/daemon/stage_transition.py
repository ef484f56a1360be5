"""Performs a stage transition: the transaction, its count, then the effects, each between two failpoints (I12).

Daemons and `cdcctl` both change the stage by `StageTransition`; they differ in how they perform an effect.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum
from typing import Unpack

from tidemark.engine.handover import Effect, Event, Refused
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.failpoints import passed
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.state.state import StateStore
from tidemark.io.state.switching import Switched, Terms, switch
from tidemark.model.errors import Fenced
from tidemark.model.lsn import Lsn
from tidemark.runtime.daemon.counting import TransitionCounts
from tidemark.runtime.daemon.node_requests import NodeRequests
from tidemark.wire.marker import MarkerKind


class HandoverPoint(Enum):
    """Places around the effects of a transition where a test may kill a process."""

    BEFORE_STOP_CAPTURE = "before-stop-capture"
    AFTER_STOP_CAPTURE = "after-stop-capture"
    BEFORE_WRITE_STOP_MARKER = "before-write-stop-marker"
    AFTER_WRITE_STOP_MARKER = "after-write-stop-marker"
    BEFORE_WRITE_TRY_START_MARKER = "before-write-try-start-marker"
    AFTER_WRITE_TRY_START_MARKER = "after-write-try-start-marker"
    BEFORE_SWITCH_SEGMENT = "before-switch-segment"
    AFTER_SWITCH_SEGMENT = "after-switch-segment"
    BEFORE_RETURN_SOON = "before-return-soon"
    AFTER_RETURN_SOON = "after-return-soon"
    BEFORE_FIND_START = "before-find-start"
    AFTER_FIND_START = "after-find-start"


Perform = Mapping[Effect, Callable[[], object]]
Effects = Callable[[Switched], Perform]  # how a process performs the effects of a transition


class StageTransition:
    """The transitions that one process makes."""

    def __init__(self, store: StateStore, effects: Effects, counts: TransitionCounts, log: Log) -> None:
        self._store = store
        self._effects = effects
        self._counts = counts
        self._log = log
        self._clock = SystemClock()

    def move(self, event: Event, **terms: Unpack[Terms]) -> Switched:
        """Change the stage and perform the effects; raise `Refused`, or `Fenced` if another process was faster."""
        switched = switch(self._store, event, log=self._log, now_us=self._clock.wall_us(), **terms)
        if switched.before is not switched.after:
            self._counts.switches.inc(event.name)
        perform(switched, self._effects)
        return switched

    def try_move(self, event: Event, **terms: Unpack[Terms]) -> Switched | None:
        """Do as `move` does; None, with a line in the log, if the stage has changed meanwhile."""
        try:
            return self.move(event, **terms)
        except (Refused, Fenced) as error:
            self._log.warning("the stage has changed meanwhile", **describe_error(error))
            return None


def perform(switched: Switched, effects: Effects) -> None:
    """Perform the effects of a transition in their order."""
    how = effects(switched)
    for effect in switched.effects:
        passed(HandoverPoint[f"BEFORE_{effect.name}"])
        how[effect]()
        passed(HandoverPoint[f"AFTER_{effect.name}"])


def write_stop_marker(store: StateStore, node_requests: NodeRequests, switched: Switched) -> Future[Lsn] | None:
    """Request the stop marker of a transition; None if no process has delivered yet: then there is nothing to stop."""
    if switched.epoch is None:
        return None
    horizon = store.marks().horizon
    pointer = horizon.pointer if horizon is not None else None
    return node_requests.write(MarkerKind.STOP, switched.epoch, pointer, reason=switched.reason)
