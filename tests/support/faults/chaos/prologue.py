"""Hits each failpoint of the stage table once; the random part that follows may hit any, and need not hit all.

A cycle is off and on again. In each cycle the sidecar dies up to three times: at an effect of the off, of the on, and
of its return.
"""

from tests.support.faults.chaos.faults import (
    freeze_behind_the_move,
    linger_behind_the_move,
    lose_wal_meanwhile,
    return_without_archive,
    switch_off_until_reached,
)
from tests.support.faults.chaos.world import ChaosWorld
from tidemark.runtime.daemon.stage_transition import HandoverPoint

P = HandoverPoint
CYCLES = (  # dies at off, at on, at the return
    (P.BEFORE_STOP_CAPTURE, P.BEFORE_RETURN_SOON, P.BEFORE_WRITE_TRY_START_MARKER),
    (P.AFTER_STOP_CAPTURE, P.AFTER_RETURN_SOON, P.AFTER_WRITE_TRY_START_MARKER),
    (P.BEFORE_WRITE_STOP_MARKER, None, P.BEFORE_SWITCH_SEGMENT),
    (P.AFTER_WRITE_STOP_MARKER, None, P.AFTER_SWITCH_SEGMENT),
)


def reach_every_failpoint(world: ChaosWorld) -> None:
    """Die at each; freeze and block at one; lose WAL; check that each process can deliver without the other."""
    for at_off, at_on, on_return in CYCLES:
        _cycle(world, at_off, at_on, on_return)
    freeze_behind_the_move(world)
    linger_behind_the_move(world)
    lose_wal_meanwhile(world)
    return_without_archive(world)


def _cycle(world: ChaosWorld, at_off: HandoverPoint, at_on: HandoverPoint | None, on_return: HandoverPoint) -> None:
    sidecar = world.sidecar
    switch_off_until_reached(world, at_off)
    sidecar.arm(at_on or on_return)
    world.wish = "off"  # it may have died before that was done, or because of a full ring
    world.wait_for(lambda: not world.wish, "the operator's off")
    world.wish = "on"
    if at_on is not None:
        world.wait_for(lambda: sidecar.hit[at_on] > 0, f"failpoint {at_on.value}")
        world.wish = ""
        sidecar.arm(on_return)
    world.wait_for(lambda: sidecar.hit[on_return] > 0, f"failpoint {on_return.value}")
