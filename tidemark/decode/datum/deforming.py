"""The first pass over rows: locates every value.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same. No loop
creates an object for a row or a value, and all run without the interpreter lock.

Locations are stored column by column: entry `c * rows + r` for the value of column c in row r is the offset of its
payload in the arena, or a negative `Location`. A second array has its size, negative if the payload is compressed (the
whole datum then). If a row's bytes contradict its layout, a loop returns the row's number; the value-level path then
raises the error with details. A loop returns `DONE` if there was no such row.

NB: assign a byte to a variable before shifting it, and use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: C901, PLR0912, PLR0915 - each loop in one piece: a call a value costs more than the value
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from tidemark.decode.datum import varlena
from tidemark.decode.datum.varlena import EXTERNAL_DATUM_BYTES, EXTERNAL_TAG_ON_DISK
from tidemark.wal.rmgr import heap
from tidemark.wal.rmgr.heap import PACKED_HEADER_BYTES, TUPLE_HEADER_BYTES

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u16, read_u32
else:
    from cython.cimports.tidemark.decode.datum.prefetch import fetch, prefetch
    from cython.cimports.tidemark.decode.datum.value_bytes import copy_within
    from cython.cimports.tidemark.wal.byte_readers import read_u16, read_u32  # type: ignore[no-redef] # the same ones

if TYPE_CHECKING:
    from array import array

Buffer = bytes | bytearray
Integers: TypeAlias = "array[int] | memoryview[int]"
IntView: TypeAlias = "memoryview[int]"
OutBytes: TypeAlias = "bytearray | memoryview[int]"
COMPILED = bool(cython.compiled)
DONE = -1


class Location(IntEnum):
    """Stored in place of an offset if the arena has no payload."""

    NULL = -1  # or an absent tuple
    MISSING = -2  # the tuple is older than the column
    EXTERNAL = -3  # a pointer into the TOAST table


COMPRESSED, MISSING, EXTERNAL = range(3)  # what `locate` counts, in addition to absent values
KINDS = 3
OFFSET_MAX = (1 << 31) - 1  # Arrow's offsets have 32 bits, signed

# Copies as C integers, which the loops can read without the interpreter.
COMPRESSED_KIND = int(COMPRESSED)
MISSING_KIND = int(MISSING)
EXTERNAL_KIND = int(EXTERNAL)
AT_NULL = int(Location.NULL)
AT_MISSING = int(Location.MISSING)
AT_EXTERNAL = int(Location.EXTERNAL)
ALL_DONE = int(DONE)

PACKED_HEADER = PACKED_HEADER_BYTES
TUPLE_HEADER = TUPLE_HEADER_BYTES
ATTRIBUTES = heap.ATTRIBUTES_MASK
HAS_NULLS = heap.HAS_NULLS
VARLENA = varlena.VARLENA
EXTERNAL_BYTES = EXTERNAL_DATUM_BYTES
EXTERNAL_TAG = EXTERNAL_TAG_ON_DISK
ARRAY_HEADER = 12  # ndim, dataoffset, elemtype: ArrayType without its varlena header
ARRAY_DIMENSIONS = 6  # MAXDIM
ELEMENTS_MAX = OFFSET_MAX  # elements of one column
AHEAD = 16  # rows
LINE = 64  # bytes of a processor's cache line


def fetch_tuple(data: Buffer, at: int, length: int) -> int:
    """Prefetch a tuple into the cache."""
    if cython.compiled:
        while length > 0 and 0 <= at < len(data):
            prefetch(cython.address(data[at]))
            at += LINE
            length -= LINE
    return 0


def datum_length(data: Buffer, at: int, end: int) -> int:
    """Return the length of the varlena datum at `at`, header included; -1 if its header is invalid or cut off."""
    if at >= end:
        return -1
    first = data[at]
    if first == 1:
        return EXTERNAL_BYTES if end - at >= EXTERNAL_BYTES and data[at + 1] == EXTERNAL_TAG else -1
    if first & 1:
        return first >> 1
    length = read_u32(data, at) >> 2 if end - at >= 4 else 0
    return length if length >= 4 else -1


def locate(
    data: Buffer,
    tuple_at: Integers,
    tuple_length: Integers,
    lengths: Integers,
    aligns: Integers,
    slots: Integers,
    locations: Integers,
    sizes: Integers,
    absent: Integers,
    kinds: Integers,
) -> int:
    """Locate every value of every tuple (`heap_deform_tuple`); columns without a slot (dropped ones) are skipped.

    Count in `absent`, by slot, the rows without a payload, and in `kinds` the values that need further processing.
    """
    rows = len(tuple_at)
    columns = len(lengths)
    space = len(data)
    with cython.nogil:
        for row in range(rows):
            if cython.compiled and row + AHEAD < rows:
                fetch_tuple(data, tuple_at[row + AHEAD], tuple_length[row + AHEAD])
                if row & 7 == 0:
                    for column in range(columns):
                        cell = column * rows + row + AHEAD
                        if cell < len(locations) and cell < len(sizes):
                            prefetch(cython.address(locations[cell]))
                            prefetch(cython.address(sizes[cell]))
            start = tuple_at[row]
            if start < 0:
                for column in range(columns):
                    slot = slots[column]
                    if slot >= 0:
                        locations[slot * rows + row] = AT_NULL
                        absent[slot] += 1
                continue
            end = start + tuple_length[row]
            if tuple_length[row] < PACKED_HEADER or end > space:
                return row
            if locate_row(
                data, start, end, row, rows, columns, lengths, aligns, slots, locations, sizes, absent, kinds
            ) < 0:  # fmt: skip
                return row
    return ALL_DONE


def locate_row(
    data: Buffer,
    start: int,
    end: int,
    row: int,
    rows: int,
    columns: int,
    lengths: Integers,
    aligns: Integers,
    slots: Integers,
    locations: Integers,
    sizes: Integers,
    absent: Integers,
    kinds: Integers,
) -> int:
    """Locate the values of one tuple; return -1 if its bytes contradict its layout."""
    stored = read_u16(data, start) & ATTRIBUTES
    has_nulls = data[start + 2] & HAS_NULLS
    hoff = data[start + 4]
    base = start + PACKED_HEADER + hoff - TUPLE_HEADER
    bitmap = start + PACKED_HEADER
    bitmap_bytes = stored + 7 >> 3 if has_nulls else 0
    if hoff & 7 or hoff < TUPLE_HEADER + bitmap_bytes or base > end or stored > columns:
        return -1
    at = base
    for column in range(stored):
        slot = slots[column]
        if has_nulls and not data[bitmap + (column >> 3)] >> (column & 7) & 1:
            if slot >= 0:
                locations[slot * rows + row] = AT_NULL
                absent[slot] += 1
            continue
        location = at
        length = lengths[column]
        if length != VARLENA:
            at += (base - at) & (aligns[column] - 1)
            location = at
            size = length
            at += length
        else:
            if at < end and data[at] == 0:
                at += (base - at) & (aligns[column] - 1)
            length = datum_length(data, at, end)
            if length < 0:
                return -1
            first = data[at]
            if first == 1:
                location = AT_EXTERNAL
                size = length
                if slot >= 0:
                    absent[slot] += 1
                    kinds[EXTERNAL_KIND] += 1
            elif first & 1:
                location = at + 1
                size = length - 1
            elif first & 2:
                location = at
                size = -length
                kinds[COMPRESSED_KIND] += 1
            else:
                location = at + 4
                size = length - 4
            at += length
        if at > end:
            return -1
        if slot >= 0:
            locations[slot * rows + row] = location
            sizes[slot * rows + row] = size
    for column in range(stored, columns):
        slot = slots[column]
        if slot >= 0:
            locations[slot * rows + row] = AT_MISSING
            absent[slot] += 1
            kinds[MISSING_KIND] += 1
    return 0


def next_compressed(locations: Integers, sizes: Integers, cell: int) -> int:
    """Return the first cell from `cell` on whose payload is compressed, or DONE."""
    cells = len(locations)
    with cython.nogil:
        while cell < cells:
            if locations[cell] >= 0 and sizes[cell] < 0:
                return cell
            cell += 1
    return ALL_DONE


def fill_missing(locations: Integers, sizes: Integers, first: int, rows: int, location: int, size: int) -> int:
    """Set the missing value, at `location`, in the cells of one column that need it; return how many there are."""
    filled = 0
    with cython.nogil:
        for cell in range(first, first + rows):
            if locations[cell] == AT_MISSING:
                locations[cell] = location
                sizes[cell] = size
                filled += 1
    return filled


def mark_unchanged(
    locations: Integers, tuple_at: Integers, columns: int, bitmaps: OutBytes, offsets: Integers, validity: OutBytes
) -> int:
    """Set a bitmap of `columns` bits with the external columns of each row; return how many rows have one."""
    rows = len(tuple_at)
    width = columns + 7 >> 3
    marked = 0
    with cython.nogil:
        for row in range(rows):
            offsets[row] = marked * width
            found = 0
            for column in range(columns):
                if locations[column * rows + row] == AT_EXTERNAL:
                    bitmaps[marked * width + (column >> 3)] |= 1 << (column & 7)
                    found = 1
            if found:
                validity[row >> 3] |= 1 << (row & 7)
                marked += 1
        offsets[rows] = marked * width
    return marked


def present(locations: Integers, first: int, rows: int, validity: OutBytes) -> int:
    """Set the bits of the rows that have a value; return how many rows have none."""
    nulls = 0
    with cython.nogil:
        for row in range(rows):
            if locations[first + row] >= 0:
                validity[row >> 3] |= 1 << (row & 7)
            else:
                nulls += 1
    return nulls


def measure_arrays(data: Buffer, locations: Integers, sizes: Integers, first: int, rows: int, offsets: Integers) -> int:
    """Fill `offsets` for the elements of all arrays; return their number, or DONE if a header is irregular."""
    total = 0
    with cython.nogil:
        for row in range(rows):
            offsets[row] = total
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location < 0:
                continue
            size = sizes[first + row]
            dimensions = read_u32(data, location) if size >= ARRAY_HEADER else ARRAY_DIMENSIONS + 1
            if dimensions > ARRAY_DIMENSIONS or size < ARRAY_HEADER + dimensions * 8:
                return ALL_DONE
            count = 1 if dimensions > 0 else 0
            for index in range(dimensions):
                # An element takes at least one bit: an array has at most as many elements as bits.
                count *= read_u32(data, location + ARRAY_HEADER + index * 4)
                if count > size * 8 or count > ELEMENTS_MAX:
                    return ALL_DONE
            total += count
            if total > ELEMENTS_MAX:
                return ALL_DONE
        offsets[rows] = total
    return total


def locate_elements(
    data: Buffer,
    locations: Integers,
    sizes: Integers,
    first: int,
    rows: int,
    length: int,
    align: int,
    offsets: Integers,
    element_locations: Integers,
    element_sizes: Integers,
) -> int:
    """Locate every element of every array; return DONE, or the row of an irregular one."""
    with cython.nogil:
        for row in range(rows):
            count = offsets[row + 1] - offsets[row]
            if count == 0:
                continue
            location = locations[first + row]
            origin = location - 4  # base of the alignment: the removed header
            end = location + sizes[first + row]
            bounds_end = location + ARRAY_HEADER + read_u32(data, location) * 8
            data_offset = read_u32(data, location + 4)
            bitmap = bounds_end if data_offset != 0 else 0
            at = origin + data_offset if data_offset != 0 else bounds_end + ((origin - bounds_end) & 7)
            if at < bounds_end or at > end or (bitmap != 0 and bitmap + (count + 7 >> 3) > at):
                return row
            for index in range(count):
                cell = offsets[row] + index
                if bitmap != 0 and not data[bitmap + (index >> 3)] >> (index & 7) & 1:
                    element_locations[cell] = AT_NULL
                    continue
                at += (origin - at) & (align - 1)
                size = length if length != VARLENA else datum_length(data, at, end)
                if size < 0 or at + size > end:
                    return row
                lead = 0
                if length == VARLENA:
                    head = data[at]
                    if head == 1:
                        return row
                    lead = 1 if head & 1 else 4
                    if head & 3 == 2:
                        lead = 0
                element_locations[cell] = at + lead
                element_sizes[cell] = size - lead if length != VARLENA or lead != 0 else -size
                at += size
    return ALL_DONE


def copy_elements(
    data: Buffer,
    locations: Integers,
    sizes: Integers,
    first: int,
    rows: int,
    length: int,
    offsets: Integers,
    out: OutBytes,
) -> int:
    """Copy the elements of arrays without NULLs, `length` bytes each, contiguously; return DONE.

    Otherwise, return the row of an array that has a NULL or is irregular.
    """
    with cython.nogil:
        for row in range(rows):
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            size = (offsets[row + 1] - offsets[row]) * length
            if size == 0:
                continue
            location = locations[first + row]
            bounds_end = location + ARRAY_HEADER + read_u32(data, location) * 8
            at = bounds_end + ((location - 4 - bounds_end) & 7)
            to = offsets[row] * length
            if (
                read_u32(data, location + 4) != 0
                or at + size > location + sizes[first + row]
                or at + size > len(data)
                or to + size > len(out)
            ):
                return row
            if cython.compiled:
                copy_within(cython.address(out[to]), len(out) - to, cython.address(data[at]), len(data) - at, size)
            else:
                out[to : to + size] = data[at : at + size]
    return ALL_DONE
