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

from collections.abc import Iterator, Sequence
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
from tidemark.model.lsn import Oid
from tidemark.model.position import NO_SEQUENCE
from tidemark.model.relation import TABLEOID_NUMBER, Relation
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.lineage import Recorded
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.lake_table import LakeTable, OpenTable, quoted
from tidemark.pipeline.lake.layout import (
    Constants,
    Shapes,
    lake_columns,
    plan_reshape,
    redeclared,
    replica_schema,
    reshaper,
    table_comment,
    with_comments,
)
from tidemark.pipeline.lake.row_identity import RowIdentity, row_identity
from tidemark.pipeline.merge.compaction import compact, only_adds
from tidemark.pipeline.merge.merging import append_rows, merge_rows, merge_whole_rows, rows_of
from tidemark.pipeline.merge.whole_rows import net_rows
from tidemark.pipeline.sinks.rerendering import Conversions, rerendered_rows, rerenderings
from tidemark.pipeline.sinks.steps import Delivered, EventStep, Rows, after, steps

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
    ) -> None:
        """`present`: the version of the last event, in which the replica's rows are rendered; None: not known.

        One merge has at most `rows_max` rows, or those of one item. Files are sorted by the source's columns `cluster`,
        then by key.
        """
        self._rows_max, self._cluster = rows_max, cluster
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
            table = self._step(table, step)
        return table

    @property
    def sorted_by(self) -> tuple[str, ...]:
        """Return the columns by which files are sorted, as of the last step; () without a step or a key."""
        return self._identity.sorted_by if self._identity is not None else ()

    def _step(self, table: LakeTable, step: Rows | EventStep) -> LakeTable:
        self._identity = row_identity(step.relation, self._cluster)
        is_keyed = self._identity is not None
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
        return LakeTable(f"{self.uri}-{UNKEYED}", f"{self.app}-{UNKEYED}")

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
            table.create(unkeyed.schema, NOTHING, unkeyed.delta.metadata().description or "")
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
            key = identity.columns
            compacted = compact(step.changes, lake_columns(step.relation), key, partial(rows_of, table, key))
            if compacted.only_new:
                append_rows(table, compacted.puts, identity.sorted_by, applied)
            else:
                merge_rows(table, compacted, key, applied, identity.sorted_by)
        elif only_adds(step.changes):
            table.append(new_rows(step), applied)
        else:
            # The change does not identify its row; the replica stops rather than guesses. The log has every change.
            table.overwrite(table.schema.empty_table(), replace(applied, blocked=True))
        passed(Failpoint.REPLICA_CHANGED)

    def _whole_rows(self, table: LakeTable, step: Rows, columns: Sequence[str], applied: Applied) -> None:
        """Apply changes of a table without a key; a change without its whole old row ends the updates of the replica.

        NB: partitions of one table may have different replica identities.
        """
        if only_adds(step.changes):
            append_rows(table, new_rows(step), columns, applied)
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
            aside.append(new_rows(step, late), replace(aside.applied, sequence=step.sequence, position=step.last))
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
                    table.delete(_of_partition(event.relation, event.partition), applied)
                else:
                    table.delete(None, replace(applied, blocked=False))
            case PartitionEvent(change=PartitionChange.DETACH | PartitionChange.DROP) if table.exists:
                table.delete(_of_partition(event.relation, event.partition.oid), applied)
            case CopyBoundary():
                self._bound_copy(table, event, applied)
            case RewriteBoundary():
                self._bound_rewrite(table, event, applied)
            case SchemaEvent(change=SchemaChange.CREATE, after=Relation() as relation) if _is_made_empty(event):
                # NB: an existing table that was unlogged for a while: its deletions in that time are not in WAL.
                _empty(table, _described(table, relation, self._shapes(relation)), replace(applied, blocked=False))
            case SchemaEvent(after=Relation() as relation) if event.effect is not SchemaEffect.REWRITE:
                self._redeclare(table, event.before, relation)
                self._reshape(table, relation, self._shapes(relation), applied, rerenderings(event.before, relation))
            case _:  # a rewrite changes columns and rows together; a dropped table stays unchanged
                return
        passed(Failpoint.REPLICA_CHANGED)

    def _bound_copy(self, table: LakeTable, event: CopyBoundary, applied: Applied) -> None:
        copying = replace(
            applied,
            generation=event.generation,
            copy_sequence=applied.sequence if event.begin else NO_SEQUENCE,
            blocked=False,
        )
        relation, columns, comments = event.relation, self._shapes(event.relation), event.comments
        if not table.exists:
            table.create(replica_schema(relation, columns, comments or ()), copying, table_comment(comments))
        elif event.begin and comments is not None:
            table.describe((), table_comment(comments))
            table.overwrite(replica_schema(relation, columns, comments).empty_table(), copying)
        elif event.begin:
            table.overwrite(_described(table, relation, columns).empty_table(), copying)
        else:
            table.append(table.schema.empty_table(), copying)

    def _bound_rewrite(self, table: LakeTable, event: RewriteBoundary, applied: Applied) -> None:
        aside = self.staging_table()
        if event.begin:
            if event.position > aside.applied.position:
                _empty(aside, _described(table, event.relation, self._shapes(event.relation)), applied)
            return
        if not table.exists:
            table.create(aside.schema, table.applied)
        if not event.partition:
            table.overwrite(aside.scan(), replace(applied, blocked=False))
        elif not table.applied.blocked:
            table.overwrite(_with_others(table, aside, event), applied)
        passed(Failpoint.REWRITE_ENDED)
        _empty(aside, aside.schema, applied)
        aside.forget_files()

    def staging_table(self) -> LakeTable:
        """Return the table that stores rewritten rows until the rewrite ends."""
        return LakeTable(f"{self.uri}-{REWRITE}", f"{self.app}-{REWRITE}")

    # Layout

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
        if not table.exists:
            table.create(replica_schema(relation, columns), applied)
            return
        schema = table.schema
        wanted = with_comments(replica_schema(relation, columns), schema)
        constants = self._constants(relation, self._dialect)
        plan = plan_reshape(schema, wanted, constants)
        if plan is None and not conversions:
            return
        if plan is None or plan.rewrites or conversions:
            reshape = reshaper(schema, wanted, constants, conversions)
            table.overwrite(pa.RecordBatchReader.from_batches(wanted, map(reshape, table.scan())), applied)
        else:
            table.add_columns(plan.added, applied)
        passed(Failpoint.REPLICA_RESHAPED)


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


def new_rows(step: Rows, changes: pa.Table | None = None) -> pa.Table:
    """Return the new rows of a run, or of a part of it, in the replica's layout."""
    after_rows = (step.changes if changes is None else changes).column(AFTER).combine_chunks()
    children = after_rows.flatten()
    schema = replica_schema(step.relation, after_rows.type)
    return pa.table([children[column.index] for column in lake_columns(step.relation)], schema=schema)


def _of_partition(relation: Relation, partition: Oid) -> str:
    """Return the condition that a row belongs to a partition."""
    return f"{quoted(_tableoid(relation))} = {partition}"


def _tableoid(relation: Relation) -> str:
    return next(column.name for column in lake_columns(relation) if column.number == TABLEOID_NUMBER)


def _with_others(table: LakeTable, aside: LakeTable, event: RewriteBoundary) -> pa.RecordBatchReader:
    """Yield the rewritten rows of a partition, and the rows of all other partitions in the same layout.

    NB: values that do not fit are NULL there: a change of types rewrites every partition, so their rows follow.
    """
    wanted = aside.schema
    reshape = reshaper(table.schema, wanted, {}, {}, lenient=True)

    rewritten, applied = (
        aside.scan(wanted.names),
        table.scan(),
    )  # NB: scanned outside of `batches`: delta-rs consumes the batches inside its runtime

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rewritten
        for batch in map(reshape, applied):
            others = pc.not_equal(batch.column(_tableoid(event.relation)), event.partition)
            yield batch.filter(others)

    return pa.RecordBatchReader.from_batches(wanted, batches())


def _described(table: LakeTable, relation: Relation, columns: pa.StructType) -> pa.Schema:
    """Return the layout of `relation` with the comments of the columns that `table` has."""
    wanted = replica_schema(relation, columns)
    return with_comments(wanted, table.schema) if table.exists else wanted


def _is_made_empty(event: SchemaEvent) -> bool:
    """Return whether a created table is empty, apart from the rows that follow."""
    return event.effect is SchemaEffect.METADATA and not event.brings_rows


def _empty(table: LakeTable, schema: pa.Schema, applied: Applied) -> None:
    if table.exists:
        table.overwrite(schema.empty_table(), applied)
    else:
        table.create(schema, applied)
