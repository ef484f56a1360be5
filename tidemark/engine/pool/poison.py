"""Poison: a change that a handler fails on, also alone. How it is found in a batch, and the policies for it.

When the retries of a batch are used up, the batch is divided in halves, and these again. A part of several changes is
passed to the handler once and then divided further; a single change has all retries. A handler that knows the change
raises `PoisonChange`, which saves the search. What becomes of the change is in `tidemark.runtime.plugins`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemark.engine.pool.batch import Batch
from tidemark.model.change import EngineEvent
from tidemark.model.errors import ConsumerFailed
from tidemark.model.poison import PoisonChange, may_be_poison

PartItem = Batch | EngineEvent


@dataclass(frozen=True, slots=True)
class ParkedBatch:
    """A parked change that is delivered again, by its number in the table of parked changes."""

    number: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class CallPart:
    """The changes of one call."""

    items: tuple[PartItem, ...]
    is_narrowed: bool = False  # a part of what failed

    @property
    def size(self) -> int:
        """How many changes and events it has."""
        return sum(len(item) if isinstance(item, Batch) else 1 for item in self.items)

    @property
    def has_changes(self) -> bool:
        """Return whether it is more than events: a handler may ignore these, so they prove nothing."""
        return any(isinstance(item, Batch) for item in self.items)


class CallParts:
    """The remaining parts of a call, in order; a part that fails is divided until one change is left."""

    def __init__(self, *parts: tuple[PartItem, ...]) -> None:
        self._left = deque(CallPart(items) for items in parts)

    @property
    def first(self) -> CallPart | None:
        """The next part; None if none remains."""
        return self._left[0] if self._left else None

    @property
    def is_last(self) -> bool:
        """Return whether the first part is the only one."""
        return len(self._left) == 1

    def finish(self) -> None:
        """Remove the first part, which was handled."""
        self._left.popleft()

    def finish_rows(self, count: int) -> None:
        """Remove the first rows of the first part, a batch, which were handled; not all of them."""
        if not count:
            return
        part = self._left[0]
        (batch,) = part.items
        assert isinstance(batch, Batch), "events have no rows"
        self._left[0] = replace(part, items=(rows_of(batch, count, len(batch)),))

    def narrow(self, error: Exception) -> bool:
        """Divide the first part if it is a part of several changes: it has no retries. Return whether it was."""
        part = self._left[0]
        if not part.is_narrowed or part.size == 1 or not may_be_poison(error) or isinstance(error, PoisonChange):
            return False
        self._replace_first(*halves(part.items))
        return True

    def can_isolate(self, error: Exception) -> bool:
        """Return whether a failure of the first part may be that of one change: an event alone cannot be left out."""
        part = self.first
        if part is None or not may_be_poison(error):
            return False
        return part.size > 1 or isinstance(error, PoisonChange) or any(isinstance(each, Batch) for each in part.items)

    def isolate(self, error: Exception) -> Batch | None:
        """Narrow the first part down, whose retries are used up: divide it, or remove the change and return it."""
        part = self._left[0]
        if isinstance(error, PoisonChange):
            before, poison, after = _around(part.items, error)
            self._replace_first(before, after)
            return poison
        if part.size > 1:
            self._replace_first(*halves(part.items))
            return None
        (alone,) = part.items
        assert isinstance(alone, Batch), "checked by `can_isolate`"
        self._left.popleft()
        return alone

    def _replace_first(self, *parts: tuple[PartItem, ...]) -> None:
        self._left.popleft()
        self._left.extendleft(CallPart(part, is_narrowed=True) for part in reversed(parts) if part)


def halves(items: tuple[PartItem, ...]) -> tuple[tuple[PartItem, ...], tuple[PartItem, ...]]:
    """Return two parts of items that have more than one change."""
    if len(items) > 1:
        middle = len(items) // 2
        return items[:middle], items[middle:]
    (batch,) = items
    assert isinstance(batch, Batch), "an event has no parts"
    middle = len(batch) // 2
    return (rows_of(batch, 0, middle),), (rows_of(batch, middle, len(batch)),)


def rows_of(batch: Batch, start: int, end: int) -> Batch:
    """Return some rows of a batch."""
    return batch.with_rows(batch.arrow.slice(start, end - start))


def _around(items: Sequence[PartItem], error: PoisonChange) -> tuple[tuple[PartItem, ...], Batch, tuple[PartItem, ...]]:
    """Return what is before a change that the handler named, the change, and what is behind it."""
    batch = items[error.item] if 0 <= error.item < len(items) else None
    if not isinstance(batch, Batch) or not 0 <= error.index < len(batch):
        raise ConsumerFailed(
            f"the handler raised PoisonChange for change {error.index} of item {error.item}, which it did not receive",
            hint="index counts the changes of one batch from 0, item the batches and events of a delivery",
        ) from error
    at = error.index
    before = (*items[: error.item], *_unless_empty(rows_of(batch, 0, at)))
    after = (*_unless_empty(rows_of(batch, at + 1, len(batch))), *items[error.item + 1 :])
    return before, rows_of(batch, at, at + 1), after


def _unless_empty(batch: Batch) -> tuple[Batch, ...]:
    return (batch,) if len(batch) else ()
