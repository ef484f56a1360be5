"""Rows of a replica: the new ones of a run, those of a partition, and those that a rewrite by DDL keeps."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.change import AFTER, RewriteBoundary
from tidemark.model.lsn import Oid
from tidemark.model.relation import TABLEOID_NUMBER, Relation
from tidemark.pipeline.lake.deletion_marks import DELETED, NOT_DELETED
from tidemark.pipeline.lake.layout import lake_columns, replica_schema, reshaper
from tidemark.pipeline.lake.tables.delta_sql import quoted
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.sinks.steps import Rows

Kept = Callable[[pa.RecordBatch], pa.Array]
"""Returns which rows of a batch are kept."""


def new_rows(step: Rows, changes: pa.Table | None = None) -> pa.Table:
    """Return the new rows of a run, or of a part of it, in the replica's layout."""
    after_rows = (step.changes if changes is None else changes).column(AFTER).combine_chunks()
    children = after_rows.flatten()
    schema = replica_schema(step.relation, after_rows.type)
    return pa.table([children[column.index] for column in lake_columns(step.relation)], schema=schema)


def of_partition(relation: Relation, partition: Oid) -> str:
    """Return the condition that a row belongs to a partition."""
    return f"{quoted(_tableoid(relation))} = {partition}"


def _tableoid(relation: Relation) -> str:
    return next(column.name for column in lake_columns(relation) if column.number == TABLEOID_NUMBER)


def kept_by(event: RewriteBoundary, *, keeps_deleted: bool) -> Kept | None:
    """Return which rows of a replica a rewrite keeps: those of other partitions, and deleted ones; None: none."""
    tableoid = _tableoid(event.relation) if event.partition else ""

    def kept(batch: pa.RecordBatch) -> pa.Array:
        others = pc.not_equal(batch.column(tableoid), event.partition) if tableoid else False
        return pc.or_(others, batch.column(DELETED)) if keeps_deleted else others

    return kept if tableoid or keeps_deleted else None


def with_kept(table: LakeTable, aside: LakeTable, kept: Kept) -> pa.RecordBatchReader:
    """Yield the rewritten rows, and the rows of the replica that are kept, in the same layout.

    NB: values that do not fit are NULL there. A change of types rewrites every partition, so their rows follow.
    """
    wanted = aside.schema
    reshape = reshaper(table.schema, wanted, NOT_DELETED, {}, lenient=True)

    rewritten, applied = (
        aside.scan(wanted.names),
        table.scan(),
    )  # NB: scanned outside of `batches`: delta-rs consumes the batches inside its runtime

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rewritten
        for batch in map(reshape, applied):
            yield batch.filter(kept(batch))

    return pa.RecordBatchReader.from_batches(wanted, batches())
