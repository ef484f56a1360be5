"""Writes rows that are known as a whole, as by a first copy, to a new table: the result of a replay without a log.

The table has the form of a replica (`tidemark.pipeline.sinks.replica.replica`), as the result of a replay from a log.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import UTF8
from tidemark.model.change import ChangeBatch, CopyBoundary
from tidemark.model.lsn import Oid
from tidemark.model.mapping import TypeMapping
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.relation import Relation
from tidemark.pipeline.lake.layout import shape_of
from tidemark.pipeline.lake.tables.table_upkeep import forget_files
from tidemark.pipeline.replay.refusal import ReplayRefused, writing_result
from tidemark.pipeline.replay.replaying import APP
from tidemark.pipeline.replay.result_target import ResultTarget
from tidemark.pipeline.sinks.replica.replica import Replica
from tidemark.pipeline.sinks.steps import Delivered

GENERATION = 1  # the table is new
PORTION_ROWS = 1 << 18  # of one commit, as the pipeline merges them
PORTION_BYTES = 64 << 20  # of its batches; a single one may be larger


def write_copy(
    target: ResultTarget,
    folder: Path,
    database: Oid,
    relation: Relation,
    batches: Iterable[ChangeBatch],
    *,
    after: Position,
    types: TypeMapping,
) -> int:
    """Write rows with positions after `after` to `target`; `folder` is its unfinished one. Return their number."""

    def shapes(version: Relation) -> pa.StructType:
        return shape_of(version, types)

    def constants(_version: Relation, _dialect: Dialect) -> Mapping[int, pa.Scalar]:
        return {}  # no row is older than a column

    replica = Replica(str(folder / "replica"), APP, shapes, constants, UTF8)
    sequences = map(OutboxSequence, count(1))
    begin = CopyBoundary(after, database, relation, GENERATION, True, "")
    rows = 0
    with writing_result(target):
        result = replica.apply([Delivered(next(sequences), begin)])
    for portion in _portions(batches):
        rows += sum(batch.row_count for batch in portion)
        with writing_result(target):
            result = replica.apply([Delivered(next(sequences), batch) for batch in portion])
    end = replace(begin, position=replace(after, ordinal=after.ordinal + rows + 1), begin=False)
    with writing_result(target):
        result = replica.apply([Delivered(next(sequences), end)])
    if not result.exists:
        raise ReplayRefused(f"{relation.qualified_name} had no columns")
    with writing_result(target):
        forget_files(result)
        written = pc.sum(result.files(result.schema.names[:1]).column("num_records")).as_py() or 0
        target.publish(Path(result.uri))
    return int(written)


def _portions(batches: Iterable[ChangeBatch]) -> Iterator[list[ChangeBatch]]:
    """Yield the batches in portions of bounded size."""
    portion: list[ChangeBatch] = []
    rows = size = 0
    for batch in batches:
        batch_bytes = batch.rows.nbytes
        if portion and (rows + batch.row_count > PORTION_ROWS or size + batch_bytes > PORTION_BYTES):
            yield portion
            portion, rows, size = [], 0, 0
        portion.append(batch)
        rows, size = rows + batch.row_count, size + batch_bytes
    if portion:
        yield portion
