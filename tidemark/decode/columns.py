"""The loops that build columns: first every value of every row is located, then each column is built on its own.

The module is compiled where a compiler is there (its `.pxd` has the types) and runs interpreted otherwise; both do the
same. No loop makes an object for a row or a value, and all run without the interpreter lock.

Places are kept a column after the other: of the value of column c in row r at `c * rows + r`, where its payload begins
in the arena, or a negative `Place`; beside it its size, negative if the payload is compressed (the whole datum then).
Whatever a kernel does not like about a row it answers with that row's number; the value-level path then raises the
error, with its words. `DONE` means that there was none.

NB: a byte is named before it is shifted, and no literal exceeds 31 bits: see the `.pxd`.
"""
# ruff: noqa: C901, PLR0912 - each loop in one piece: a call a value costs more than the value
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call
# ruff: noqa: B007 - a loop variable of its own name has a C type, `_` has none

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from array import array

Buffer = bytes | bytearray
Integers: TypeAlias = "array[int] | memoryview[int]"
COMPILED = bool(cython.compiled)
DONE = -1


class Place(IntEnum):
    """What stands in place of an offset where there is no payload in the arena."""

    NULL = -1  # or no tuple at all
    MISSING = -2  # the tuple is older than the column
    EXTERNAL = -3  # a pointer into the TOAST table


# The same as C integers, which the loops can read without the interpreter.
AT_NULL = int(Place.NULL)
AT_MISSING = int(Place.MISSING)
AT_EXTERNAL = int(Place.EXTERNAL)
ALL_DONE = int(DONE)

PACKED_HEADER = 5  # xl_heap_header
TUPLE_HEADER = 23  # SizeofHeapTupleHeader
ATTRIBUTES = 0x07FF
HAS_NULLS = 1
VARLENA = -1
EXTERNAL_BYTES = 18
EXTERNAL_TAG = 18
UUID_BYTES = 16
TEXT_BYTES_MAX = (1 << 31) - 1  # a column's, by its 32-bit offsets

# Values are clamped and moved to another epoch as unsigned integers: with the sign bit flipped they order as signed.
SIGN_32 = 1 << 31
SIGN_64 = 1 << 63
MASK_32 = (1 << 32) - 1
MASK_64 = (1 << 64) - 1

ARRAY_HEADER = 12  # ndim, dataoffset, elemtype: ArrayType without its varlena header
ARRAY_DIMENSIONS = 6  # MAXDIM

NUMERIC_SPECIAL = 0xC000
NUMERIC_SHORT = 0x8000
NUMERIC_LONG_NEGATIVE = 0x4000
NUMERIC_SHORT_NEGATIVE = 0x2000
NUMERIC_WEIGHT_SIGN = 0x0040
NUMERIC_WEIGHT = 0x003F
GROUP_MAX = 9999
GROUP_BASE = 10000
TEN = 10
ZERO = 0


def read_u16(data: Buffer, at: int) -> int:
    """Read a little-endian integer of two bytes."""
    b0 = data[at]
    b1 = data[at + 1]
    return b0 | b1 << 8


def read_u32(data: Buffer, at: int) -> int:
    """Read a little-endian integer of four bytes."""
    b0 = data[at]
    b1 = data[at + 1]
    b2 = data[at + 2]
    b3 = data[at + 3]
    return b0 | b1 << 8 | b2 << 16 | b3 << 24


def read_u64(data: Buffer, at: int) -> int:
    """Read a little-endian integer of eight bytes."""
    low = read_u32(data, at)
    high = read_u32(data, at + 4)
    return low | high << 32


def datum_length(data: Buffer, at: int, end: int) -> int:
    """Return the length of the varlena datum at `at`, header included; -1 if its header is none or is cut off."""
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
    places: Integers,
    sizes: Integers,
) -> int:
    """Find every value of every tuple (`heap_deform_tuple`); columns without a slot (dropped ones) are passed over."""
    rows = len(tuple_at)
    columns = len(lengths)
    room = len(data)
    with cython.nogil:
        for row in range(rows):
            start = tuple_at[row]
            if start < 0:
                for column in range(columns):
                    if slots[column] >= 0:
                        places[slots[column] * rows + row] = AT_NULL
                continue
            end = start + tuple_length[row]
            if tuple_length[row] < PACKED_HEADER or end > room:
                return row
            if locate_row(data, start, end, row, rows, columns, lengths, aligns, slots, places, sizes) < 0:
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
    places: Integers,
    sizes: Integers,
) -> int:
    """Find the values of one tuple; return -1 if its bytes contradict its layout."""
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
                places[slot * rows + row] = AT_NULL
            continue
        place = at
        length = lengths[column]
        if length != VARLENA:
            at += (base - at) & (aligns[column] - 1)
            place = at
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
                place = AT_EXTERNAL
                size = length
            elif first & 1:
                place = at + 1
                size = length - 1
            elif first & 2:
                place = at
                size = -length
            else:
                place = at + 4
                size = length - 4
            at += length
        if at > end:
            return -1
        if slot >= 0:
            places[slot * rows + row] = place
            sizes[slot * rows + row] = size
    for column in range(stored, columns):
        slot = slots[column]
        if slot >= 0:
            places[slot * rows + row] = AT_MISSING
    return 0


def next_compressed(places: Integers, sizes: Integers, cell: int) -> int:
    """Return the first cell from `cell` on whose payload is compressed, or DONE."""
    cells = len(places)
    with cython.nogil:
        while cell < cells:
            if places[cell] >= 0 and sizes[cell] < 0:
                return cell
            cell += 1
    return ALL_DONE


def fill_missing(places: Integers, sizes: Integers, first: int, rows: int, place: int, size: int) -> int:
    """Put the missing value, at `place`, where the column that begins at cell `first` needs it; return how often."""
    filled = 0
    with cython.nogil:
        for cell in range(first, first + rows):
            if places[cell] == AT_MISSING:
                places[cell] = place
                sizes[cell] = size
                filled += 1
    return filled


def mark_unchanged(
    places: Integers, tuple_at: Integers, columns: int, bitmaps: bytearray, offsets: Integers, validity: bytearray
) -> int:
    """Note for each row which columns are external: a bitmap of `columns` bits; return how many rows have one."""
    rows = len(tuple_at)
    width = columns + 7 >> 3
    marked = 0
    with cython.nogil:
        for row in range(rows):
            offsets[row] = marked * width
            found = 0
            for column in range(columns):
                if places[column * rows + row] == AT_EXTERNAL:
                    bitmaps[marked * width + (column >> 3)] |= 1 << (column & 7)
                    found = 1
            if found:
                validity[row >> 3] |= 1 << (row & 7)
                marked += 1
        offsets[rows] = marked * width
    return marked


def present(places: Integers, first: int, rows: int, validity: bytearray) -> int:
    """Set the bits of the rows that have a value; return how many have none."""
    nulls = 0
    with cython.nogil:
        for row in range(rows):
            if places[first + row] >= 0:
                validity[row >> 3] |= 1 << (row & 7)
            else:
                nulls += 1
    return nulls


def build_bool(data: Buffer, places: Integers, first: int, rows: int, out: bytearray) -> int:
    """Set the bit of each row whose one byte is not zero."""
    with cython.nogil:
        for row in range(rows):
            place = places[first + row]
            if place >= 0 and data[place] != 0:
                out[row >> 3] |= 1 << (row & 7)
    return ALL_DONE


def build_16(data: Buffer, places: Integers, first: int, rows: int, out: Integers) -> int:
    """Take two bytes a row."""
    with cython.nogil:
        for row in range(rows):
            place = places[first + row]
            if place >= 0:
                out[row] = read_u16(data, place)
    return ALL_DONE


def build_32(data: Buffer, places: Integers, first: int, rows: int, out: Integers) -> int:
    """Take four bytes a row."""
    with cython.nogil:
        for row in range(rows):
            place = places[first + row]
            if place >= 0:
                out[row] = read_u32(data, place)
    return ALL_DONE


def build_64(data: Buffer, places: Integers, first: int, rows: int, out: Integers) -> int:
    """Take eight bytes a row."""
    with cython.nogil:
        for row in range(rows):
            place = places[first + row]
            if place >= 0:
                out[row] = read_u64(data, place)
    return ALL_DONE


def build_widened(data: Buffer, places: Integers, first: int, rows: int, out: Integers) -> int:
    """Take four bytes a row as an unsigned integer, into eight."""
    with cython.nogil:
        for row in range(rows):
            place = places[first + row]
            if place >= 0:
                out[row] = read_u32(data, place)
    return ALL_DONE


def build_clamped_32(
    data: Buffer, places: Integers, first: int, rows: int, low: int, high: int, epoch: int, out: Integers
) -> int:
    """Take a signed integer of four bytes a row, clamp it between `low` and `high`, and add `epoch`.

    NB: `low` and `high` come with their sign bit flipped.
    """
    with cython.nogil:
        for row in range(rows):
            place = places[first + row]
            if place >= 0:
                ordered = read_u32(data, place) ^ SIGN_32
                ordered = max(min(ordered, high), low)
                out[row] = ((ordered ^ SIGN_32) + epoch) & MASK_32
    return ALL_DONE


def build_clamped_64(
    data: Buffer, places: Integers, first: int, rows: int, low: int, high: int, epoch: int, out: Integers
) -> int:
    """Do the same with eight bytes."""
    with cython.nogil:
        for row in range(rows):
            place = places[first + row]
            if place >= 0:
                ordered = read_u64(data, place) ^ SIGN_64
                ordered = max(min(ordered, high), low)
                out[row] = ((ordered ^ SIGN_64) + epoch) & MASK_64
    return ALL_DONE


def measure(places: Integers, sizes: Integers, first: int, rows: int, offsets: Integers) -> int:
    """Lay the values end to end: fill `offsets`, return the sum; DONE if 32 bits do not hold it."""
    total = 0
    with cython.nogil:
        for row in range(rows):
            offsets[row] = total
            if places[first + row] >= 0:
                total += sizes[first + row]
                if total > TEXT_BYTES_MAX:
                    return ALL_DONE
        offsets[rows] = total
    return total


def copy_bytes(
    data: Buffer, places: Integers, sizes: Integers, first: int, rows: int, offsets: Integers, out: bytearray
) -> int:
    """Copy the payloads to where `measure` put them."""
    with cython.nogil:
        for row in range(rows):
            place = places[first + row]
            size = sizes[first + row]
            if place >= 0 and size > 0:
                if place + size > len(data) or offsets[row] + size > len(out):
                    return row
                if cython.compiled:
                    memcpy(cython.address(out[offsets[row]]), cython.address(data[place]), size)
                else:
                    out[offsets[row] : offsets[row] + size] = data[place : place + size]
    return ALL_DONE


def build_uuid(
    data: Buffer, places: Integers, sizes: Integers, first: int, rows: int, digits: bytes, offsets: Integers,
    out: bytearray,
) -> int:  # fmt: skip
    """Write 16 bytes as text."""
    at = 0
    with cython.nogil:
        for row in range(rows):
            offsets[row] = at
            place = places[first + row]
            if place < 0:
                continue
            if sizes[first + row] != UUID_BYTES:
                return row
            for index in range(UUID_BYTES):
                byte = data[place + index]
                if index in (4, 6, 8, 10):
                    out[at] = 45  # -
                    at += 1
                out[at] = digits[byte >> 4]
                out[at + 1] = digits[byte & 15]
                at += 2
        offsets[rows] = at
    return ALL_DONE


def build_decimal(
    data: Buffer,
    places: Integers,
    sizes: Integers,
    first: int,
    rows: int,
    precision: int,
    scale: int,
    out: Integers,
    validity: bytearray,
) -> int:
    """Turn numerics into 128-bit integers of the column's scale; what has no such form (NaN) loses its validity bit."""
    with cython.nogil:
        for row in range(rows):
            place = places[first + row]
            if place < 0:
                continue
            taken = decimal(data, place, sizes[first + row], precision, scale, row, out)
            if taken < 0:
                return row
            if taken == 0:
                validity[row >> 3] &= 255 - (1 << (row & 7))
    return ALL_DONE


def decimal(data: Buffer, place: int, size: int, precision: int, scale: int, row: int, out: Integers) -> int:
    """Return 1 for a decimal, 0 for what is none, -1 for bytes that are no numeric."""
    if size < 2:
        return -1
    head = read_u16(data, place)
    if head & NUMERIC_SPECIAL == NUMERIC_SPECIAL:
        return 0
    at = place + 2
    if head & NUMERIC_SHORT:
        negative = head & NUMERIC_SHORT_NEGATIVE
        weight = head & NUMERIC_WEIGHT
        if head & NUMERIC_WEIGHT_SIGN:
            weight -= NUMERIC_WEIGHT + 1
    else:
        if size < 4:
            return -1
        negative = head & NUMERIC_LONG_NEGATIVE
        weight = read_u16(data, at)
        if weight > 32767:
            weight -= 65536
        at += 2
    groups = (place + size - at) >> 1
    # Decimal places from the first group's highest digit to the column's last one.
    left = weight * 4 + 4 + scale
    coefficient = ZERO
    for index in range(groups):
        group = read_u16(data, at + index * 2)
        if group > GROUP_MAX:
            return -1
        if index == 0 and left - (group < 1000) - (group < 100) - (group < 10) > precision:
            return 0  # NB: what passes has no more digits than `precision`, and 38 of them fit
        if left >= 4:
            coefficient = coefficient * GROUP_BASE + group
        else:  # of this group some digits, or none, stand before the column's end
            for step in range(4 - max(left, 0)):
                group = group // 10
            for step in range(left):
                coefficient = coefficient * TEN
            coefficient = coefficient + group
        left = max(left - 4, 0)
    if groups > 0:
        for step in range(left):
            coefficient = coefficient * TEN
    low = coefficient & MASK_64
    high = coefficient >> 64
    if negative:
        low = (MASK_64 - low + 1) & MASK_64
        high = (MASK_64 - high + (low == 0)) & MASK_64
    out[row * 2] = low
    out[row * 2 + 1] = high
    return 1


def measure_arrays(data: Buffer, places: Integers, sizes: Integers, first: int, rows: int, offsets: Integers) -> int:
    """Lay the elements of all arrays end to end: fill `offsets`, return their number; DONE if a header is odd."""
    total = 0
    with cython.nogil:
        for row in range(rows):
            offsets[row] = total
            place = places[first + row]
            if place < 0:
                continue
            size = sizes[first + row]
            dimensions = read_u32(data, place) if size >= ARRAY_HEADER else ARRAY_DIMENSIONS + 1
            if dimensions > ARRAY_DIMENSIONS or size < ARRAY_HEADER + dimensions * 8:
                return ALL_DONE
            count = 1 if dimensions > 0 else 0
            for index in range(dimensions):
                # An element takes a bit at least: no array has more of them than bits.
                count *= read_u32(data, place + ARRAY_HEADER + index * 4)
                if count > size * 8:
                    return ALL_DONE
            total += count
            if total > TEXT_BYTES_MAX:
                return ALL_DONE
        offsets[rows] = total
    return total


def locate_elements(
    data: Buffer,
    places: Integers,
    sizes: Integers,
    first: int,
    rows: int,
    length: int,
    align: int,
    offsets: Integers,
    element_places: Integers,
    element_sizes: Integers,
) -> int:
    """Find every element of every array; return DONE, or the row of an odd one."""
    with cython.nogil:
        for row in range(rows):
            count = offsets[row + 1] - offsets[row]
            if count == 0:
                continue
            place = places[first + row]
            origin = place - 4  # of alignment: the header that is gone
            end = place + sizes[first + row]
            bounds_end = place + ARRAY_HEADER + read_u32(data, place) * 8
            data_offset = read_u32(data, place + 4)
            bitmap = bounds_end if data_offset != 0 else 0
            at = origin + data_offset if data_offset != 0 else bounds_end + ((origin - bounds_end) & 7)
            if at < bounds_end or at > end or (bitmap != 0 and bitmap + (count + 7 >> 3) > at):
                return row
            for index in range(count):
                cell = offsets[row] + index
                if bitmap != 0 and not data[bitmap + (index >> 3)] >> (index & 7) & 1:
                    element_places[cell] = AT_NULL
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
                element_places[cell] = at + lead
                element_sizes[cell] = size - lead if length != VARLENA or lead != 0 else -size
                at += size
    return ALL_DONE
