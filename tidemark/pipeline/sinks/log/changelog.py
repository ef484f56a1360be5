"""The change log of a table: every change, appended once.

    _op _seq _tli _commit_lsn _ordinal _lsn _xid _commit_time _origin _before_kind _unchanged | the columns | _old

`_old` contains the known part of the old row; `_before_kind` is its extent (0 nothing, 1 the key, 2 all columns).
`_unchanged` names the columns with an unchanged, unknown TOASTed value: NULL here, not NULL in the table.
A TRUNCATE is one row. `tidemark.pipeline.sinks.rows.logshape` derives the log's columns from those of the table.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.io.host.failpoints import passed
from tidemark.model.change import CopyBoundary, Truncation
from tidemark.model.lsn import Lsn
from tidemark.model.position import NO_SEQUENCE
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.faults import UnfitSettings
from tidemark.pipeline.lake.files.partitions import partition_columns
from tidemark.pipeline.lake.layout import (
    Shapes,
    source_fields,
    table_comment,
    truncation_meta,
)
from tidemark.pipeline.lake.tables.delta_sql import quoted, sql_time
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_properties import EXPIRED
from tidemark.pipeline.lake.tables.table_upkeep import record_property
from tidemark.pipeline.sinks.log.log_table import CopiedRows, LogFormat, LogTableT
from tidemark.pipeline.sinks.rows.logshape import log_rows, log_schema, spelled
from tidemark.pipeline.sinks.steps import Delivered, EventStep, PackedRun, Rows, steps


class ChangeLog(Generic[LogTableT]):
    """Appends a table's changes to its log, exactly once."""

    def __init__(self, shapes: Shapes, log: LogFormat[LogTableT], partition: Sequence[str] = ()) -> None:
        """Write to `log`; a new one is partitioned by the source's columns `partition`."""
        self._log = log
        self._names = partition
        self._partition: tuple[str, ...] = ()
        self._shapes = shapes

    def apply(self, items: Sequence[Delivered]) -> LogTableT:
        """Append the changes of `items` that the log lacks."""
        table = self._log.open()
        waiting: list[pa.Table] = []
        applied = table.applied
        for step in steps(items, applied):
            try:
                self._partition = partition_columns(step.relation, self._names)
            except UnfitSettings:
                self._append(table, waiting, applied)
                raise
            if isinstance(step, PackedRun):
                self._append(table, waiting, applied)
                reached = replace(applied, sequence=step.sequence, position=step.last)
                if self._log.append_packed(table, step, reached):
                    applied = reached
                    passed(Failpoint.LOG_APPENDED)
                    continue
                step = step.unpacked()  # noqa: PLW2901 - the same run
            if isinstance(step, Rows):
                rows = log_rows(step)
                if waiting and waiting[-1].schema != rows.schema:
                    self._append(table, waiting, applied)
                waiting.append(rows)
                applied = replace(applied, sequence=step.sequence, position=step.last)
            elif isinstance(step.event, Truncation):
                rows = truncation_rows(step, step.event, self._shapes)
                if waiting and waiting[-1].schema != rows.schema:
                    self._append(table, waiting, applied)
                waiting.append(rows)
                applied = replace(applied, sequence=step.sequence, position=step.event.position)
            elif isinstance(step.event, CopyBoundary):
                self._append(table, waiting, applied)
                applied = self._bound_copy(table, step, step.event)
        self._append(table, waiting, applied)
        return table

    def _append(self, table: LogTableT, waiting: list[pa.Table], applied: Applied) -> None:
        if not waiting:
            return
        rows = pa.concat_tables(waiting)
        waiting.clear()
        if not table.exists:
            table.create(rows.schema, table.applied, partition=self._partition)
        else:
            rows = spelled(rows, table.schema)
            self._log.convert_types(table, rows.schema)
        table.append(rows, applied, merge_schema=True)
        passed(Failpoint.LOG_APPENDED)

    def _bound_copy(self, table: LogTableT, step: EventStep, boundary: CopyBoundary) -> Applied:
        applied = Applied(
            step.sequence,
            boundary.position,
            boundary.generation,
            step.sequence if boundary.begin else NO_SEQUENCE,
        )
        shape, comments = self._shapes(boundary.relation), boundary.comments
        if table.exists and comments is not None:
            table.describe(source_fields(boundary.relation, shape, comments), table_comment(comments))
        if not table.exists:
            schema = log_schema(boundary.relation, shape, comments or ())
            table.create(schema, applied, table_comment(comments), partition=self._partition)
        elif boundary.begin and table.applied.copy_sequence:
            # The previous copy did not end: its rows are deleted, because its snapshot was abandoned. NB: they are
            # identified by the LSN that the log has applied; a sequence alone may belong to an older outbox.
            copied = CopiedRows(table.applied.copy_sequence, table.applied.position.commit_lsn)
            self._log.delete_copied(table, copied, applied)
        else:
            table.append(table.schema.empty_table(), applied)
        passed(Failpoint.LOG_APPENDED)
        return applied


def truncation_rows(step: EventStep, event: Truncation, shapes: Shapes) -> pa.Table:
    """Return the log's row for a TRUNCATE."""
    schema = log_schema(event.relation, shapes(event.relation))
    return pa.Table.from_pylist([truncation_meta(event, step.sequence)], schema=schema)


def expired_lsn(table: LakeTable) -> Lsn:
    """Return up to which commit LSN rows of a log may be deleted; 0: the log has all."""
    return Lsn(int(table.delta.metadata().configuration.get(EXPIRED, 0)))


def expire_rows(table: LakeTable, before_us: int) -> None:
    """Delete the rows whose transaction was committed before a time.

    The property `EXPIRED` is set first: it shows from where on the log is complete.
    """
    expired = pc.field("_commit_time") < pa.scalar(before_us, pa.timestamp("us", tz="UTC"))
    columns = ["_commit_lsn", "_commit_time"]
    lsns = [pc.max(batch.column(0)).as_py() for batch in table.scan(columns, expired) if batch.num_rows]
    if not lsns:
        return
    record_property(table, EXPIRED, str(max(expired_lsn(table), *lsns)))
    table.delete(f"{quoted('_commit_time')} < {sql_time(before_us)}", table.applied)
