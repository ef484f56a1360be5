"""Rounds of turns, and what their numbers come to: what every comparison in one run needs."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scripts.bench.decode_contestants import Cost

LEAST_S = 1e-3
Turn = Callable[[], Cost]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, and how far they go apart."""

    median: float
    least: float
    most: float

    def __format__(self, digits: str) -> str:
        if math.isnan(self.median):
            return "-"
        return f"{self.median:{digits}} ({self.least:{digits}}-{self.most:{digits}})"


def spread(values: Sequence[float]) -> Spread:
    """Return median, least and most; all nan where one is."""
    if any(map(math.isnan, values)):
        return Spread(math.nan, math.nan, math.nan)
    return Spread(statistics.median(values), min(values), max(values))


def number(value: float) -> float | None:
    """Return what JSON can say."""
    return None if math.isnan(value) else round(value, 4)


def ratios(base: Sequence[Cost], own: Sequence[Cost], what: str) -> list[float]:
    """Return what those of `base` took by what others took in the same round; `what` is wall_s or cpu_s."""
    pairs = zip(base, own, strict=True)
    return [float(getattr(theirs, what)) / max(float(getattr(ours, what)), LEAST_S) for theirs, ours in pairs]


def take_turns(turns: Mapping[str, Turn], rounds: int, deadline_s: float = math.inf) -> dict[str, list[Cost]]:
    """Let everybody have a turn in every round, each beginning with another; after one round, until `deadline_s`."""
    costs: dict[str, list[Cost]] = {name: [] for name in turns}
    names = list(turns)
    for round_number in range(rounds):
        if round_number and time.monotonic() > deadline_s:
            break
        first = round_number % len(names)
        for name in (*names[first:], *names[:first]):
            costs[name].append(turns[name]())
    return costs
