"""The replica of a table: the rows of the source, merged by key.

A run of changes is compacted to one row for each key and merged in one commit. Each event between runs is one commit.
`replica_events` applies these, `replica_layout` determines the columns.

A table without a key has a replica with REPLICA IDENTITY FULL: a change removes exactly one of the rows that equal its
old row. With another identity it has none, because a change does not identify its row. As long as rows are only
inserted, they are collected in a Delta table beside it (`UNKEYED`), which becomes the replica when the table gets a key
or that identity. At the first update or delete this table is emptied and *blocked*: only the log continues. An event
that replaces all rows unblocks it. The replica of a table that lost its key remains unchanged, and is blocked as well.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.types.codec import Dialect
from tidemark.io.host.failpoints import passed
from tidemark.io.process.lake_config import MERGE_ROWS
from tidemark.model.change import (
    AFTER,
    CopyBoundary,
    Op,
    SchemaEvent,
    Truncation,
)
from tidemark.model.position import NO_SEQUENCE
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.lineage import Recorded
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.deletion_marks import (
    not_deleted,
)
from tidemark.pipeline.lake.faults import UnfitSettings
from tidemark.pipeline.lake.layout import (
    Constants,
    Shapes,
    lake_columns,
)
from tidemark.pipeline.lake.row_identity import RowIdentity, row_identity
from tidemark.pipeline.lake.tables.lake_table import LakeTable, OpenTable
from tidemark.pipeline.lake.tables.table_upkeep import forget_files
from tidemark.pipeline.lake.tables.writable_table import writable_table
from tidemark.pipeline.merge.compaction import RowKey, compact, only_adds
from tidemark.pipeline.merge.merging import append_rows, merge_rows, merge_whole_rows, rows_of
from tidemark.pipeline.merge.touched_files import keyed_files
from tidemark.pipeline.merge.whole_rows import net_rows
from tidemark.pipeline.sinks.executors.packed_runs import PackedRuns
from tidemark.pipeline.sinks.replica.replica_events import ReplicaEvents, empty_table
from tidemark.pipeline.sinks.replica.replica_layout import ReplicaLayout
from tidemark.pipeline.sinks.rows.replica_rows import new_rows
from tidemark.pipeline.sinks.rows.rerendering import rerendered_rows
from tidemark.pipeline.sinks.steps import Delivered, EventStep, PackedRun, Rows, after, steps

UNKEYED = "unkeyed"


class Replica:
    """Applies a table's changes to its replica, exactly once."""

    def __init__(
        self,
        uri: str,
        app: str,
        shapes: Shapes,
        constants: Constants,
        dialect: Dialect,
        *,
        present: Relation | None = None,
        open_table: OpenTable = LakeTable,
        rows_max: int = MERGE_ROWS,
        cluster: Sequence[str] = (),
        partition: Sequence[str] = (),
        keeps_columns: bool = False,
        keeps_deleted: bool = False,
        packed: PackedRuns | None = None,
    ) -> None:
        """`present`: the version of the last event, in which the replica's rows are rendered; None: not known.

        One merge has at most `rows_max` rows, or those of one item. Files are sorted by the source's columns `cluster`,
        then by key. With `keeps_columns`, a column that a version lacks stays, and is NULL in the rows of that version.
        With `keeps_deleted`, deleted rows stay, with marks. The replica is partitioned by the source's columns
        `partition` when its rows are replaced as a whole. Large runs are `packed`: executors write them.
        """
        self._packed = packed
        self._keeps_deleted = keeps_deleted
        self._names = partition
        self._partition: tuple[str, ...] = ()  # of the last step
        self._rows_max, self._cluster, self._keeps_columns = rows_max, cluster, keeps_columns
        self._open_table = open_table
        self.uri = uri
        self.app = app
        self._layout = ReplicaLayout(
            shapes, constants, dialect, partition=partition, keeps_columns=keeps_columns, keeps_deleted=keeps_deleted
        )
        self._events = ReplicaEvents(uri, app, self._layout)
        self.present = present
        self._identity: RowIdentity | None = None  # of the last step

    def apply(self, items: Sequence[Delivered], recorded: Recorded | None = None) -> LakeTable:
        """Apply the items that the replica lacks; return the replica, or the table of rows without a key.

        With `recorded` check that the replica matches that record.
        """
        table = self._open_table(self.uri, self.app, recorded)
        if table.version <= 0:
            unkeyed = self._unkeyed()
            if unkeyed.applied.position > table.applied.position:
                table = unkeyed
        for step in steps(items, table.applied, self._rows_max):
            if not lake_columns(step.relation):
                continue  # rows without columns cannot be distinguished, and Delta has no such table
            if isinstance(step, PackedRun):
                if self._write_packed(table, step):
                    continue
                step = step.unpacked()  # noqa: PLW2901 - the same run
            table = self._step(table, step)
        return table

    @property
    def sorted_by(self) -> tuple[str, ...]:
        """Return the columns by which files are sorted, as of the last step; () without a step or a key."""
        return self._identity.sorted_by if self._identity is not None else ()

    def _write_packed(self, table: LakeTable, run: PackedRun) -> bool:
        """Let executors write a run, and commit it; return False if its rows are needed here."""
        identity = row_identity(run.relation, (*self._names, *self._cluster))
        if self._packed is None or identity is None or table.uri != self.uri or not table.exists:
            return False
        if self._keeps_deleted and identity.is_whole_row:
            return False
        if table.applied.blocked or self._keeps_columns or self.present not in (None, run.relation):
            return False
        if not self._packed.write(table, run, identity):
            return False
        self._identity = identity
        passed(Failpoint.REPLICA_CHANGED)
        return True

    def _step(self, table: LakeTable, step: Rows | EventStep) -> LakeTable:
        self._partition = self._layout.partition(step.relation)
        self._identity = row_identity(step.relation, (*self._names, *self._cluster))
        is_keyed = self._identity is not None
        if self._keeps_deleted and self._identity is not None and self._identity.is_whole_row:
            raise UnfitSettings(f"{step.relation.qualified_name}: soft_deletes needs a key, and the table has none")
        if not is_keyed and not table.exists:
            table = self._unkeyed()
        elif not is_keyed and table.uri == self.uri:
            if not _needs_no_key(table, step):
                self._leave(table, step)
                return table
        elif is_keyed and table.uri != self.uri and not table.applied.blocked:
            table = self._keyed(table)
        if isinstance(step, Rows):
            self._rows(table, step, self._identity)
        else:
            self._event(table, step)
        if is_keyed and table.uri != self.uri and not table.applied.blocked:
            table = self._keyed(table)
        return table

    # A table without a key

    def _unkeyed(self) -> LakeTable:
        return writable_table(f"{self.uri}-{UNKEYED}", f"{self.app}-{UNKEYED}")

    def _leave(self, table: LakeTable, step: Rows | EventStep) -> None:
        """Keep the rows of a replica whose table lost its key, and record that they are no longer updated."""
        if not table.applied.blocked:
            position = step.last if isinstance(step, Rows) else step.event.position
            applied = replace(table.applied, sequence=step.sequence, position=position, blocked=True)
            table.append(table.schema.empty_table(), applied)
            passed(Failpoint.REPLICA_CHANGED)

    def _keyed(self, unkeyed: LakeTable) -> LakeTable:
        """Create the replica of a table that now has a key from the rows collected without one."""
        table = self._open_table(self.uri, self.app, None)
        if not unkeyed.exists:
            return table
        if not table.exists:
            described = unkeyed.delta.metadata().description or ""
            table.create(unkeyed.schema, NOTHING, described, partition=self._partition)
        table.overwrite(unkeyed.scan(), unkeyed.applied)
        passed(Failpoint.REPLICA_RESHAPED)
        empty_table(unkeyed, unkeyed.schema, NOTHING)
        forget_files(unkeyed)
        return table

    # Rows

    def _rows(self, table: LakeTable, step: Rows, identity: RowIdentity | None) -> None:
        # NB: ALTER TYPE does not wait for writers of its values, so rows in the type's old form can follow it.
        if self.present is not None and step.relation != self.present:
            step = replace(step, changes=rerendered_rows(step.changes, step.relation, self.present))
        if pc.any(pc.equal(step.changes.column("_op"), Op.REWRITE.value)).as_py():
            self._stage(step)  # a rewrite is alone in its run, between two boundaries
            return
        if table.applied.blocked:
            return
        self._layout.reshape(table, step.relation, table.applied, shape=step.changes.schema.field(AFTER).type)
        applied = replace(table.applied, sequence=step.sequence, position=step.last)
        if identity is not None and identity.is_whole_row:
            self._whole_rows(table, step, identity.columns, applied)
        elif identity is not None:
            self._keyed_rows(table, step, identity, applied)
        elif only_adds(step.changes):
            table.append(self._new_rows(step), applied)
        else:
            # The change does not identify its row; the replica stops rather than guesses. The log has every change.
            table.overwrite(table.schema.empty_table(), replace(applied, blocked=True))
        passed(Failpoint.REPLICA_CHANGED)

    def _keyed_rows(self, table: LakeTable, step: Rows, identity: RowIdentity, applied: Applied) -> None:
        key, columns = identity.columns, lake_columns(step.relation)
        # NB: a deleted row may have the key of a new one, but a copy begins with an empty replica.
        is_copied = table.applied.copy_sequence != NO_SEQUENCE and only_adds(step.changes)
        keeps_deleted = self._keeps_deleted and not is_copied
        begun_s = time.monotonic()
        compacted = compact(step.changes, columns, key, partial(_fetched, table, key), keeps_deleted=keeps_deleted)
        if self._keeps_deleted and is_copied:
            compacted = replace(compacted, puts=not_deleted(compacted.puts))
        if compacted.only_new:
            append_rows(table, compacted.puts, key, applied, identity.sorted_by)
            return
        file_bytes = merge_rows(table, compacted, key, applied, identity.sorted_by)
        if self._packed is not None:
            self._packed.record(step.changes.get_total_buffer_size(), file_bytes, time.monotonic() - begun_s)

    def _whole_rows(self, table: LakeTable, step: Rows, columns: Sequence[str], applied: Applied) -> None:
        """Apply changes of a table without a key; a change without its whole old row ends the updates of the replica.

        NB: partitions of one table may have different replica identities.
        """
        if only_adds(step.changes):
            append_rows(table, self._new_rows(step), columns, applied)
            return
        net = net_rows(step.changes, lake_columns(step.relation))
        if net is None:
            self._leave(table, step)
        else:
            merge_whole_rows(table, net, columns, applied)

    def _stage(self, step: Rows) -> None:
        aside = self.staging_table()
        late = after(step.changes, aside.applied.position)
        if late.num_rows:
            aside.append(self._new_rows(step, late), replace(aside.applied, sequence=step.sequence, position=step.last))
            passed(Failpoint.REWRITE_STAGED)

    # Events

    def _event(self, table: LakeTable, step: EventStep) -> None:
        event = step.event
        if isinstance(event, SchemaEvent) and event.after is not None:
            self.present = event.after
        elif isinstance(event, CopyBoundary):
            self.present = event.relation
        self._events.apply(table, step)

    def staging_table(self) -> LakeTable:
        """Return the table that stores rewritten rows until the rewrite ends."""
        return self._events.staging_table()

    def _new_rows(self, step: Rows, changes: pa.Table | None = None) -> pa.Table:
        """Return the new rows of a run, or of a part of it, in the replica's layout."""
        rows = new_rows(step, changes)
        return not_deleted(rows) if self._keeps_deleted else rows


def _fetched(
    table: LakeTable, key: Sequence[str], wanted: Sequence[RowKey], names: Sequence[str]
) -> dict[RowKey, dict[str, object]]:
    with table.reading():
        return rows_of(keyed_files(table, key), wanted, names)


def _needs_no_key(table: LakeTable, step: Rows | EventStep) -> bool:
    """Return whether a step of a version without a key is applied to a replica that has one.

    Two statements may replace a key; steps between them that change no row do not lose the key. The version of a
    partitioned table may have no key although its partitions, and so the rows, have one: a copy of its rows, and events
    on all rows of a partition, need no key.
    """
    is_root, blocked = step.relation.has_partition_rows, table.applied.blocked
    if isinstance(step, Rows):
        return is_root and not blocked and only_adds(step.changes)
    event = step.event
    if isinstance(event, SchemaEvent):
        return not blocked
    replaces_rows = isinstance(event, CopyBoundary) or (isinstance(event, Truncation) and not event.partition)
    return is_root and (replaces_rows or not blocked)
