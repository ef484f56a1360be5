"""Loops that write columns of values as JSON, end to end, independent of the lines that will contain them.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same. The
length of the text is known only after it is written: a loop stops at the first row without space, and the caller
enlarges the buffer and continues there. `DONE` means that all are written. Row `first + row` of the values goes to
`out[offsets[base + row]:offsets[base + row + 1]]`; a row without a value is null; `valid` is Arrow's bitmap, empty if
all rows have a value, and `valid_at` the bit of row 0.

NB: assign a byte to a variable before shifting it, and use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.decode.arrow.text_columns import NO_SPACE
from tidemark.model.commit_time import SECONDS_PER_DAY

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.decode.arrow.text_columns import write_string_value
else:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tidemark.decode.arrow.text_columns import write_string_value  # type: ignore[no-redef] # the same one

if TYPE_CHECKING:
    from tidemark.decode.datum.deforming import IntView

COMPILED = bool(cython.compiled)
DONE = -1

# Copies as C integers, which the loops can read without the interpreter.
ALL_DONE = int(DONE)
FULL = int(NO_SPACE)

MASK_64 = (1 << 64) - 1
SIGN_64 = 1 << 63
INTEGER_BYTES = 20  # of text: -9223372036854775808
DECIMAL_BYTES = 48  # 39 digits of 128 bits, or a zero and 38 fractional digits; sign, point, quotes
INSTANT_BYTES = 48
SECONDS_A_DAY = int(SECONDS_PER_DAY)
DIGIT_GROUP = 10**18

WORD_NULL = b"null"
WORD_TRUE = b"true"
WORD_FALSE = b"false"
WORD_NAN = b"NAN"
WORD_INFINITY = b"POSITIVE_INFINITY"
WORD_MINUS_INFINITY = b"NEGATIVE_INFINITY"
HEX = b"0123456789abcdef"
UPPER_HEX = b"0123456789ABCDEF"
BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def is_null(valid: IntView, bit: int) -> int:
    """Return 1 if the bitmap marks the value as NULL."""
    if len(valid) == 0:
        return 0
    byte = valid[bit >> 3]
    return 1 - (byte >> (bit & 7) & 1)


def copied(data: IntView, location: int, size: int, out: IntView, at: int) -> int:
    """Copy bytes, for which there is space; return the end offset."""
    if size > 0:
        first = data[location]
        last = data[location + size - 1]
        out[at] = first
        out[at + size - 1] = last
        if cython.compiled:  # NB: two checked offsets make a check between them unnecessary
            memcpy(cython.address(out[at]), cython.address(data[location]), size)
        else:
            out[at : at + size] = data[location : location + size]
    return at + size


def write_word(word: bytes, out: IntView, at: int) -> int:
    """Write an ASCII word, for which there is space; return the end offset."""
    for index in range(len(word)):
        out[at + index] = word[index]
    return at + len(word)


def write_unsigned(number: int, out: IntView, at: int) -> int:
    """Write an unsigned integer; return the end offset."""
    size = 1
    rest = number
    while rest >= 10:
        rest = rest // 10
        size += 1
    return write_padded(number, size, out, at)


def write_padded(number: int, size: int, out: IntView, at: int) -> int:
    """Write the given number of digits of an unsigned integer; return the end offset."""
    end = at + size
    location = end
    while location > at:
        location -= 1
        out[location] = 48 + number % 10
        number = number // 10
    return end


def write_integer(value: int, out: IntView, at: int) -> int:
    """Write an integer; return the end offset."""
    if value >= 0:
        return write_unsigned(value, out, at)
    out[at] = 45  # -
    magnitude = -(value + 1)  # NB: the least integer has no positive counterpart
    return write_unsigned(magnitude + 1, out, at + 1)


def write_integers(
    values: IntView, valid: IntView, valid_at: int, first: int, row: int, rows: int, out: IntView,
    offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write integers."""
    with cython.nogil:
        at = offsets[base + row]
        while row < rows:
            if at + INTEGER_BYTES > len(out):
                return row
            if is_null(valid, valid_at + first + row):
                at = write_word(WORD_NULL, out, at)
            else:
                at = write_integer(values[first + row], out, at)
            row += 1
            offsets[base + row] = at
    return ALL_DONE


def write_booleans(
    bits: IntView, bits_at: int, valid: IntView, valid_at: int, first: int, row: int, rows: int, out: IntView,
    offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write the bits of a bitmap as true and false."""
    with cython.nogil:
        at = offsets[base + row]
        while row < rows:
            if at + INTEGER_BYTES > len(out):
                return row
            if is_null(valid, valid_at + first + row):
                at = write_word(WORD_NULL, out, at)
            elif is_null(bits, bits_at + first + row):
                at = write_word(WORD_FALSE, out, at)
            else:
                at = write_word(WORD_TRUE, out, at)
            row += 1
            offsets[base + row] = at
    return ALL_DONE


def write_lsns(
    values: IntView, first: int, row: int, rows: int, out: IntView, offsets: IntView, base: int
) -> int:  # fmt: skip
    """Write LSNs as PostgreSQL does, without quotes."""
    with cython.nogil:
        at = offsets[base + row]
        while row < rows:
            if at + INTEGER_BYTES > len(out):
                return row
            value = values[first + row]
            at = write_upper_hex(value >> 32, out, at)
            out[at] = 47  # /
            low = value << 32 & MASK_64
            at = write_upper_hex(low >> 32, out, at + 1)
            row += 1
            offsets[base + row] = at
    return ALL_DONE


def write_upper_hex(number: int, out: IntView, at: int) -> int:
    """Write an unsigned integer in hex; return the end offset."""
    size = 1
    rest = number >> 4
    while rest > 0:
        rest = rest >> 4
        size += 1
    location = at + size
    while location > at:
        location -= 1
        out[location] = UPPER_HEX[number & 15]
        number = number >> 4
    return at + size


def write_strings(
    ends: IntView, data: IntView, valid: IntView, valid_at: int, first: int, row: int, rows: int, out: IntView,
    offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write texts as JSON strings; the text of row n is between `ends[n]` and `ends[n + 1]`."""
    with cython.nogil:
        at = offsets[base + row]
        while row < rows:
            if at + INTEGER_BYTES > len(out):
                return row
            if is_null(valid, valid_at + first + row):
                at = write_word(WORD_NULL, out, at)
            else:
                written = write_string_value(data, ends[first + row], ends[first + row + 1], out, at)
                if written == FULL:
                    return row
                at = written
            row += 1
            offsets[base + row] = at
    return ALL_DONE


def write_numeric_texts(
    ends: IntView, data: IntView, valid: IntView, valid_at: int, first: int, row: int, rows: int, out: IntView,
    offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write numerics that are text already as JSON strings; NaN and infinities get Debezium's names."""
    with cython.nogil:
        at = offsets[base + row]
        while row < rows:
            location = ends[first + row]
            size = ends[first + row + 1] - location
            if at + size + INTEGER_BYTES > len(out):
                return row
            if is_null(valid, valid_at + first + row):
                at = write_word(WORD_NULL, out, at)
            else:
                out[at] = 34  # "
                at += 1
                last = data[location + size - 1] if size > 0 else 0
                if last == 78:  # NaN
                    at = write_word(WORD_NAN, out, at)
                elif last == 121:  # Infinity, -Infinity
                    sign = data[location]
                    if sign == 45:  # noqa: SIM108 - no view is chosen without the interpreter
                        at = write_word(WORD_MINUS_INFINITY, out, at)
                    else:
                        at = write_word(WORD_INFINITY, out, at)
                else:
                    at = copied(data, location, size, out, at)
                out[at] = 34
                at += 1
            row += 1
            offsets[base + row] = at
    return ALL_DONE


def write_base64(
    ends: IntView, data: IntView, valid: IntView, valid_at: int, first: int, row: int, rows: int, out: IntView,
    offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write bytes in Base64."""
    with cython.nogil:
        at = offsets[base + row]
        while row < rows:
            location = ends[first + row]
            end = ends[first + row + 1]
            if at + (end - location + 2) // 3 * 4 + INTEGER_BYTES > len(out):
                return row
            if is_null(valid, valid_at + first + row):
                at = write_word(WORD_NULL, out, at)
            else:
                out[at] = 34  # "
                at += 1
                while location < end:
                    left = end - location
                    b0 = data[location]
                    b1 = data[location + 1] if left > 1 else 0
                    b2 = data[location + 2] if left > 2 else 0
                    out[at] = BASE64[b0 >> 2]
                    out[at + 1] = BASE64[(b0 & 3) << 4 | b1 >> 4]
                    out[at + 2] = BASE64[(b1 & 15) << 2 | b2 >> 6] if left > 1 else 61  # =
                    out[at + 3] = BASE64[b2 & 63] if left > 2 else 61
                    location += 3
                    at += 4
                out[at] = 34
                at += 1
            row += 1
            offsets[base + row] = at
    return ALL_DONE


def write_hex(
    ends: IntView, data: IntView, valid: IntView, valid_at: int, first: int, row: int, rows: int, out: IntView,
    offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write bytes in hex, after a backslash and x."""
    with cython.nogil:
        at = offsets[base + row]
        while row < rows:
            location = ends[first + row]
            end = ends[first + row + 1]
            if at + (end - location) * 2 + INTEGER_BYTES > len(out):
                return row
            if is_null(valid, valid_at + first + row):
                at = write_word(WORD_NULL, out, at)
            else:
                out[at] = 34  # "
                out[at + 1] = 92
                out[at + 2] = 92
                out[at + 3] = 120  # x
                at += 4
                while location < end:
                    b0 = data[location]
                    out[at] = HEX[b0 >> 4]
                    out[at + 1] = HEX[b0 & 15]
                    location += 1
                    at += 2
                out[at] = 34
                at += 1
            row += 1
            offsets[base + row] = at
    return ALL_DONE


def write_day(days: int, has_sign: int, out: IntView, at: int) -> int:
    """Write days since 1970-01-01 as an ISO date, without quotes; return the end offset.

    A year before 1 gets its sign (ISO 8601, with a year 0), or is written as a BC year, which the caller marks.
    """
    # Years that begin in March have the leap day at their end; 400 of them are 146097 days.
    shifted = days + 719468
    era = shifted // 146097 if shifted >= 0 else -((146096 - shifted) // 146097)
    day = shifted - era * 146097
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year += era * 400 + (1 if month >= 10 else 0)
    if not has_sign:
        if year <= 0:
            year = 1 - year
    elif year < 0:
        out[at] = 45  # -
        at += 1
        year = -year
    at = write_padded(year, 4, out, at) if year < 10000 else write_unsigned(year, out, at)
    out[at] = 45
    at = write_padded(month + 3 if month < 10 else month - 9, 2, out, at + 1)
    out[at] = 45
    return write_padded(day + 1, 2, out, at + 1)


def write_instants(
    values: IntView, second: int, digits: int, zoned: int, valid: IntView, valid_at: int, first: int, row: int,
    rows: int, out: IntView, offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write timestamps in ISO form: `second` units are a second, `digits` are fractional; 0: dates, in days.

    The date of the value before is copied if it is the same.
    """
    with cython.nogil:
        at = offsets[base + row]
        known_days = 0
        day_at = 0
        day_size = 0  # 0: no date is known
        while row < rows:
            if at + INSTANT_BYTES > len(out):
                return row
            if is_null(valid, valid_at + first + row):
                at = write_word(WORD_NULL, out, at)
            else:
                value = values[first + row]
                out[at] = 34  # "
                at += 1
                if second == 0:
                    at = write_day(value, 1, out, at)
                else:
                    day_units = second * SECONDS_A_DAY
                    days = value // day_units if value >= 0 else -((day_units - 1 - value) // day_units)
                    rest = value - days * day_units
                    if day_size > 0 and days == known_days:
                        at = copied(out, day_at, day_size, out, at)
                    else:
                        known_days = days
                        day_at = at
                        at = write_day(days, 1, out, at)
                        day_size = at - day_at
                    seconds = rest // second
                    out[at] = 84  # T
                    at = write_padded(seconds // 3600, 2, out, at + 1)
                    out[at] = 58  # :
                    at = write_padded(seconds // 60 % 60, 2, out, at + 1)
                    out[at] = 58
                    at = write_padded(seconds % 60, 2, out, at + 1)
                    if digits > 0:
                        out[at] = 46  # .
                        at = write_padded(rest - seconds * second, digits, out, at + 1)
                if zoned:
                    out[at] = 90  # Z
                    at += 1
                out[at] = 34
                at += 1
            row += 1
            offsets[base + row] = at
    return ALL_DONE


def write_decimal(low: int, high: int, scale: int, out: IntView, at: int) -> int:
    """Write a 128-bit decimal with all digits of its scale, as PostgreSQL does; return the end offset."""
    if high & SIGN_64:
        out[at] = 45  # -
        at += 1
        low = (MASK_64 - low + 1) & MASK_64
        high = (MASK_64 - high + (1 if low == 0 else 0)) & MASK_64
    coefficient = high
    coefficient = (coefficient << 64) + low
    start = at
    groups = coefficient // DIGIT_GROUP
    if groups > 0:
        top = groups // DIGIT_GROUP
        if top > 0:
            at = write_unsigned(top, out, at)
            at = write_padded(groups % DIGIT_GROUP, 18, out, at)
        else:
            at = write_unsigned(groups, out, at)
        at = write_padded(coefficient % DIGIT_GROUP, 18, out, at)
    else:
        at = write_unsigned(coefficient, out, at)
    if scale == 0:
        return at
    size = at - start
    zeros = max(scale + 1 - size, 0)  # leading zeros: one precedes the point
    if zeros > 0:
        for index in range(size):
            out[at + zeros - 1 - index] = out[at - 1 - index]
        for index in range(zeros):
            out[start + index] = 48
        at += zeros
    for index in range(scale):
        out[at - index] = out[at - index - 1]
    out[at - scale] = 46
    return at + 1


def write_decimals(
    values: IntView, scale: int, valid: IntView, valid_at: int, first: int, row: int, rows: int, out: IntView,
    offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write decimals of 128 bits, two words each, as JSON strings."""
    with cython.nogil:
        at = offsets[base + row]
        while row < rows:
            if at + DECIMAL_BYTES > len(out):
                return row
            if is_null(valid, valid_at + first + row):
                at = write_word(WORD_NULL, out, at)
            else:
                out[at] = 34  # "
                at = write_decimal(values[2 * (first + row)], values[2 * (first + row) + 1], scale, out, at + 1)
                out[at] = 34
                at += 1
            row += 1
            offsets[base + row] = at
    return ALL_DONE
