"""The ports of a log: a table to which rows are appended with a position, and the format of such tables."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from tidemark.model.change import Op
from tidemark.model.lsn import Lsn
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.delta_log.lineage import Recorded
from tidemark.pipeline.lake.tables.delta_sql import quoted
from tidemark.pipeline.lake.tables.lake_table import LakeTable, OpenTable
from tidemark.pipeline.sinks.executors.executor_files import FileWriters, LogFiles
from tidemark.pipeline.sinks.executors.write_costs import RunWriter
from tidemark.pipeline.sinks.rows.logshape import convert_types
from tidemark.pipeline.sinks.steps import PackedRun, byte_count


class LogTable(Protocol):
    """A table of the lake at one snapshot; each write records the position that the table then contains."""

    @property
    def exists(self) -> bool:
        """Return whether the table exists."""
        ...

    @property
    def applied(self) -> Applied:
        """Return the position up to which the table contains all changes."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Return the columns."""
        ...

    def create(
        self, schema: pa.Schema, applied: Applied, description: str = "", *, partition: Sequence[str] = ()
    ) -> None:
        """Create the table without rows."""
        ...

    def append(self, rows: pa.Table, applied: Applied, *, merge_schema: bool = False) -> None:
        """Add `rows`; with `merge_schema` also new columns and new fields of structs."""
        ...

    def describe(self, fields: Iterable[pa.Field], description: str | None = None) -> None:
        """Set the description of the table and the comments of its columns; the position remains."""
        ...


LogTableT = TypeVar("LogTableT", bound=LogTable)


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """The rows of a first copy: those from the outbox value `sequence` on, at the copy's LSN."""

    sequence: OutboxSequence
    commit_lsn: Lsn

    op = Op.COPY.value


class LogFormat(Protocol[LogTableT]):
    """How the logs of one format are opened and changed."""

    def open(self) -> LogTableT:
        """Open the log."""
        ...

    def append_packed(self, table: LogTableT, run: PackedRun, applied: Applied) -> bool:
        """Let other processes write the files of a run, and commit them; return False if its rows are needed here."""
        ...

    def convert_types(self, table: LogTableT, wanted: pa.Schema) -> None:
        """Give the columns of a log the types that they have in `wanted`; its values and its position remain."""
        ...

    def delete_copied(self, table: LogTableT, rows: CopiedRows, applied: Applied) -> None:
        """Delete the rows of a copy that did not end, and record `applied`."""
        ...


@dataclass(frozen=True, slots=True)
class DeltaLogFormat:
    """A log that is a Delta table; with `recorded` it is checked against that record when it is opened."""

    uri: str
    app: str
    recorded: Recorded | None = None
    open_table: OpenTable = LakeTable
    writers: FileWriters | None = None

    def open(self) -> LakeTable:
        """Open the log."""
        return self.open_table(self.uri, self.app, self.recorded)

    def append_packed(self, table: LakeTable, run: PackedRun, applied: Applied) -> bool:
        """Let executors write the files of a run, and commit them; return False if its rows are needed here."""
        if self.writers is None or not table.exists or table.partition:
            return False
        if not self.writers.appends(byte_count(run.batches)):
            return False  # only its merge is worth a job
        begun_s = time.monotonic()
        written = self.writers.write(LogFiles(table.uri, table.schema), run)
        if written is not None:
            with table.writing(applied) as change:
                change.added += written.added
            self.writers.record(RunWriter.EXECUTORS, byte_count(run.batches), time.monotonic() - begun_s)
        return written is not None

    def convert_types(self, table: LakeTable, wanted: pa.Schema) -> None:
        """Rewrite the log if a column of `wanted` has another type there."""
        convert_types(table, wanted)

    def delete_copied(self, table: LakeTable, rows: CopiedRows, applied: Applied) -> None:
        """Delete the rows of a copy that did not end, and record `applied`."""
        where = f"{quoted('_seq')} >= {rows.sequence} AND {quoted('_commit_lsn')} = {rows.commit_lsn}"
        table.delete(f"{quoted('_op')} = '{rows.op}' AND {where}", applied)
