"""Equality of keys, as in PostgreSQL: 0 equals -0, NaN equals NaN, and a decimal NaN is NULL in the lake."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

NAN = float("nan")  # one object for all NaN: Python compares tuple elements by identity first
Indexes = npt.NDArray[np.int64]
_MISSING = -1


def comparable(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a key column with one value for 0 and -0, and one for all NaN: Arrow groups by bits."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(NAN, values.type), pc.add(values, pa.scalar(0.0, values.type)))


def comparable_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the comparable key columns of `rows`."""
    return pa.table([comparable(rows.column(name)) for name in key], names=list(key))


def filled(values: pa.Array | pa.ChunkedArray, value: float | str) -> pa.Array | pa.ChunkedArray:
    """Return `values` with `value` for NULL."""
    return pc.fill_null(values, value) if values.null_count else values


def indexes_of(rows: pa.Table, keys: pa.Table) -> Indexes:
    """Return for each row of `rows` the index of its key in `keys`, or -1.

    Both are comparable; `keys` are distinct, and there is at least one.
    """
    row_codes, key_codes = np.zeros(rows.num_rows, np.int64), np.zeros(keys.num_rows, np.int64)
    for row_values, key_values in zip(rows.columns, keys.columns, strict=True):
        found = pc.unique(key_values)
        more = _codes(row_values, found)
        row_codes = np.where((row_codes < 0) | (more < 0), _MISSING, row_codes * len(found) + more)
        known, key_codes = np.unique(key_codes * len(found) + _codes(key_values, found), return_inverse=True)
        row_codes = _search(known, row_codes)
    indexes = np.full(keys.num_rows, _MISSING, np.int64)
    indexes[key_codes] = np.arange(keys.num_rows)
    return np.where(row_codes < 0, _MISSING, indexes[row_codes])


def _codes(values: pa.ChunkedArray, found: pa.Array) -> Indexes:
    indexes = filled(pc.index_in(values, value_set=found), _MISSING).to_numpy()
    return np.asarray(indexes, np.int64)


def _search(known: Indexes, codes: Indexes) -> Indexes:
    """Return the index of each code in `known`, which is sorted; -1 where it is missing."""
    indexes = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    return np.where(known[indexes] == codes, indexes, _MISSING)
