"""The replica of a table: the rows of the source, merged by key.

A run of changes is compacted to one row for each key and merged in one commit. Each event between runs is one commit.
Rows rewritten by DDL are staged in a Delta table beside the replica until the rewrite ends: then one commit replaces
rows and columns together, and no reader sees a part of it. A change of layout without a rewrite is made from the
replica's own rows, also in one commit. The replica of a dropped table remains unchanged.

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
    PartitionChange,
    PartitionEvent,
    RewriteBoundary,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
    Truncation,
)
from tidemark.model.position import NO_SEQUENCE
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.lineage import Recorded
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.deletion_marks import (
    DELETED,
    MARK_NAMES,
    MARK_NUMBERS,
    MARKS,
    NOT_DELETED,
    marks_after,
    not_deleted,
)
from tidemark.pipeline.lake.faults import UnfitSettings
from tidemark.pipeline.lake.files.partitions import partition_columns
from tidemark.pipeline.lake.lake_table import LakeTable, OpenTable, quoted
from tidemark.pipeline.lake.layout import (
    Constants,
    Shapes,
    lake_columns,
    numbered,
    plan_reshape,
    redeclared,
    replica_schema,
    reshaper,
    table_comment,
    with_comments,
)
from tidemark.pipeline.lake.row_identity import RowIdentity, row_identity
from tidemark.pipeline.lake.writable_table import writable_table
from tidemark.pipeline.merge.compaction import RowKey, compact, only_adds
from tidemark.pipeline.merge.merging import append_rows, merge_rows, merge_whole_rows, rows_of
from tidemark.pipeline.merge.touched_files import keyed_files
from tidemark.pipeline.merge.whole_rows import net_rows
from tidemark.pipeline.sinks.packed_runs import PackedRuns
from tidemark.pipeline.sinks.replica_rows import kept_by, new_rows, of_partition, with_kept
from tidemark.pipeline.sinks.rerendering import Conversions, rerendered_rows, rerenderings
from tidemark.pipeline.sinks.steps import Delivered, EventStep, PackedRun, Rows, after, steps

_NONE: Conversions = {}
REWRITE = "rewrite"
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
        self._shapes = shapes
        self._constants = constants
        self._dialect = dialect
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
        self._partition = partition_columns(step.relation, self._names)
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
        _empty(unkeyed, unkeyed.schema, NOTHING)
        unkeyed.forget_files()
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
        self._reshape(table, step.relation, step.changes.schema.field(AFTER).type, table.applied)
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
        applied = replace(table.applied, sequence=step.sequence, position=event.position)
        match event:
            case Truncation():
                self._reshape(table, event.relation, self._shapes(event.relation), table.applied)
                if event.partition:
                    self._delete(table, event.relation, of_partition(event.relation, event.partition), applied)
                else:
                    self._delete(table, event.relation, None, replace(applied, blocked=False))
            case PartitionEvent(change=PartitionChange.DETACH | PartitionChange.DROP) if table.exists:
                self._delete(table, event.relation, of_partition(event.relation, event.partition.oid), applied)
            case CopyBoundary():
                self._bound_copy(table, event, applied)
            case RewriteBoundary():
                self._bound_rewrite(table, event, applied)
            case SchemaEvent(change=SchemaChange.CREATE, after=Relation() as relation) if _is_made_empty(event):
                # NB: an existing table that was unlogged for a while: its deletions in that time are not in WAL.
                self._make_empty(table, relation, replace(applied, blocked=False))
            case SchemaEvent(after=Relation() as relation) if event.effect is not SchemaEffect.REWRITE:
                self._redeclare(table, event.before, relation)
                self._reshape(table, relation, self._shapes(relation), applied, rerenderings(event.before, relation))
            case _:  # a rewrite changes columns and rows together; a dropped table stays unchanged
                return
        passed(Failpoint.REPLICA_CHANGED)

    def _delete(self, table: LakeTable, relation: Relation, where: str | None, applied: Applied) -> None:
        """Delete the rows that match the SQL condition `where`, or all; or mark them as deleted."""
        if not self._keeps_deleted:
            table.delete(where, applied)
            return
        self._reshape(table, relation, self._shapes(relation), table.applied)
        live = f"NOT {quoted(DELETED)}"
        table.update(marks_after(applied.position), f"{live} AND {where}" if where else live, applied)

    def _make_empty(self, table: LakeTable, relation: Relation, applied: Applied) -> None:
        if self._keeps_deleted and table.exists:
            self._delete(table, relation, None, applied)
        else:
            _empty(table, self._layout(table, relation, self._shapes(relation)), applied, self._partition)

    def _bound_copy(self, table: LakeTable, event: CopyBoundary, applied: Applied) -> None:
        copying = replace(
            applied,
            generation=event.generation,
            copy_sequence=applied.sequence if event.begin else NO_SEQUENCE,
            blocked=False,
        )
        relation, columns, comments = event.relation, self._shapes(event.relation), event.comments
        if not table.exists:
            wanted = self._with_marks(relation, replica_schema(relation, columns, comments or ()))
            table.create(wanted, copying, table_comment(comments), partition=self._partition)
        elif event.begin and comments is not None:
            table.describe((), table_comment(comments))
            wanted = self._with_marks(relation, replica_schema(relation, columns, comments))
            table.overwrite(wanted.empty_table(), copying, partition=self._partition)
        elif event.begin:
            wanted = self._with_marks(relation, _described(table, relation, columns))
            table.overwrite(wanted.empty_table(), copying, partition=self._partition)
        else:
            table.append(table.schema.empty_table(), copying)

    def _bound_rewrite(self, table: LakeTable, event: RewriteBoundary, applied: Applied) -> None:
        aside = self.staging_table()
        if event.begin:
            if event.position > aside.applied.position:
                _empty(aside, self._layout(table, event.relation, self._shapes(event.relation)), applied)
            return
        if not table.exists:
            table.create(aside.schema, table.applied, partition=self._partition)
        kept = kept_by(event, keeps_deleted=self._keeps_deleted)
        rows = aside.scan() if kept is None else with_kept(table, aside, kept)
        if not event.partition:
            table.overwrite(rows, replace(applied, blocked=False), partition=self._partition)
        elif not table.applied.blocked:
            table.overwrite(rows, applied, partition=self._partition)
        passed(Failpoint.REWRITE_ENDED)
        _empty(aside, aside.schema, applied)
        aside.forget_files()

    def staging_table(self) -> LakeTable:
        """Return the table that stores rewritten rows until the rewrite ends."""
        return writable_table(f"{self.uri}-{REWRITE}", f"{self.app}-{REWRITE}")

    # Layout

    def _layout(self, table: LakeTable, relation: Relation, columns: pa.StructType) -> pa.Schema:
        """Return the layout of `relation`, with the columns of `table` that it lacks if they are kept."""
        wanted = self._with_marks(relation, _described(table, relation, columns))
        if not self._keeps_columns or not table.exists:
            return wanted
        known = {*numbered(wanted), *MARK_NUMBERS}
        return pa.schema([*wanted, *(field for number, field in numbered(table.schema).items() if number not in known)])

    def _with_marks(self, relation: Relation, layout: pa.Schema) -> pa.Schema:
        """Return a layout with the columns of marks if deleted rows are kept."""
        if not self._keeps_deleted:
            return layout
        taken = [name for name in layout.names if name.lower() in MARK_NAMES]
        if taken:
            raise UnfitSettings(
                f"{relation.qualified_name}: soft_deletes adds the column {taken[0]}, which the table has already"
            )
        return pa.schema([*layout, *MARKS])

    def _new_rows(self, step: Rows, changes: pa.Table | None = None) -> pa.Table:
        """Return the new rows of a run, or of a part of it, in the replica's layout."""
        rows = new_rows(step, changes)
        return not_deleted(rows) if self._keeps_deleted else rows

    def _redeclare(self, table: LakeTable, before: Relation | None, after: Relation) -> None:
        """Set the declared types of the columns of which an event changed nothing else."""
        if table.exists and before is not None:
            wanted = _described(table, after, self._shapes(after))
            table.describe(redeclared(before, after, table.schema, wanted))

    def _reshape(
        self,
        table: LakeTable,
        relation: Relation,
        columns: pa.StructType,
        applied: Applied,
        conversions: Conversions = _NONE,
    ) -> None:
        """Give the replica the layout of `relation`, create it if missing, and rerender its rows by `conversions`."""
        fitting = (relation, columns, self._keeps_columns, self._keeps_deleted)
        if table.fits == fitting and not conversions:
            return
        wanted = self._layout(table, relation, columns)
        if not table.exists:
            table.create(wanted, applied, partition=self._partition)
            return
        if MARK_NUMBERS & numbered(table.schema).keys() and not self._keeps_deleted:
            table.delete(quoted(DELETED), table.applied)  # the setting was removed
        schema = table.schema
        constants = self._constants(relation, self._dialect)
        if self._keeps_deleted:
            constants = {**constants, **NOT_DELETED}
        plan = plan_reshape(schema, wanted, constants)
        if plan is None and not conversions:
            table.fits = fitting
            return
        if plan is None or plan.rewrites or conversions:
            reshape = reshaper(schema, wanted, constants, conversions)
            rows = pa.RecordBatchReader.from_batches(wanted, map(reshape, table.scan()))
            table.overwrite(rows, applied, partition=self._partition)
        else:
            table.add_columns(plan.added, applied)
        passed(Failpoint.REPLICA_RESHAPED)


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


def _described(table: LakeTable, relation: Relation, columns: pa.StructType) -> pa.Schema:
    """Return the layout of `relation` with the comments of the columns that `table` has."""
    wanted = replica_schema(relation, columns)
    return with_comments(wanted, table.schema) if table.exists else wanted


def _is_made_empty(event: SchemaEvent) -> bool:
    """Return whether a created table is empty, apart from the rows that follow."""
    return event.effect is SchemaEffect.METADATA and not event.brings_rows


def _empty(table: LakeTable, schema: pa.Schema, applied: Applied, partition: Sequence[str] = ()) -> None:
    if table.exists:
        table.overwrite(schema.empty_table(), applied, partition=partition)
    else:
        table.create(schema, applied, partition=partition)
