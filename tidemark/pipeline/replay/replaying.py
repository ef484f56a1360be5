"""Applies the changes of a log up to a moment to a new replica, and makes that the result.

The replica is the pipeline's own (`tidemark.pipeline.sinks.replica`): keys, rows without a key, DDL, TRUNCATEs and
unchanged TOASTed values have one meaning. The result is a Delta table; it appears when it is complete.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.types.registry import UTF8
from tidemark.io.process.lake_config import MERGE_ROWS
from tidemark.model.lsn import INVALID_OID, Oid
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.relation import Relation
from tidemark.pipeline.lake.folders import LOG, table_app
from tidemark.pipeline.lake.layout import position_of
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_upkeep import forget_files
from tidemark.pipeline.replay.base import ReplayedTable, ReplayRange
from tidemark.pipeline.replay.log_changes import changes_of
from tidemark.pipeline.replay.log_rows import LogRows
from tidemark.pipeline.replay.moment import Moment
from tidemark.pipeline.replay.recorded_events import RecordedEvents
from tidemark.pipeline.replay.refusal import LakeUnreadable, ReplayRefused, reading, writing_result
from tidemark.pipeline.replay.result_target import ResultTarget
from tidemark.pipeline.sinks.replica.replica import Replica
from tidemark.pipeline.sinks.steps import Delivered

APP = "tidemark:replay"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    base: Position
    end: Position | None
    rows: int


def replay(
    lake: OpenedLake, table: TablePosition, moment: Moment, target: ResultTarget, rows_max: int = MERGE_ROWS
) -> Replayed:
    """Write the rows that `table` had at `moment` to the new table `target`."""
    target.check()
    if table.relation == INVALID_OID or table.log_version < 0:
        raise ReplayRefused(f"{table.qualified_name} has no log in the lake")
    of = (table.database, table.relation)
    log = _log_of(lake, table)
    # NB: events are recorded before their changes are in the log, and also while the log is not written. A copy may be
    # above the position of the lake.
    fault = table.log.fault
    reached = max(lake.positions.applied.position, table.position) if fault is None else fault.position
    events = RecordedEvents(lake.root, of, reached)
    rows = LogRows(log, rows_max)
    span = ReplayedTable(lake.positions, table, events, rows).range_to(moment)
    with target.unfinished() as folder:
        replica = Replica(str(folder / "replica"), APP, events.shape, events.constants, UTF8, rows_max=rows_max)
        with writing_result(target):
            result = replica.apply([])
        for items in _portions(of, events, rows, span):
            with writing_result(target):
                result = replica.apply(items)
        if not result.exists:
            raise ReplayRefused(f"{table.qualified_name} had no columns at {moment}")
        if result.applied.blocked:
            raise ReplayRefused(
                f"{table.qualified_name}: a change before {moment} does not identify its row: it has neither a key nor "
                "REPLICA IDENTITY FULL"
            )
        with writing_result(target):
            forget_files(result)
            found = pc.sum(result.files(result.schema.names[:1]).column("num_records")).as_py() or 0
            target.publish(Path(result.uri))
    return Replayed(span.base.position, span.end, found)


def _log_of(lake: OpenedLake, table: TablePosition) -> LakeTable:
    uri, app = f"{lake.root}/{table.folder}/{LOG}", table_app(lake.capture, (table.database, table.relation), LOG)
    with reading(uri):
        log = LakeTable(uri, app, version=table.log_version)
    recorded = table.log.recorded.id
    if not log.exists or recorded not in ("", str(log.delta.metadata().id)):
        what = f"is another table than {recorded}" if log.exists else "is missing"
        raise LakeUnreadable(f"{table.qualified_name}: {uri} {what}", hint="restore it, or copy the table again")
    return log


def _portions(of: TableId, events: RecordedEvents, log: LogRows, span: ReplayRange) -> Iterator[list[Delivered]]:
    """Yield the items of a range in stream order."""
    base = span.base
    waiting = deque([base, *events.between(base.position, span.end)])
    sequences = map(OutboxSequence, count(1))
    version = base.relation
    for rows in log.parts(base.position, span.end):
        places = _Places(rows)
        items: list[Delivered] = []
        start = 0
        while waiting and waiting[0].position <= places.last:
            event = waiting.popleft()
            at = places.index(event.position)
            items += _changes(of[0], version, events, rows.slice(start, at - start), sequences)
            start, version = at, event.relation
            if event.event is not None:
                items.append(Delivered(next(sequences), event.event))
        items += _changes(of[0], version, events, rows.slice(start), sequences)
        yield items
    yield [Delivered(next(sequences), one.event) for one in waiting if one.event is not None]


def _changes(
    database: Oid, version: Relation, events: RecordedEvents, rows: pa.Table, sequences: Iterator[OutboxSequence]
) -> list[Delivered]:
    if not rows.num_rows:
        return []
    return [Delivered(next(sequences), changes_of(database, version, events.shape(version), rows))]


class _Places:
    """The positions of rows of one timeline, in order."""

    def __init__(self, rows: pa.Table) -> None:
        self._lsns, self._ordinals = (rows.column(name).to_numpy() for name in ("_commit_lsn", "_ordinal"))
        self.last = position_of(rows, rows.num_rows - 1)

    def index(self, position: Position) -> int:
        """Return the first row at or after a position."""
        if position.timeline < self.last.timeline:
            return 0
        first, stop = (int(np.searchsorted(self._lsns, position.commit_lsn, side)) for side in ("left", "right"))
        return first + int(np.searchsorted(self._ordinals[first:stop], position.ordinal))
