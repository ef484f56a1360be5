"""Adds the changes from before the first one in the log of a table: the table was captured later than they were made.

    add       `_positions` records a break before the first change of the log, so that no replay counts on what follows;
              then come data files in the folder of the log, and the events in `_events`
    complete  one commit adds all files to the log
    record    the break is removed

After a kill or an error the break remains, with the LSN from which the changes were to be added. The next attempt adds
them from there, or only removes the break if the commit was made. The files of a killed attempt belong to no commit:
the vacuum removes them. The pipeline of the lake must not run meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.types.codec import Dialect
from tidemark.io.host.failpoints import passed
from tidemark.model.change import ChangeBatch, Op, Truncation
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, TimelineId
from tidemark.model.position import NO_SEQUENCE, Position
from tidemark.pipeline.delta_log.applied import BEFORE_ALL, Applied
from tidemark.pipeline.delta_log.commit_files import FileChange
from tidemark.pipeline.earlier.new_log import NewLog
from tidemark.pipeline.earlier.older_rows import older_rows
from tidemark.pipeline.failpoints import EarlierFailpoint
from tidemark.pipeline.lake.faults import LakeEntry, LogBreak
from tidemark.pipeline.lake.files.file_format import FILE_BYTES, arrow_encodings
from tidemark.pipeline.lake.files.file_writing import fitted, write_file
from tidemark.pipeline.lake.files.partitions import divided
from tidemark.pipeline.lake.folders import LOG, table_app
from tidemark.pipeline.lake.layout import Constants, Shapes
from tidemark.pipeline.lake.log_order import PLACE, least_rows, position_in, ranges_of
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition
from tidemark.pipeline.lake.tables.lake_table import REOPENED_MAX, LakeTable
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, TableMoved
from tidemark.pipeline.lake.tables.table_properties import KEEP_HOURS
from tidemark.pipeline.lake.tables.writable_table import writable_table
from tidemark.pipeline.sinks.log.changelog import expired_lsn, truncation_rows
from tidemark.pipeline.sinks.log.event_record import EventRecord
from tidemark.pipeline.sinks.rows.logshape import log_rows
from tidemark.pipeline.sinks.steps import Delivered, PackedRun, Rows, Step, before, last_position, steps

UNFINISHED = "cdcctl table add was interrupted"  # the reason of the break of an attempt
_NO_CAPTURE_HINT = "select the table (select.tables), restart the daemons, and let the pipeline write its first change"


class LogUnfit(ConfigError):
    """A log to which no earlier changes can be added."""


@dataclass(frozen=True, slots=True)
class AddedChanges:
    """What was added to a log."""

    rows: int
    files: int
    first: Position | None  # of the changes that were added; None: there was none
    expiring: int = 0  # of the rows: maintenance deletes them, since they are older than `log_keep_days`


class EarlierChanges:
    """The changes of one table before the first one in its log; used by one thread."""

    def __init__(
        self,
        root: str,
        capture: str,
        positions: Positions,
        table: TablePosition | NewLog,
        *,
        shapes: Shapes,
        constants: Constants,
        dialects: Mapping[Oid, Dialect],
        expires_before_us: int = 0,
    ) -> None:
        """Open the log of `table` in the lake at `root`; raise `LogUnfit`.

        expires_before_us: maintenance deletes rows of transactions that were committed before this time (since 1970).
        """
        self._positions = positions
        self._new = table if isinstance(table, NewLog) else None
        self._table = table.table if isinstance(table, NewLog) else table
        self._of = (self._table.database, self._table.relation)
        self._uri, self._app = f"{root}/{self._table.folder}/{LOG}", table_app(capture, self._of, LOG)
        self._shapes = shapes
        self._opened: LakeTable | None = None
        if self._new is None:
            _check(self._table)
            self._opened = writable_table(self._uri, self._app, self._table.log.recorded)
            _check_expired(self._table, self._opened)
        self._events = EventRecord(
            root,
            capture,
            shapes,
            constants,
            dialects,
            is_reduced=lambda _of, _items: False,
            is_removed=lambda _of, _lsn: False,
            expired_lsn=lambda _of: INVALID_LSN,
        )
        # NB: an attempt that made its commit has added what is before the break
        self.end = self._table.position if self._new is not None else self._first_in_log()
        self._from_lsn = INVALID_LSN
        self._is_marked = False
        self.was_committed = any(gap.reason == UNFINISHED and self.end < gap.to for gap in self._table.breaks)
        self._reached = BEFORE_ALL
        self._first: Position | None = None
        self._waiting: list[pa.Table] = []
        self._written = FileChange()
        self._rows = 0
        self._expires_before_us = expires_before_us
        self._expiring = 0

    @property
    def _log(self) -> LakeTable:
        assert self._opened is not None, "created before the first change is added"
        return self._opened

    def _create(self) -> None:
        """Create the log if the lake has none."""
        if self._new is not None and self._opened is None:
            self._table = self._new.create()
            self._opened = writable_table(self._uri, self._app, self._table.log.recorded)

    @property
    def interrupted_lsn(self) -> Lsn | None:
        """Return from where an earlier attempt, which has not made its commit, was adding changes; None: there is none.

        The next one has to begin there, or earlier.
        """
        left = [gap for gap in self._table.breaks if gap.reason == UNFINISHED and self.end >= gap.to]
        return min((gap.after.commit_lsn for gap in left), default=None)

    def begin(self, from_lsn: Lsn) -> None:
        """Begin an attempt to add the changes from an LSN on."""
        self._from_lsn = from_lsn

    def add(self, items: Sequence[Delivered]) -> None:
        """Add items of the table in stream order; those in the log are left out."""
        earlier = list(self._earlier(items))
        if not earlier:
            return
        if not self._is_marked:
            self._mark()
        self._events.record({self._of: earlier}, self._positions.applied, KEEP_HOURS)
        for step in steps(earlier, Applied(NO_SEQUENCE, self._reached)):
            rows = self._rows_of(step)
            if rows is not None:
                self._wait(older_rows(rows, self._log.schema))
        self._reached = last_position(earlier[-1].item)

    def complete(self) -> AddedChanges:
        """Add all to the log in one commit."""
        self._create()
        self._write()
        for reopened in range(REOPENED_MAX + 1 if self._written.added else 0):
            try:
                with self._log.writing(self._log.applied) as change:
                    change.added += self._written.added
                break
            except TableMoved:  # maintenance by another program
                if reopened == REOPENED_MAX:
                    raise
                self._opened = writable_table(self._uri, self._app, self._table.log.recorded)
        passed(EarlierFailpoint.COMMITTED)
        return AddedChanges(self._rows, len(self._written.added), self._first, self._expiring)

    @property
    def table(self) -> TablePosition:
        """Return the position of the table with a complete log."""
        return replace(self._table, log=LakeEntry(self._log.recorded), breaks=self._other_breaks)

    def record(self, table: TablePosition) -> None:
        """Record the table in `_positions`."""
        self._positions.write(self._positions.outbox, [table], self._positions.applied)
        self._table = table

    def _mark(self) -> None:
        """Record that changes are being added."""
        self._create()
        unfinished = LogBreak(UNFINISHED, Position(TimelineId(0), self._from_lsn, 0), self.end)
        self.record(replace(self._table, breaks=(*self._other_breaks, unfinished)))
        self._is_marked = True
        passed(EarlierFailpoint.MARKED)

    @property
    def _other_breaks(self) -> tuple[LogBreak, ...]:
        return tuple(gap for gap in self._table.breaks if gap.reason != UNFINISHED)

    def _first_in_log(self) -> Position:
        """Return the position of the first change in the log; of a log without rows, that up to which it has all.

        A copy shows all commits before its LSN, and may show one that begins there.
        """
        applied = self._log.applied
        with self._log.reading():
            found = next(filter(None, map(self._first_in, ranges_of(self._log))), None)
        first, is_copied = found or (applied.position, bool(applied.generation))
        return replace(first, ordinal=0) if is_copied else first

    def _first_in(self, part: pc.Expression) -> tuple[Position, bool] | None:
        """Return the least position of rows of the log in a range, and whether it is that of a copied row."""
        batches = self._log.scan((*PLACE, "_op"), part)
        return min((_first(batch) for batch in batches if batch.num_rows), default=None)

    def _earlier(self, items: Sequence[Delivered]) -> Sequence[Delivered]:
        found = []
        for delivered in items:
            item = delivered.item
            if isinstance(item, ChangeBatch):
                part = before(item, self.end)
                if part is not None:
                    found.append(Delivered(delivered.sequence, part))
            elif item.position < self.end:
                found.append(delivered)
        return found

    def _rows_of(self, step: Step) -> pa.Table | None:
        if isinstance(step, Rows | PackedRun):
            return log_rows(step if isinstance(step, Rows) else step.unpacked())
        if isinstance(step.event, Truncation):
            return truncation_rows(step, step.event, self._shapes)
        return None

    def _wait(self, rows: pa.Table) -> None:
        if self._waiting and self._waiting[-1].schema != rows.schema:
            self._write()
        self._waiting.append(rows)
        if sum(part.nbytes for part in self._waiting) >= FILE_BYTES:
            self._write()

    def _write(self) -> None:
        """Write the rows that wait as a data file, or one for each partition; a log without a place for them gets it.

        NB: a new column is a commit of its own. It is NULL in all rows until the last commit.
        """
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting.clear()
        laid_out = fitted(rows, self._log.schema)
        if laid_out is None:
            self._log.append(rows.schema.empty_table(), self._log.applied, merge_schema=True)
            laid_out = fitted(rows, self._log.schema)
        if laid_out is None:
            raise LakeFailed(f"{self._uri} has no place for the columns {', '.join(rows.schema.names)}")
        if self._first is None:
            self._first = Position(*(rows.column(name)[0].as_py() for name in PLACE))
        encodings = arrow_encodings(laid_out.drop_columns(list(self._log.partition)))
        for values, part in divided(laid_out, self._log.partition):
            self._written.added.append(write_file(self._uri, part, encodings, partition=values))
        self._rows += rows.num_rows
        if self._expires_before_us:
            before = pa.scalar(self._expires_before_us, pa.timestamp("us", tz="UTC"))
            self._expiring += pc.sum(pc.less(rows.column("_commit_time"), before)).as_py() or 0
        passed(EarlierFailpoint.WRITTEN)


def _check(table: TablePosition) -> None:
    """Raise `LogUnfit` unless the log is written, with the columns of the table."""
    name = table.qualified_name
    if table.log_version < 0:
        raise LogUnfit(f"{name} has no log in the lake", hint=_NO_CAPTURE_HINT)
    if table.log.fault is not None:
        fault = table.log.fault
        raise LogUnfit(
            f"{name}: its log is {fault.kind.value}: {fault.reason}",
            hint="remove the cause first: cdcctl lake describe shows it",
        )
    if table.pinned is not None:
        raise LogUnfit(
            f"{name}: its log lacks columns of the table because of schema_policy = 'ignore' in [[lake.tables]]",
            hint="set another schema_policy, and copy the table again",
        )


def _check_expired(table: TablePosition, log: LakeTable) -> None:
    """Raise `LogUnfit` if maintenance has deleted rows of the log."""
    if expired_lsn(log):
        raise LogUnfit(
            f"{table.qualified_name}: log_keep_days has deleted rows of its log, and would delete earlier ones",
            hint="set log_keep_days = 0 for it in [[lake.tables]], and copy it again with a new log",
        )


def _first(batch: pa.RecordBatch) -> tuple[Position, bool]:
    """Return the least position in a batch, and whether it is that of a copied row."""
    rows = least_rows(batch)
    return position_in(rows), rows.column("_op")[0].as_py() == Op.COPY.value
