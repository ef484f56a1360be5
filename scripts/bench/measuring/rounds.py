"""Rounds of trials and the statistics of their results, for all comparisons in one run."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scripts.bench.measuring.commands import Cost

LEAST_S = 1e-3
Trial = Callable[[], Cost]


@dataclass(frozen=True, slots=True)
class RoundSpread:
    """The median, minimum and maximum of some rounds."""

    median: float
    least: float
    most: float

    def __format__(self, digits: str) -> str:
        if math.isnan(self.median):
            return "-"
        return f"{self.median:{digits}} ({self.least:{digits}}-{self.most:{digits}})"


def spread(values: Sequence[float]) -> RoundSpread:
    """Return median, minimum and maximum; all nan if one value is nan."""
    if any(map(math.isnan, values)):
        return RoundSpread(math.nan, math.nan, math.nan)
    return RoundSpread(statistics.median(values), min(values), max(values))


def number(value: float) -> float | None:
    """Return a value that JSON can represent."""
    return None if math.isnan(value) else round(value, 4)


def ratios(base: Sequence[Cost], own: Sequence[Cost], what: str) -> list[float]:
    """Return the cost in `base` divided by the cost in `own` of the same round; `what` is wall_s or cpu_s."""
    pairs = zip(base, own, strict=True)
    return [float(getattr(theirs, what)) / max(float(getattr(ours, what)), LEAST_S) for theirs, ours in pairs]


def run_trials(trials: Mapping[str, Trial], rounds: int, deadline_s: float = math.inf) -> dict[str, list[Cost]]:
    """Run all trials in each round, in rotating order; start no round after `deadline_s`, except the first."""
    costs: dict[str, list[Cost]] = {name: [] for name in trials}
    names = list(trials)
    for round_number in range(rounds):
        if round_number and time.monotonic() > deadline_s:
            break
        first = round_number % len(names)
        for name in (*names[first:], *names[:first]):
            costs[name].append(trials[name]())
    return costs
