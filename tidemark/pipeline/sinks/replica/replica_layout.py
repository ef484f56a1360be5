"""The layout of a replica: its columns for a version of the table, and how it gets those of another version.

Kept columns and the marks of deleted rows are part of it, if the settings of the table ask for them.
"""

from collections.abc import Sequence

import pyarrow as pa

from tidemark.decode.types.codec import Dialect
from tidemark.io.host.failpoints import passed
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.deletion_marks import DELETED, MARK_NAMES, MARK_NUMBERS, MARKS, NOT_DELETED
from tidemark.pipeline.lake.faults import UnfitSettings
from tidemark.pipeline.lake.files.partitions import partition_columns
from tidemark.pipeline.lake.layout import (
    Comments,
    Constants,
    Shapes,
    numbered,
    plan_reshape,
    redeclared,
    replica_schema,
    reshaper,
    with_comments,
)
from tidemark.pipeline.lake.tables.delta_sql import quoted
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.sinks.rows.rerendering import Conversions

_NONE: Conversions = {}


class ReplicaLayout:
    """The layout of one replica."""

    def __init__(
        self,
        shapes: Shapes,
        constants: Constants,
        dialect: Dialect,
        *,
        partition: Sequence[str],
        keeps_columns: bool,
        keeps_deleted: bool,
    ) -> None:
        """Take the arguments of `Replica`."""
        self._shapes = shapes
        self._constants = constants
        self._dialect = dialect
        self._partition = partition
        self._keeps_columns = keeps_columns
        self.keeps_deleted = keeps_deleted

    def partition(self, relation: Relation) -> tuple[str, ...]:
        """Return the partition columns of a replica whose rows are replaced as a whole."""
        return partition_columns(relation, self._partition)

    def columns(self, table: LakeTable, relation: Relation) -> pa.Schema:
        """Return the layout of `relation`, with the columns of `table` that it lacks if they are kept."""
        return self._columns(table, relation, self._shapes(relation))

    def _columns(self, table: LakeTable, relation: Relation, shape: pa.StructType) -> pa.Schema:
        wanted = self._with_marks(relation, _described(table, relation, shape))
        if not self._keeps_columns or not table.exists:
            return wanted
        known = {*numbered(wanted), *MARK_NUMBERS}
        return pa.schema([*wanted, *(field for number, field in numbered(table.schema).items() if number not in known)])

    def copied_columns(self, table: LakeTable, relation: Relation, comments: Comments | None) -> pa.Schema:
        """Return the layout of a replica whose rows a copy replaces; without comments it keeps those that it has."""
        shape = self._shapes(relation)
        if table.exists and comments is None:
            return self._with_marks(relation, _described(table, relation, shape))
        return self._with_marks(relation, replica_schema(relation, shape, comments or ()))

    def _with_marks(self, relation: Relation, layout: pa.Schema) -> pa.Schema:
        """Return a layout with the columns of marks if deleted rows are kept."""
        if not self.keeps_deleted:
            return layout
        taken = [name for name in layout.names if name.lower() in MARK_NAMES]
        if taken:
            raise UnfitSettings(
                f"{relation.qualified_name}: soft_deletes adds the column {taken[0]}, which the table has already"
            )
        return pa.schema([*layout, *MARKS])

    def redeclare(self, table: LakeTable, before: Relation | None, after: Relation) -> None:
        """Set the declared types of the columns of which an event changed nothing else."""
        if table.exists and before is not None:
            wanted = _described(table, after, self._shapes(after))
            table.describe(redeclared(before, after, table.schema, wanted))

    def reshape(
        self,
        table: LakeTable,
        relation: Relation,
        applied: Applied,
        conversions: Conversions = _NONE,
        *,
        shape: pa.StructType | None = None,
    ) -> None:
        """Give the replica the layout of `relation`, create it if missing, and rerender its rows by `conversions`.

        `shape`: the types of the columns, as rows of this version have them.
        """
        columns = self._shapes(relation) if shape is None else shape
        fitting = (relation, columns, self._keeps_columns, self.keeps_deleted)
        if table.fits == fitting and not conversions:
            return
        wanted = self._columns(table, relation, columns)
        if not table.exists:
            table.create(wanted, applied, partition=self.partition(relation))
            return
        if MARK_NUMBERS & numbered(table.schema).keys() and not self.keeps_deleted:
            table.delete(quoted(DELETED), table.applied)  # the setting was removed
        schema = table.schema
        constants = self._constants(relation, self._dialect)
        if self.keeps_deleted:
            constants = {**constants, **NOT_DELETED}
        plan = plan_reshape(schema, wanted, constants)
        if plan is None and not conversions:
            table.fits = fitting
            return
        if plan is None or plan.rewrites or conversions:
            reshape = reshaper(schema, wanted, constants, conversions)
            rows = pa.RecordBatchReader.from_batches(wanted, map(reshape, table.scan()))
            table.overwrite(rows, applied, partition=self.partition(relation))
        else:
            table.add_columns(plan.added, applied)
        passed(Failpoint.REPLICA_RESHAPED)


def _described(table: LakeTable, relation: Relation, columns: pa.StructType) -> pa.Schema:
    """Return the layout of `relation` with the comments of the columns that `table` has."""
    wanted = replica_schema(relation, columns)
    return with_comments(wanted, table.schema) if table.exists else wanted
