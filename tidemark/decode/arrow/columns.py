"""The second pass: writes each column of located values (`locations`) to the buffers of an Arrow array.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same. No loop
creates an object for a row or a value, and all run without the interpreter lock. A loop returns the row of a value that
it cannot convert, and the codec converts it or reports the error. A loop returns `DONE` if there was no such value.

NB: assign a byte to a variable before shifting it, and use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: C901, PLR0911, PLR0912 - each loop in one piece: a call a value costs more than the value
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call
# ruff: noqa: B007 - a loop variable of its own name has a C type, `_` has none

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.decode.datum.deforming import OFFSET_MAX
from tidemark.decode.types.families import numeric, strings

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u16, read_u32, read_u64
else:
    from cython.cimports.tidemark.decode.datum.prefetch import fetch
    from cython.cimports.tidemark.decode.datum.value_bytes import copy_within, every_ascii, uuid_text
    from cython.cimports.tidemark.wal.byte_readers import read_u16, read_u32, read_u64  # type: ignore[no-redef] # the same ones

if TYPE_CHECKING:
    from tidemark.decode.datum.deforming import Buffer, Integers, OutBytes

COMPILED = bool(cython.compiled)
DONE = -1

# Copies as C integers, which the loops can read without the interpreter.
ALL_DONE = int(DONE)

UUID_BYTES = strings.UUID_BYTES
UUID_TEXT_BYTES = strings.UUID_TEXT_BYTES
TEXT_BYTES_MAX = OFFSET_MAX  # bytes of one column

# Values are clamped and moved to another epoch as unsigned integers: with a flipped sign bit they sort as signed.
SIGN_32 = 1 << 31
SIGN_64 = 1 << 63
MASK_32 = (1 << 32) - 1
MASK_64 = (1 << 64) - 1

NUMERIC_SPECIAL = numeric.SPECIAL
NUMERIC_SHORT = numeric.SHORT
NUMERIC_LONG_NEGATIVE = numeric.LONG_NEGATIVE
NUMERIC_SHORT_NEGATIVE = numeric.SHORT_NEGATIVE
NUMERIC_WEIGHT_SIGN = numeric.SHORT_WEIGHT_SIGN
NUMERIC_WEIGHT = numeric.SHORT_WEIGHT_MASK
GROUP_MAX = numeric.GROUP_BASE - 1
AHEAD = 16  # rows
GROUP_BASE = numeric.GROUP_BASE
TEN = 10
ZERO = 0


def build_bool(data: Buffer, locations: Integers, first: int, rows: int, out: OutBytes) -> int:
    """Set the bit of each row whose byte is not zero."""
    with cython.nogil:
        for row in range(rows):
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location >= 0 and data[location] != 0:
                out[row >> 3] |= 1 << (row & 7)
    return ALL_DONE


def build_16(data: Buffer, locations: Integers, first: int, rows: int, out: Integers) -> int:
    """Copy two bytes for each row."""
    with cython.nogil:
        for row in range(rows):
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location >= 0:
                out[row] = read_u16(data, location)
    return ALL_DONE


def build_32(data: Buffer, locations: Integers, first: int, rows: int, out: Integers) -> int:
    """Copy four bytes for each row."""
    with cython.nogil:
        for row in range(rows):
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location >= 0:
                out[row] = read_u32(data, location)
    return ALL_DONE


def build_64(data: Buffer, locations: Integers, first: int, rows: int, out: Integers) -> int:
    """Copy eight bytes for each row."""
    with cython.nogil:
        for row in range(rows):
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location >= 0:
                out[row] = read_u64(data, location)
    return ALL_DONE


def build_widened(data: Buffer, locations: Integers, first: int, rows: int, out: Integers) -> int:
    """Widen an unsigned 4-byte integer for each row to eight bytes."""
    with cython.nogil:
        for row in range(rows):
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location >= 0:
                out[row] = read_u32(data, location)
    return ALL_DONE


def build_clamped_32(
    data: Buffer, locations: Integers, first: int, rows: int, low: int, high: int, epoch: int, out: Integers
) -> int:
    """Clamp a signed 4-byte integer for each row between `low` and `high`, and add `epoch`.

    NB: the sign bits of `low` and `high` are flipped.
    """
    with cython.nogil:
        for row in range(rows):
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location >= 0:
                ordered = read_u32(data, location) ^ SIGN_32
                ordered = max(min(ordered, high), low)
                out[row] = ((ordered ^ SIGN_32) + epoch) & MASK_32
    return ALL_DONE


def build_clamped_64(
    data: Buffer, locations: Integers, first: int, rows: int, low: int, high: int, epoch: int, out: Integers
) -> int:
    """Do the same with 8-byte integers."""
    with cython.nogil:
        for row in range(rows):
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location >= 0:
                ordered = read_u64(data, location) ^ SIGN_64
                ordered = max(min(ordered, high), low)
                out[row] = ((ordered ^ SIGN_64) + epoch) & MASK_64
    return ALL_DONE


def measure(locations: Integers, sizes: Integers, first: int, rows: int, offsets: Integers) -> int:
    """Fill `offsets` with the values end to end; return their total size, or DONE if it exceeds 32 bits."""
    total = 0
    with cython.nogil:
        for row in range(rows):
            offsets[row] = total
            if locations[first + row] >= 0:
                total += sizes[first + row]
                if total > TEXT_BYTES_MAX:
                    return ALL_DONE
        offsets[rows] = total
    return total


def copy_bytes(
    data: Buffer, locations: Integers, sizes: Integers, first: int, rows: int, offsets: Integers, out: OutBytes
) -> int:
    """Copy the payloads to the offsets of `measure`."""
    with cython.nogil:
        for row in range(rows):
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            size = sizes[first + row]
            if location >= 0 and size > 0:
                if location + size > len(data) or offsets[row] + size > len(out):
                    return row
                at = offsets[row]
                if cython.compiled:  # NB: this also copies bytes after a short value; they are overwritten or cleared
                    copy_within(
                        cython.address(out[at]),
                        len(out) - at,
                        cython.address(data[location]),
                        len(data) - location,
                        size,
                    )
                else:
                    out[at : at + size] = data[location : location + size]
    return ALL_DONE


def build_uuid(
    data: Buffer, locations: Integers, sizes: Integers, first: int, rows: int, digits: bytes, offsets: Integers,
    out: OutBytes,
) -> int:  # fmt: skip
    """Write UUIDs as text, the first one at `offsets[0]`."""
    at = offsets[0]
    with cython.nogil:
        for row in range(rows):
            offsets[row] = at
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location < 0:
                continue
            if sizes[first + row] != UUID_BYTES:
                return row
            if cython.compiled:
                byte = data[location + UUID_BYTES - 1]
                out[at + UUID_TEXT_BYTES - 1] = 0
                uuid_text(cython.address(out[at]), cython.address(data[location]))
                at += UUID_TEXT_BYTES
                continue
            for index in range(UUID_BYTES):
                byte = data[location + index]
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
    locations: Integers,
    sizes: Integers,
    first: int,
    rows: int,
    precision: int,
    scale: int,
    out: Integers,
    validity: OutBytes,
) -> int:
    """Convert numerics to 128-bit integers of the column's scale; clear the validity bit of NaN and infinities."""
    with cython.nogil:
        for row in range(rows):
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location < 0:
                continue
            converted = decimal(data, location, sizes[first + row], precision, scale, row, out)
            if converted < 0:
                return row
            if converted == 0:
                validity[row >> 3] &= 255 - (1 << (row & 7))
                out[row * 2] = 0
                out[row * 2 + 1] = 0
    return ALL_DONE


def decimal(data: Buffer, location: int, size: int, precision: int, scale: int, row: int, out: Integers) -> int:
    """Return 1 for a decimal, 0 for NaN and infinities, -1 for values left to the codec: too long, or not a numeric."""
    if size < 2:
        return -1
    head = read_u16(data, location)
    if head & NUMERIC_SPECIAL == NUMERIC_SPECIAL:
        return 0
    at = location + 2
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
    groups = (location + size - at) >> 1
    # Decimal digits from the first group's highest digit to the column's last one.
    left = weight * 4 + 4 + scale
    coefficient = ZERO
    for index in range(groups):
        group = read_u16(data, at + index * 2)
        if group > GROUP_MAX:
            return -1
        if index == 0 and left - (group < 1000) - (group < 100) - (group < 10) > precision:
            return -1  # NB: a value that passes has at most `precision` digits, and 38 digits fit
        if left >= 4:
            coefficient = coefficient * GROUP_BASE + group
        else:  # only some digits of this group, or none, are within the column's scale
            for step in range(4 - max(left, 0)):
                group = group * 52429 >> 19  # divide by ten
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


def build_labels(
    data: Buffer, locations: Integers, first: int, rows: int, labels: Integers, at: int, count: int, text: bytes,
    offsets: Integers, out: OutBytes,
) -> int:  # fmt: skip
    """Write the labels of OIDs: from index `at`, `labels` has `count` sorted OIDs, then the start of each text."""
    written = 0
    with cython.nogil:
        for row in range(rows):
            offsets[row] = written
            location = locations[first + row]
            if location < 0:
                continue
            wanted = read_u32(data, location)
            low = at
            high = at + count
            while low < high:
                middle = (low + high) >> 1
                if labels[middle] < wanted:
                    low = middle + 1
                else:
                    high = middle
            if low == at + count or labels[low] != wanted:
                return row
            start = labels[low + count]
            size = labels[low + count + 1] - start
            for index in range(size):
                out[written + index] = text[start + index]
            written += size
        offsets[rows] = written
    return ALL_DONE


def is_ascii(text: Buffer | OutBytes) -> int:
    """Return whether no byte has its highest bit set."""
    if not cython.compiled:
        return bytes(text).isascii()
    return every_ascii(cython.address(text[0]), len(text)) if len(text) > 0 else 1


def valid_utf8(text: Buffer | OutBytes, offsets: Integers, rows: int) -> int:
    """Return whether each value is valid UTF-8 (RFC 3629)."""
    with cython.nogil:
        if is_ascii(text):
            return 1
        for row in range(rows):
            at = offsets[row]
            end = offsets[row + 1]
            while at < end:
                lead = text[at]
                at += 1
                if lead < 0x80:
                    continue
                low = 0x80
                high = 0xBF
                if lead < 0xC2:
                    return 0
                if lead < 0xE0:
                    left = 1
                elif lead < 0xF0:
                    left = 2
                    if lead == 0xE0:
                        low = 0xA0
                    elif lead == 0xED:  # no surrogates
                        high = 0x9F
                elif lead < 0xF5:
                    left = 3
                    if lead == 0xF0:
                        low = 0x90
                    elif lead == 0xF4:  # at most U+10FFFF
                        high = 0x8F
                else:
                    return 0
                if at + left > end:
                    return 0
                byte = text[at]
                if byte < low or byte > high:
                    return 0
                for index in range(1, left):
                    byte = text[at + index]
                    if byte < 0x80 or byte > 0xBF:
                        return 0
                at += left
    return 1
