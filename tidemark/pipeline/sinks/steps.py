"""One table's part of a Spark batch, divided into steps: runs of rows of one layout, and the events between them.

Each step ends in one commit of a target, which then contains everything up to the last position of the step. Changes
that a target already contains are skipped by position. This covers both an outbox that repeats itself after a crash
and a new outbox that begins at an earlier position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.io.process.lake_config import MERGE_ROWS
from tidemark.model.change import (
    TABLE_ORDINAL,
    ChangeBatch,
    CopyBoundary,
    GivenRows,
    GroupItem,
    PartitionEvent,
    RewriteBoundary,
    SchemaEvent,
    Truncation,
)
from tidemark.model.errors import InternalError
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.layout import position_of
from tidemark.wire.items import relation_of

TableItem = ChangeBatch | SchemaEvent | PartitionEvent | RewriteBoundary | Truncation | CopyBoundary
TableEvent = SchemaEvent | PartitionEvent | RewriteBoundary | Truncation | CopyBoundary


@dataclass(frozen=True, slots=True, eq=False)
class Delivered:
    """An item of the outbox for one table, and the sequence of its value."""

    sequence: OutboxSequence
    item: TableItem


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Changes of one relation version, in stream order; `sequences` contains the outbox sequence of each row."""

    relation: Relation
    changes: pa.Table
    sequences: npt.NDArray[np.int64]
    sequence: OutboxSequence
    last: Position


@dataclass(frozen=True, slots=True, eq=False)
class PackedRun:
    """The same before the rows are unpacked: executors may write them (`executor_files`), or they are read here."""

    relation: Relation
    batches: Sequence[tuple[OutboxSequence, ChangeBatch]]
    last: Position

    @property
    def sequence(self) -> OutboxSequence:
        """Return the outbox sequence of the last value."""
        return self.batches[-1][0]

    @property
    def row_count(self) -> int:
        """Return the number of rows."""
        return sum(batch.row_count for _, batch in self.batches)

    def unpacked(self) -> Rows:
        """Return the rows."""
        return run_of_rows(self.batches, self.last)


@dataclass(frozen=True, slots=True)
class EventStep:
    """An event, and the sequence of its outbox value."""

    sequence: OutboxSequence
    event: TableEvent

    @property
    def relation(self) -> Relation:
        """Return the relation version of the event."""
        relation = relation_of(self.event)
        assert relation is not None, self.event
        return relation


Step = Rows | PackedRun | EventStep


def steps(items: Sequence[Delivered], applied: Applied, rows_max: int = MERGE_ROWS) -> list[Step]:
    """Split `items` of one table into the steps that a target at `applied` still needs, of at most `rows_max` rows.

    An item with more rows is a step. Rows that are packed stay packed if the target needs all of a run.
    """
    found: list[Step] = []
    run: list[tuple[OutboxSequence, ChangeBatch]] = []
    floor, generation, reached = applied.position, applied.generation, applied.position

    run_rows = 0

    def close_run() -> None:
        nonlocal run_rows
        if run:
            is_packed = all(not isinstance(batch.given, pa.RecordBatch) for _, batch in run)
            found.append(PackedRun(run[0][1].relation, tuple(run), reached) if is_packed else run_of_rows(run, reached))
            run.clear()
            run_rows = 0

    for delivered in items:
        item = delivered.item
        if isinstance(item, ChangeBatch):
            found_after = _after(item, floor)
            if found_after is None:
                continue
            needed, first, last = found_after
            if run and (run[-1][1].relation != item.relation or run_rows + needed.row_count > rows_max):
                close_run()
            _check_order(reached, first, item.relation)
            run.append((delivered.sequence, needed))
            run_rows += needed.row_count
            reached = last
            continue
        if isinstance(item, CopyBoundary) and item.begin and (item.generation > generation or item.position > floor):
            # NB: a restarted copy may have the LSN of the copy that it replaces, and a new state counts generations
            # from 1 again: neither is sufficient alone.
            floor, generation = item.position, item.generation
        elif item.position <= floor or (isinstance(item, CopyBoundary) and item.generation < generation):
            continue
        else:
            _check_order(reached, item.position, relation_of(item))
        close_run()
        found.append(EventStep(delivered.sequence, item))
        reached = item.position
    close_run()
    return found


def byte_count(batches: Sequence[tuple[OutboxSequence, ChangeBatch]]) -> int:
    """Return about how many bytes batches have in the outbox."""
    return sum(_byte_count(batch.given) for _, batch in batches)


def _byte_count(given: pa.RecordBatch | GivenRows) -> int:
    return int(given.get_total_buffer_size()) if isinstance(given, pa.RecordBatch) else given.byte_count


def begins_table(item: TableItem) -> bool:
    """Return whether the rows of a table begin with an item: its CREATE, or the begin of a copy."""
    if isinstance(item, SchemaEvent):
        return item.before is None
    return isinstance(item, CopyBoundary) and item.begin


def first_position(item: GroupItem) -> Position:
    """Return the position of the first change in an item."""
    return bounds_of(item)[0] if isinstance(item, ChangeBatch) else item.position


def last_position(item: GroupItem) -> Position:
    """Return the position of the last change in an item."""
    return bounds_of(item)[1] if isinstance(item, ChangeBatch) else item.position


def bounds_of(batch: ChangeBatch) -> tuple[Position, Position]:
    """Return the positions of the first and the last row."""
    given = batch.given
    if not isinstance(given, pa.RecordBatch):
        return given.first, given.last
    return position_of(given, 0), position_of(given, given.num_rows - 1)


def _after(batch: ChangeBatch, floor: Position) -> tuple[ChangeBatch, Position, Position] | None:
    """Return the rows after a position, packed if these are all, with the first and the last one; None without any."""
    first, last = bounds_of(batch)
    if last <= floor:
        return None
    if first > floor:
        return batch, first, last
    rows = after(batch.rows, floor)
    return ChangeBatch(batch.database, batch.relation, rows), position_of(rows, 0), last


def before(batch: ChangeBatch, ceiling: Position) -> ChangeBatch | None:
    """Return the rows before a position; None without any."""
    first, last = bounds_of(batch)
    if last < ceiling:
        return batch
    if first >= ceiling:
        return None
    others = after(batch.rows, replace(ceiling, ordinal=ceiling.ordinal - 1))
    return ChangeBatch(batch.database, batch.relation, batch.rows.slice(0, batch.row_count - others.num_rows))


RowsT = TypeVar("RowsT", pa.RecordBatch, pa.Table)


def after(rows: RowsT, position: Position) -> RowsT:
    """Return the rows after `position`; `rows` is in stream order."""
    if not rows.num_rows or position_of(rows, 0) > position:
        return rows
    low, high = 0, rows.num_rows  # the answer is in [low, high]
    while low < high:
        middle = (low + high) // 2
        if position_of(rows, middle) > position:
            high = middle
        else:
            low = middle + 1
    return rows.slice(low)


def run_of_rows(run: Sequence[tuple[OutboxSequence, ChangeBatch]], last: Position | None = None) -> Rows:
    """Return the rows of a run's batches, which have one layout; `last`: the position of its last row, if known."""
    return Rows(
        run[0][1].relation,
        pa.Table.from_batches([_without_number(batch.rows) for _, batch in run]),
        np.concatenate([np.full(batch.row_count, sequence, np.int64) for sequence, batch in run]),
        run[-1][0],
        last_position(run[-1][1]) if last is None else last,
    )


def _without_number(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Leave out the numbers of changes within a transaction: a user may count them later; the log has its own."""
    return rows.drop_columns([TABLE_ORDINAL]) if TABLE_ORDINAL in rows.schema.names else rows


def _check_order(reached: Position, position: Position, relation: Relation | None) -> None:
    if position <= reached:
        name = relation.qualified_name if relation else "?"
        raise InternalError(f"changes of {name} are out of order: {position} comes after {reached}")
