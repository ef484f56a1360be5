"""How a change identifies its row of a replica: by a key, or by all values of the old row."""

from dataclasses import dataclass

import pyarrow as pa

from tidemark.decode.types.registry import fits_row
from tidemark.model.relation import Relation, ReplicaIdentity
from tidemark.pipeline.lake.layout import key_names, lake_columns, shape_of

RANGE_COLUMNS_MAX = 8  # of a table without a key: the ranges of each cost time for every file


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """The columns by which files of a replica are sorted and searched.

    With `is_whole_row`, they do not identify a row: a change is applied to one of the rows that equal the old row.
    """

    columns: tuple[str, ...]
    is_whole_row: bool


def row_identity(relation: Relation) -> RowIdentity | None:
    """Return how changes identify rows; None for a table that has only a log.

    A table without a key needs REPLICA IDENTITY FULL, with which WAL has the complete old row. Values without a codec,
    or that contain names of other objects, differ between the first copy and the stream: no old row is found by them.
    """
    key = key_names(relation)
    if key:
        return RowIdentity(key, is_whole_row=False)
    columns = lake_columns(relation)
    live = relation.live_columns
    if relation.replica_identity is not ReplicaIdentity.FULL or not columns:
        return None
    if not all(fits_row(live[column.index]) for column in columns):
        return None
    types = shape_of(relation)
    ordered = [column.name for column in columns if _has_range(types.field(column.index).type)]
    return RowIdentity(tuple(ordered[:RANGE_COLUMNS_MAX]) or (columns[0].name,), is_whole_row=True)


def _has_range(kind: pa.DataType) -> bool:
    """Return whether the statistics of a file contain the bounds of a column."""
    return not pa.types.is_nested(kind) and not pa.types.is_binary(kind)
