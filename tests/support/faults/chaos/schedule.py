"""The order of faults, derived from a seed alone: an endless sequence, each fault with its own random numbers."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.faults.chaos.faults import KINDS, ChaosKind

GAPS = (5, 30, 30, 80, 200)  # ticks between the beginnings of two faults


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault that begins a number of ticks after the previous one."""

    number: int
    name: str
    gap_ticks: int
    dice: random.Random

    @property
    def kind(self) -> ChaosKind:
        """The kind of the fault."""
        return KINDS[self.name]


def planned(seed: int) -> Iterator[Planned]:
    """Yield the faults of a seed."""
    dice = random.Random(f"{seed} schedule")
    names, weights = list(KINDS), [kind.weight for kind in KINDS.values()]
    number = 0
    while True:
        number += 1
        (name,) = dice.choices(names, weights)
        yield Planned(number, name, dice.choice(GAPS), random.Random(f"{seed} fault {number}"))
