"""Lays out a record batch in one buffer, as Arrow's IPC format requires: nodes and buffer descriptors, then values.

A small batch is cheap only if few calls build it: one call for all rows' metadata, one or none for a side that no
row has, and one for all columns of a side (`batch_columns`). The buffer is allocated uninitialized: bytes to which no
value is written are set to zero.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same. `out`
and `out_*` are views of the same bytes; `nodes` and `buffers` are indexes in `words`, which are 64 bits wide.
"""
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.decode.datum.deforming import EXTERNAL, Location, mark_unchanged, present

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy, memset

if TYPE_CHECKING:
    from tidemark.decode.datum.deforming import Buffer, Integers, OutBytes

COMPILED = bool(cython.compiled)
BITS = -1  # bytes for each row in a buffer: one bit
OFFSETS = -4  # four bytes for each row, and four after the last row
UNCHANGED_NODE, UNCHANGED_BUFFER = 9, 19  # of model.change.META_FIELDS
META_NODES, META_BUFFERS = 10, 22

# Copies as C integers, which Python code does not see.
UNIT_BITS = BITS
UNIT_OFFSETS = OFFSETS
MARKED_NODE = UNCHANGED_NODE
MARKED_BUFFER = UNCHANGED_BUFFER
EXTERNAL_KIND = int(EXTERNAL)
AT_EXTERNAL = int(Location.EXTERNAL)


def clear(out: OutBytes, start: int, stop: int) -> int:
    """Set bytes to zero."""
    if stop > len(out):
        raise IndexError(stop)
    if stop > start:
        if cython.compiled:
            memset(cython.address(out[start]), 0, stop - start)
        else:
            out[start:stop] = bytes(stop - start)
    return 0


def put_node(words: Integers, node: int, rows: int, nulls: int) -> int:
    """Write the length and the NULL count of an array."""
    words[node] = rows
    words[node + 1] = nulls
    return 0


def put_buffer(words: Integers, buffer: int, start: int, length: int) -> int:
    """Write the offset and the length of a buffer in the body."""
    words[buffer] = start
    words[buffer + 1] = length
    return 0


def survey(tuple_at: Integers, tuple_length: Integers, totals: Integers) -> int:
    """Return how many rows have no tuple; add the tuples' bytes to the total."""
    rows = len(tuple_at)
    nulls = 0
    size = 0
    with cython.nogil:
        for row in range(rows):
            if tuple_at[row] < 0:
                nulls += 1
            else:
                size += tuple_length[row]
    totals[0] += size
    return nulls


def fill_unchanged(
    locations: Integers, sizes: Integers, old_locations: Integers, old_sizes: Integers, absent: Integers,
    kinds: Integers,
) -> int:  # fmt: skip
    """Locate unchanged (external) values in the old tuples that have them; return their bytes.

    An old tuple has all values with REPLICA IDENTITY FULL, and the whole key if a part of the key is external
    (heapam.c, `ExtractReplicaIdentity`). `absent` counts the absent values of each column, `kinds` the external ones.
    """
    filled = 0
    columns = len(absent)
    rows = len(locations) // columns if columns > 0 else 0
    with cython.nogil:
        for column in range(columns):
            for cell in range(column * rows, column * rows + rows):
                if locations[cell] == AT_EXTERNAL and old_locations[cell] >= 0:
                    locations[cell] = old_locations[cell]
                    sizes[cell] = old_sizes[cell]
                    filled += old_sizes[cell]
                    absent[column] -= 1
                    kinds[EXTERNAL_KIND] -= 1
    return filled


def put_64(values: Integers, rows: int, out: OutBytes, at: int) -> int:
    """Copy 8-byte integers."""
    if len(values) < rows or at + rows * 8 > len(out):
        raise IndexError(rows)
    if rows > 0:
        if cython.compiled:
            memcpy(cython.address(out[at]), cython.address(values[0]), rows * 8)
        else:
            out[at : at + rows * 8] = values[:rows].tobytes()
    return at + rows * 8


def put_32(values: Integers, rows: int, out: OutBytes, at: int) -> int:
    """Copy 4-byte integers."""
    end = at + (rows * 4 + 7 & ~7)
    if len(values) < rows or end > len(out):
        raise IndexError(rows)
    clear(out, at + rows * 4, end)
    if rows > 0:
        if cython.compiled:
            memcpy(cython.address(out[at]), cython.address(values[0]), rows * 4)
        else:
            out[at : at + rows * 4] = values[:rows].tobytes()
    return end


def put_8(values: Buffer, rows: int, out: OutBytes, at: int) -> int:
    """Copy bytes."""
    end = at + (rows + 7 & ~7)
    if len(values) < rows or end > len(out):
        raise IndexError(rows)
    clear(out, at + rows, end)
    if rows > 0:
        if cython.compiled:
            memcpy(cython.address(out[at]), cython.address(values[0]), rows)
        else:
            out[at : at + rows] = values[:rows]
    return end


def are_zero_32(values: Integers) -> int:
    """Return whether all 4-byte integers are zero."""
    rows = len(values)
    found = 0
    with cython.nogil:
        for row in range(rows):
            found |= values[row]
    return found == 0


def are_zero_8(values: Buffer) -> int:
    """Return whether all bytes are zero."""
    rows = len(values)
    found = 0
    with cython.nogil:
        for row in range(rows):
            found |= values[row]
    return found == 0


def put_rows(
    op: Buffer, timeline: Integers, commit_lsn: Integers, ordinal: Integers, lsn: Integers, xid: Integers,
    commit_time: Integers, origin: Integers, before_kind: Buffer, external: int,
    out: OutBytes, offsets: Integers, words: Integers, nodes: int, buffers: int, body: int, at: int,
) -> int:  # fmt: skip
    """Put the metadata columns of all rows except `_unchanged`; return the end offset.

    Columns of zeros are those of `_unchanged`, which follow without an `external` value.
    """
    rows = len(op)
    first_offset = at >> 2
    for row in range(rows + 1):  # one byte for each row
        offsets[first_offset + row] = row
    if not rows & 1:
        offsets[first_offset + rows + 1] = 0
    put_buffer(words, buffers, at - body, 0)
    put_buffer(words, buffers + 2, at - body, (rows + 1) * 4)
    at += (rows + 1) * 4 + 7 & ~7
    put_buffer(words, buffers + 4, at - body, rows)
    at = put_8(op, rows, out, at)
    put_buffer(words, buffers + 8, at - body, rows * 4)
    at = put_32(timeline, rows, out, at)
    put_buffer(words, buffers + 12, at - body, rows * 8)
    at = put_64(commit_lsn, rows, out, at)
    put_buffer(words, buffers + 16, at - body, rows * 8)
    at = put_64(ordinal, rows, out, at)
    put_buffer(words, buffers + 20, at - body, rows * 8)
    at = put_64(lsn, rows, out, at)
    put_buffer(words, buffers + 24, at - body, rows * 8)
    at = put_64(xid, rows, out, at)
    put_buffer(words, buffers + 28, at - body, rows * 8)
    at = put_64(commit_time, rows, out, at)
    shares = external == 0
    no_origin = shares and are_zero_32(origin)
    put_buffer(words, buffers + 32, at - body, rows * 4)
    if not no_origin:
        at = put_32(origin, rows, out, at)
    put_buffer(words, buffers + 36, at - body, rows)
    if not (shares and are_zero_8(before_kind)):
        at = put_8(before_kind, rows, out, at)
    if no_origin:
        put_buffer(words, buffers + 32, at - body, rows * 4)
    for index in range(MARKED_NODE):
        put_node(words, nodes + index * 2, rows, 0)
        if index > 0:  # no NULLs
            put_buffer(words, buffers + 2 + index * 4, at - body, 0)
    return at


def put_unchanged(
    locations: Integers, tuple_at: Integers, columns: int, found: int, before: int,
    out: OutBytes, offsets: Integers, words: Integers, nodes: int, buffers: int, body: int, at: int,
) -> int:  # fmt: skip
    """Put the bitmaps of the unchanged (external) columns, NULL for rows without one; return the end offset.

    Without one, the column is zeros: those of the old rows, which follow, if no row has an old tuple (`before` is 0).
    """
    rows = len(tuple_at)
    bitmap = rows + 7 >> 3
    offsets_at = at + (bitmap + 7 & ~7) if found else at
    start = offsets_at + ((rows + 1) * 4 + 7 & ~7)
    width = columns + 7 >> 3
    end = start + (rows * width + 7 & ~7 if found else 0)
    if found > 0 or before > 0:
        clear(out, at, end)
    marked = 0
    if found:
        first_offset = offsets_at >> 2
        marked = mark_unchanged(
            locations,
            tuple_at,
            columns,
            out[start:end],
            offsets[first_offset : first_offset + rows + 1],
            out[at:offsets_at],
        )
    put_node(words, nodes + MARKED_NODE * 2, rows, rows - marked)
    buffer = buffers + MARKED_BUFFER * 2
    put_buffer(words, buffer, at - body, bitmap)
    put_buffer(words, buffer + 2, offsets_at - body, (rows + 1) * 4)
    put_buffer(words, buffer + 4, start - body, marked * width)
    if found == 0 and before == 0:
        return at
    return start + (marked * width + 7 & ~7)


def put_nothing(
    levels: Integers, units: Integers, rows: int,
    out: OutBytes, words: Integers, nodes: int, buffers: int, body: int, at: int,
) -> int:  # fmt: skip
    """Put a side that no row has: all its columns share the same zeros. Return the end offset.

    Metadata columns of zeros, of up to four bytes a row and four more, may share them.
    """
    longest = (rows + 1) * 4
    for index in range(len(units)):
        unit = units[index]
        length = rows * unit
        if unit == UNIT_BITS:
            length = rows + 7 >> 3
        elif unit == UNIT_OFFSETS:
            length = (rows + 1) * 4
        longest = max(longest, length)
        put_buffer(words, buffers + index * 2, at - body, length)
    for index in range(len(levels)):
        length = rows if levels[index] == 0 else 0  # the lists have no elements
        put_node(words, nodes + index * 2, length, length)
    end = at + (longest + 7 & ~7)
    clear(out, at, end)
    return end


def put_validity(
    tuple_at: Integers, nulls: int, out: OutBytes, words: Integers, nodes: int, buffers: int, body: int, at: int
) -> int:
    """Put the bitmap of the rows that have a tuple; return the end offset."""
    rows = len(tuple_at)
    bitmap = rows + 7 >> 3 if nulls > 0 else 0
    end = at + (bitmap + 7 & ~7)
    clear(out, at, end)
    if nulls > 0:
        present(tuple_at, 0, rows, out[at:end])
    put_node(words, nodes, rows, nulls)
    put_buffer(words, buffers, at - body, bitmap)
    return end
