"""Each failpoint of the mode table once, on purpose: the random part behind it may meet any, and need not meet all.

A cycle is off and on again; in it the sidecar may die up to three times: at an effect of the off, of the on, and of its
way back.
"""

from tests.support.chaos.faults import freeze_behind_the_move
from tests.support.chaos.world import World
from tidemark.model.mode import Stage
from tidemark.runtime.effects import HandoverPoint

P = HandoverPoint
CYCLES = (  # dies at off, at on, on its way back
    (P.BEFORE_STOP_CAPTURE, P.BEFORE_RETURN_SOON, P.BEFORE_WRITE_TRY_START_MARKER),
    (P.AFTER_STOP_CAPTURE, P.AFTER_RETURN_SOON, P.AFTER_WRITE_TRY_START_MARKER),
    (P.BEFORE_WRITE_STOP_MARKER, None, P.BEFORE_SWITCH_SEGMENT),
    (P.AFTER_WRITE_STOP_MARKER, None, P.AFTER_SWITCH_SEGMENT),
)


def meet_every_failpoint(world: World) -> None:
    """Die at each of them; then freeze at one, and see the archiver deliver alone."""
    for at_off, at_on, on_way_back in CYCLES:
        _cycle(world, at_off, at_on, on_way_back)
    freeze_behind_the_move(world)
    world.wait_for_stage(Stage.REALTIME)


def _cycle(world: World, at_off: HandoverPoint, at_on: HandoverPoint | None, on_way_back: HandoverPoint) -> None:
    sidecar = world.sidecar
    world.wait_for_stage(Stage.REALTIME)
    sidecar.arm(at_off)
    sidecar.stop(0)
    world.wait_for(lambda: sidecar.process.running and world.owner == ("sidecar", sidecar.pid), "the sidecar's epoch")
    world.wish = "off"
    _wait_for_death(world, at_off)
    sidecar.arm(at_on or on_way_back)
    world.wish = "off"  # where a full ring came first
    world.wait_for(lambda: not world.wish, "the operator's off")
    world.wish = "on"
    if at_on is not None:
        _wait_for_death(world, at_on)
        world.wish = ""
        sidecar.arm(on_way_back)
    _wait_for_death(world, on_way_back)


def _wait_for_death(world: World, point: HandoverPoint) -> None:
    ended = world.sidecar.hit[point]
    world.wait_for(lambda: world.sidecar.hit[point] > ended, f"failpoint {point.value}")
