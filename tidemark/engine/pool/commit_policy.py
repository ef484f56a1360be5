"""When the finished batches of an engine are confirmed: always, by time, by changes, and combinations of these.

A confirmation is a durable transaction; whatever is finished and not confirmed is delivered again after a kill. Time is
an argument. The policy is also asked while no changes arrive, and a stop confirms whatever is finished.
"""

from dataclasses import dataclass
from functools import reduce
from operator import or_

from tidemark.model.arguments import ABOVE_0, checked_arguments
from tidemark.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Finished:
    """What is finished and not confirmed."""

    since_s: float  # since the last confirmation, or the start
    changes: int


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Decides whether to confirm now; `a & b` needs both, `a | b` one of them."""

    def is_due(self, finished: Finished) -> bool:
        """Return whether to confirm what is finished."""
        raise NotImplementedError

    def __and__(self, other: "CommitPolicy") -> "CommitPolicy":
        return _Combined(self, other, needs_both=True)

    def __or__(self, other: "CommitPolicy") -> "CommitPolicy":
        return _Combined(self, other, needs_both=False)


@dataclass(frozen=True, slots=True)
class _Always(CommitPolicy):
    def is_due(self, finished: Finished) -> bool:
        del finished
        return True


@dataclass(frozen=True, slots=True)
class _EverySeconds(CommitPolicy):
    seconds: float

    def is_due(self, finished: Finished) -> bool:
        return finished.since_s >= self.seconds


@dataclass(frozen=True, slots=True)
class _EveryChanges(CommitPolicy):
    changes: int

    def is_due(self, finished: Finished) -> bool:
        return finished.changes >= self.changes


@dataclass(frozen=True, slots=True)
class _Combined(CommitPolicy):
    first: CommitPolicy
    second: CommitPolicy
    needs_both: bool

    def is_due(self, finished: Finished) -> bool:
        first, second = self.first.is_due(finished), self.second.is_due(finished)
        return (first and second) if self.needs_both else (first or second)


ALWAYS: CommitPolicy = _Always()
"""Confirm each batch as soon as it and all batches before it are finished."""


@checked_arguments("tidemark.every", {"seconds": ABOVE_0, "changes": ABOVE_0})
def every(*, seconds: float | None = None, changes: int | None = None) -> CommitPolicy:
    """Confirm at most once in `seconds`, or after this number of changes; with both, at whichever comes first."""
    policies: list[CommitPolicy] = []
    if seconds is not None:
        policies.append(_EverySeconds(seconds))
    if changes is not None:
        policies.append(_EveryChanges(changes))
    if not policies:
        raise ConfigError("every() needs seconds, changes, or both", hint="use ALWAYS to confirm each batch")
    return reduce(or_, policies)
