"""The column `_unchanged`: for each row a bitmap of columns of `_after` whose value did not change and is absent.

Also the comparison of two columns.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.engine.pool.batch import Batch
from tidemark.model.change import UNCHANGED

Bits = npt.NDArray[np.bool_]
FormerIndexes = npt.NDArray[np.int64]


def unchanged_bits(rows: pa.RecordBatch, count: int) -> Bits:
    """Return for each row and each of `count` columns whether the column is unchanged."""
    bits: Bits = np.zeros((rows.num_rows, count), dtype=np.bool_)
    stored = rows.column(UNCHANGED)
    for at in np.flatnonzero(stored.is_valid().to_numpy(zero_copy_only=False)).tolist():
        found = np.frombuffer(stored[at].as_py(), dtype=np.uint8)
        row = np.unpackbits(found, bitorder="little")[:count].astype(np.bool_)
        bits[at, : len(row)] = row
    return bits


def with_unchanged(batch: Batch, bits: Bits) -> Batch:
    """Return a batch with other bitmaps."""
    rows = batch.arrow
    at = rows.schema.get_field_index(UNCHANGED)
    return batch.with_rows(rows.set_column(at, rows.schema.field(at), bitmaps(bits)))


def bitmaps(bits: Bits) -> pa.Array:
    """Return the bitmaps of rows, NULL for a row without an unchanged column."""
    packed = np.packbits(bits, axis=1, bitorder="little")
    return pa.array([row.tobytes() if row.any() else None for row in packed], pa.binary())


def select_unchanged(batch: Batch, former: FormerIndexes, count: int) -> Batch:
    """Return a batch whose bitmaps are those of the columns at `former`, of `count`; -1: a new one, never unchanged."""
    if batch.arrow.column(UNCHANGED).null_count == len(batch):
        return batch
    return with_unchanged(batch, unchanged_bits(batch.arrow, count)[:, former] & (former >= 0))


def are_equal(old: pa.Array, new: pa.Array) -> Bits:
    """Return in which rows two columns have equal values; NULL is equal to NULL."""
    if pa.types.is_nested(old.type):  # no kernel compares lists
        found: Bits = np.array([a == b for a, b in zip(old.to_pylist(), new.to_pylist(), strict=True)], dtype=np.bool_)
        return found
    both_missing = pc.and_(pc.is_null(old), pc.is_null(new))
    equal = pc.or_(both_missing, pc.coalesce(pc.equal(old, new), pa.scalar(False)))
    return np.asarray(equal.to_numpy(zero_copy_only=False), dtype=np.bool_)
