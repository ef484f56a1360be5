"""The lane of each row, by its key: rows of one key have one lane, and a row that changes its key has none.

The key is the replica identity, because only that is known of a deleted row; with REPLICA IDENTITY FULL it is the
primary key. All rows of a table without a usable key have one lane. Only types whose equal values have equal bytes can
be divided by their values: of others, such as numeric or citext, an equal key could be written in two ways.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.change import AFTER, BEFORE, BeforeKind, Op
from tidemark.model.relation import Relation, ReplicaIdentity, TypeDescription, TypeKind

NO_LANE = -1
FACTOR = 1_000_003  # odd, so that a combination of columns loses no bits
EQUAL_BY_BYTES = frozenset(
    {
        *("int2", "int4", "int8", "oid", "bool", "uuid", "text", "varchar", "bpchar", "bytea"),
        *("date", "time", "timestamp", "timestamptz"),
    }
)
Lanes = npt.NDArray[np.int64]
RowIndexes = npt.NDArray[np.int64]


def key_columns(relation: Relation) -> tuple[str, ...]:
    """Return the names of the columns that divide a table's rows into lanes; () if it has no usable key."""
    is_full = relation.replica_identity is ReplicaIdentity.FULL
    numbers = relation.primary_key if is_full else relation.identity_columns
    columns = [column for column in relation.live_columns if column.number in numbers]
    is_usable = len(columns) == len(numbers) and all(_has_equal_bytes(column.type) for column in columns)
    return tuple(column.name for column in columns) if is_usable else ()


def lanes_of(rows: pa.RecordBatch, relation: Relation, count: int) -> Lanes:
    """Return the lane of each row, of `count`; NO_LANE for a row that changes its key, or whose key is not known."""
    names = key_columns(relation)
    if not names:
        return np.full(rows.num_rows, relation.oid % count, dtype=np.int64)
    total = np.full(rows.num_rows, relation.oid, dtype=np.uint64)
    alone = np.zeros(rows.num_rows, dtype=np.bool_)
    for key, is_alone in _inserted_keys(rows, names) if _has_no_before(rows) else _keys(rows, names):
        total = total * np.uint64(FACTOR) + _hashes(key)
        alone |= is_alone.to_numpy(zero_copy_only=False)
    lanes = (total % np.uint64(count)).astype(np.int64)
    lanes[alone] = NO_LANE
    return lanes


def _has_no_before(rows: pa.RecordBatch) -> bool:
    return bool(rows.column(BEFORE).null_count == rows.num_rows)


def _inserted_keys(rows: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[pa.Array, pa.BooleanArray]]:
    """Yield the same as `_keys` for rows without an old row: a delete has no known key then."""
    for name in names:
        key = pc.struct_field(rows.column(AFTER), name)
        yield key, pc.is_null(key)


def _keys(rows: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[pa.Array, pa.BooleanArray]]:
    """Yield each column of the key, and whether it is changed or not known."""
    is_delete = pc.equal(rows.column("_op"), Op.DELETE.value)
    has_before = pc.greater_equal(rows.column("_before_kind"), BeforeKind.KEY.value)
    is_compared = pc.and_(has_before, pc.invert(is_delete))
    for name in names:
        before, after = (pc.struct_field(rows.column(side), name) for side in (BEFORE, AFTER))
        changes = pc.and_(is_compared, pc.fill_null(pc.not_equal(before, after), True))
        key = pc.if_else(is_delete, before, after)
        yield key, pc.or_(changes, pc.is_null(key))


def sections_of(lanes: Lanes) -> Sequence[tuple[int, int]]:
    """Return the ranges of rows that either all have a lane, or all have none."""
    edges = np.flatnonzero(np.diff(lanes == NO_LANE)) + 1
    bounds = [0, *edges.tolist(), len(lanes)]
    return list(pairwise(bounds))


def rows_at(rows: pa.RecordBatch, indexes: RowIndexes) -> pa.RecordBatch:
    """Return the rows at some indexes. A column without values, such as the old rows of inserts, is not copied."""
    taken = pa.array(indexes)
    columns = [
        pa.nulls(len(taken), column.type) if column.null_count == len(column) else column.take(taken)
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _has_equal_bytes(described: TypeDescription | None) -> bool:
    if described is None:
        return False
    base = described.ultimate()
    return base.kind is TypeKind.ENUM or (base.namespace == "pg_catalog" and base.name in EQUAL_BY_BYTES)


def _hashes(key: pa.Array) -> npt.NDArray[np.uint64]:
    """Return a number for each value, the same for equal values in this process; 0 for NULL."""
    if pa.types.is_signed_integer(key.type):
        signed: Lanes = pc.fill_null(key, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        return signed.view(np.uint64)
    encoded = key.dictionary_encode()
    distinct = np.array([hash(value) for value in encoded.dictionary.to_pylist()] or [0], dtype=np.int64)
    found: Lanes = distinct[pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)]
    return found.view(np.uint64)
