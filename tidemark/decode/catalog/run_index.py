"""Rows of a run by the value of one column: chains in two arrays, at most eight bytes for each row.

A large catalog has some hundred thousand rows of pg_attribute. Finding those of one table needs one pass over all
rows, and every start of a process pays for it before the first row of a table.

The module is compiled if a compiler is available (its `.pxd` has the types) and is interpreted otherwise; the behaviour
is the same. NB: a byte is assigned to a variable before it is shifted, and no literal exceeds 31 bits: see the `.pxd`.
"""
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.decode.catalog.layout import DATA_SHIFT
from tidemark.wal.rmgr.heap import HOFF_AT

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u32
else:
    from cython.cimports.tidemark.wal.byte_readers import read_u32  # type: ignore[no-redef] # the same one

if TYPE_CHECKING:
    from array import array

# The same values as C integers, invisible to Python.
TO_HOFF = HOFF_AT
SHIFT = DATA_SHIFT
KEY_BYTES = 4


def sum_up(lengths: array[int], ends: array[int]) -> int:
    """Store the cumulative end of each row from their lengths; return the end of the last one."""
    total = 0
    for row in range(len(lengths)):
        total += lengths[row]
        ends[row] = total
    return total


def are_ascending(tids: array[int]) -> int:
    """Return whether each tid is greater than the one before."""
    for row in range(1, len(tids)):
        if tids[row] <= tids[row - 1]:
            return 0
    return 1


def key_at(run: bytes, begin: int, end: int, offset: int) -> int:
    """Return the column at `offset` of the row from `begin` to `end`; -1 if it has none."""
    if end - begin <= TO_HOFF:
        return -1
    at = begin + run[begin + TO_HOFF] - SHIFT + offset
    if at < begin or at + KEY_BYTES > end:
        return -1
    return read_u32(run, at)


def slot_of(key: int, slots: int) -> int:
    """Return the slot of a key's chain."""
    return (key ^ key >> 12) & (slots - 1)


def chain_rows(run: bytes, ends: array[int], offset: int, heads: array[int], following: array[int]) -> int:
    """Chain the rows that have a key: numbers start at 1, 0 ends a chain. Return how many rows have one."""
    slots = len(heads)
    count = 0
    row = len(ends)
    while row > 0:  # so that chains ascend
        begin = ends[row - 2] if row > 1 else 0
        key = key_at(run, begin, ends[row - 1], offset)
        if key >= 0:
            slot = slot_of(key, slots)
            following[row - 1] = heads[slot]
            heads[slot] = row
            count += 1
        row -= 1
    return count


def rows_with(
    run: bytes, ends: array[int], offset: int, heads: array[int], following: array[int], key: int
) -> list[int]:
    """Return the numbers, from 0, of the rows with a key."""
    found = []
    row = heads[slot_of(key, len(heads))]
    while row > 0:
        begin = ends[row - 2] if row > 1 else 0
        if key_at(run, begin, ends[row - 1], offset) == key:
            found.append(row - 1)
        row = following[row - 1]
    return found
