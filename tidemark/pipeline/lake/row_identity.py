"""How a change identifies its row of a replica: by a key, or by all values of the old row."""

from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from tidemark.decode.types.registry import fits_row
from tidemark.model.relation import Relation, ReplicaIdentity
from tidemark.pipeline.lake.layout import VERSIONS_KEPT, key_names, lake_columns, shape_of

RANGE_COLUMNS_MAX = 8  # of a table without a key: the ranges of each cost time for every file


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """The columns by which rows of a replica are searched, and those by which its files are sorted.

    With `is_whole_row`, they do not identify a row: a change is applied to one of the rows that equal the old row.
    """

    columns: tuple[str, ...]
    sorted_by: tuple[str, ...]
    is_whole_row: bool


@lru_cache(VERSIONS_KEPT)
def row_identity(relation: Relation, cluster: tuple[str, ...] = ()) -> RowIdentity | None:
    """Return how changes identify rows; None for a table that has only a log.

    Files are sorted by the source's columns `cluster` first; columns that the table does not have, or that have no
    order, are left out.

    A table without a key needs REPLICA IDENTITY FULL, with which WAL has the complete old row. Values without a codec,
    or that contain names of other objects, differ between the first copy and the stream: no old row is found by them.
    """
    columns, live, types = lake_columns(relation), relation.live_columns, shape_of(relation)
    ordered = {live[column.index].name: column.name for column in columns if has_order(types[column.index].type)}
    first = tuple(ordered[name] for name in cluster if name in ordered)
    key = key_names(relation)
    if key:
        return RowIdentity(key, _first(first, key), is_whole_row=False)
    if relation.replica_identity is not ReplicaIdentity.FULL or not columns:
        return None
    if not all(fits_row(live[column.index]) for column in columns):
        return None
    ranged = _first(first, tuple(ordered.values()))[:RANGE_COLUMNS_MAX] or (columns[0].name,)
    return RowIdentity(ranged, ranged, is_whole_row=True)


def has_order(kind: pa.DataType) -> bool:
    """Return whether files can be sorted by a column, and their statistics contain its bounds."""
    return not pa.types.is_nested(kind) and not pa.types.is_binary(kind)


def _first(first: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    return (*first, *(name for name in names if name not in first))
