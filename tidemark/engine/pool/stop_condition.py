"""Conditions by which an engine stops itself: after so many changes, or before or after a change (A37).

A condition is applied to the changes of the stream, in its order and before transforms. It divides a group: what is up
to the cut is delivered and confirmed, also inside a transaction, and the rest comes after the next start. Rows of a
first copy do not count, because a copy that was interrupted begins again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from heapq import merge
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from tidemark.engine.pool.batch import Batch, Change
from tidemark.model.arguments import ABOVE_0, PLAIN_FUNCTION, checked_arguments
from tidemark.model.change import ChangeBatch, ChangeGroup, GroupItem
from tidemark.model.errors import ConsumerFailed
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import Epoch, Pointer, Position

ChangeTest = Callable[[str, Change], bool]
"""Returns whether a change, of the table `schema.table`, is the one at which an engine stops."""
_COLUMNS = ("_tli", "_commit_lsn", "_ordinal")
_NO_EPOCH = Epoch(TimelineId(0), 0)  # a test gets no epoch


class _Kind(Enum):
    AFTER_CHANGES = "after so many changes"
    AFTER = "after a change"
    BEFORE = "before a change"


@dataclass(frozen=True, slots=True)
class StopWhen:
    """When an engine stops by itself: created by `after_changes`, `after` or `before`."""

    kind: _Kind
    count: int = 0
    test: ChangeTest | None = None

    @classmethod
    @checked_arguments("tidemark.StopWhen.after_changes", {"count": ABOVE_0})
    def after_changes(cls, count: int) -> Self:
        """Stop after `count` changes since the start: exactly these are delivered and confirmed."""
        return cls(_Kind.AFTER_CHANGES, count)

    @classmethod
    @checked_arguments("tidemark.StopWhen.after", {"test": PLAIN_FUNCTION})
    def after(cls, test: ChangeTest) -> Self:
        """Stop after the first change for which `test` returns true; called with `schema.table` and the change."""
        return cls(_Kind.AFTER, test=test)

    @classmethod
    @checked_arguments("tidemark.StopWhen.before", {"test": PLAIN_FUNCTION})
    def before(cls, test: ChangeTest) -> Self:
        """Stop before that change: it is not delivered, and is the first one of the next start."""
        return cls(_Kind.BEFORE, test=test)


class _StopPlace(NamedTuple):
    position: Position
    is_delivered: bool  # the change there

    def includes(self, position: Position) -> bool:
        return position < self.position or (self.is_delivered and position == self.position)


class StopSearch:
    """Finds the cut in the groups of a stream."""

    def __init__(self, condition: StopWhen | None) -> None:
        self.is_over = False  # the condition is met: no later group is delivered
        self._condition = condition
        self._left = condition.count if condition is not None else 0

    def first_part(self, group: ChangeGroup, before: Pointer, databases: Mapping[Oid, str]) -> ChangeGroup | None:
        """Return what is delivered of a group, None if that is nothing; `before`: the end of the group before it."""
        cut = None if self._condition is None else self._cut(self._condition, group, databases)
        if cut is None:
            return group
        self.is_over = True
        return _part(group, cut, before)

    def _cut(self, condition: StopWhen, group: ChangeGroup, databases: Mapping[Oid, str]) -> _StopPlace | None:
        batches = [item for item in group.items if isinstance(item, ChangeBatch)]
        if condition.test is None:
            return self._cut_after_count(batches)
        try:
            found = _first(condition.test, batches, databases)
        except Exception as error:
            # NB: final, and without the text, which may contain values of rows.
            raise ConsumerFailed(f"the test of stop_when raised {type(error).__name__}") from error
        return None if found is None else _StopPlace(found, condition.kind is _Kind.AFTER)

    def _cut_after_count(self, batches: Sequence[ChangeBatch]) -> _StopPlace | None:
        rows = sum(batch.rows.num_rows for batch in batches)
        if rows < self._left:
            self._left -= rows
            return None
        columns = [np.concatenate([_numbers(batch.rows, name) for batch in batches]) for name in _COLUMNS]
        last = np.lexsort(columns[::-1])[self._left - 1]
        timeline, commit_lsn, ordinal = (int(column[last]) for column in columns)
        return _StopPlace(Position(TimelineId(timeline), Lsn(commit_lsn), ordinal), is_delivered=True)


def _first(test: ChangeTest, batches: Sequence[ChangeBatch], databases: Mapping[Oid, str]) -> Position | None:
    """Return the position of the first change in stream order that passes a test."""

    def changes(batch: ChangeBatch) -> Iterator[tuple[Position, str, Change]]:
        whole = Batch.of(databases.get(batch.database, ""), batch.relation, _NO_EPOCH, batch.rows)
        return ((change.position, whole.table, change) for change in whole)

    in_order = merge(*map(changes, batches), key=lambda each: each[0])
    return next((position for position, table, change in in_order if test(table, change)), None)


def _part(group: ChangeGroup, cut: _StopPlace, before: Pointer) -> ChangeGroup | None:
    items: list[GroupItem] = []
    ends: list[Position] = []
    for item in group.items:
        if not isinstance(item, ChangeBatch):
            if cut.includes(item.position):
                items.append(item)
                ends.append(item.position)
            continue
        rows = item.rows.filter(pa.array(_included(item.rows, cut)))
        if rows.num_rows:
            items.append(ChangeBatch(item.database, item.relation, rows))
            ends.append(Batch.of("", item.relation, _NO_EPOCH, rows).position)
    if not items:
        return None
    # NB: the restart LSN of the group before: decoding from there misses nothing of this one.
    last = Pointer(max(ends), before.restart_lsn)
    row_count = sum(item.rows.num_rows for item in items if isinstance(item, ChangeBatch))
    begun = tuple(end for end in group.begun if end.commit_lsn <= last.position.commit_lsn)
    ended = tuple(end for end in group.transactions if end.commit_lsn < cut.position.commit_lsn)
    return replace(group, last=last, items=items, transactions=ended, row_count=row_count, begun=begun)


def _included(rows: pa.RecordBatch, cut: _StopPlace) -> Sequence[bool]:
    columns = [_numbers(rows, name).tolist() for name in _COLUMNS]
    return [cut.includes(Position(*each)) for each in zip(*columns, strict=True)]


def _numbers(rows: pa.RecordBatch, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = rows.column(name).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)
