"""The effects of a move, performed in the order told, each between two failpoints."""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from tidemark.engine.handover import Effect
from tidemark.io.host.failpoints import passed


class HandoverPoint(Enum):
    """Places around the moves of the mode table where a test may stop a process dead."""

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


def perform(effects: Iterable[Effect], how: Perform) -> None:
    """Do what a move asks for."""
    for effect in effects:
        passed(HandoverPoint[f"BEFORE_{effect.name}"])
        how[effect]()
        passed(HandoverPoint[f"AFTER_{effect.name}"])
