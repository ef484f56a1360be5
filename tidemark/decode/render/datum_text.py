"""The loop that writes columns of datums as literals, in the text form of PostgreSQL's output functions.

The values are in the arena of the tuples, at the locations that `tidemark.decode.datum.deforming` found. Cython
compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same. The loop stops
at the first row without space, as in `value_text`, or returns `ODD` minus the number of a row whose bytes are not a
value of its type; the codec then raises the error with details.

NB: assign a byte to a variable before shifting it, and use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: C901, PLR0911, PLR0912 - each loop in one piece: a call a value costs more than the value
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from tidemark.decode.arrow.text_columns import NO_SPACE
from tidemark.decode.arrow.text_columns import ODD as NO_VALUE
from tidemark.decode.datum.deforming import Location
from tidemark.decode.types.families import calendar, datetimes
from tidemark.model.commit_time import USECS_PER_DAY, USECS_PER_SECOND

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.decode.arrow.text_columns import write_numeric_value
    from tidemark.decode.render.line_text import write_float
    from tidemark.decode.render.value_text import write_day, write_padded, write_unsigned, write_word
else:
    from cython.cimports.tidemark.decode.arrow.text_columns import write_numeric_value  # type: ignore[no-redef] # the same one
    from cython.cimports.tidemark.decode.render.line_text import write_float  # type: ignore[no-redef] # the same one
    from cython.cimports.tidemark.decode.render.value_text import (  # type: ignore[no-redef] # the same ones
        write_day,
        write_padded,
        write_unsigned,
        write_word,
    )

if TYPE_CHECKING:
    from typing import TypeAlias

    from tidemark.decode.datum.deforming import IntView

    Data: TypeAlias = bytes | bytearray

COMPILED = bool(cython.compiled)
DONE = -1
ODD = -1000  # or less


class TextForm(IntEnum):
    """How a value is written."""

    SIGNED = 0
    UNSIGNED = 1
    TRUE_FALSE = 2
    T_F = 3
    TEXT = 4  # up to a zero byte
    DATE = 5
    TIMESTAMP = 6
    TIMESTAMP_ZONED = 7
    NUMERIC = 8
    UUID = 9
    HEX = 10
    SINGLE = 11
    DOUBLE = 12


# Copies as C integers, which the loop can read without the interpreter.
ALL_DONE = int(DONE)
IS_ODD = int(ODD)
AS_SIGNED = int(TextForm.SIGNED)
AS_UNSIGNED = int(TextForm.UNSIGNED)
AS_WORD = int(TextForm.TRUE_FALSE)
AS_LETTER = int(TextForm.T_F)
AS_TEXT = int(TextForm.TEXT)
AS_DATE = int(TextForm.DATE)
AS_TIMESTAMP = int(TextForm.TIMESTAMP)
AS_TIMESTAMP_ZONED = int(TextForm.TIMESTAMP_ZONED)
AS_NUMERIC = int(TextForm.NUMERIC)
AS_UUID = int(TextForm.UUID)
AS_SINGLE = int(TextForm.SINGLE)
AS_DOUBLE = int(TextForm.DOUBLE)
AT_EXTERNAL = int(Location.EXTERNAL)

FULL = int(NO_SPACE)
BAD = int(NO_VALUE)  # in place of a value's end
VALUE_BYTES = 64  # of text in addition to two for each byte of a value; numerics need more
WORD_ONE = 1  # 64 bits, unsigned
DATE_END = int(datetimes.DATE_INFINITY)  # DATEVAL_NOEND
DATE_BEGIN = -(1 << 31)
INSTANT_END = int(datetimes.TIMESTAMP_INFINITY)  # DT_NOEND
INSTANT_BEGIN = -INSTANT_END - 1
EPOCH_DAYS = int(calendar.EPOCH_2000_DAYS)  # from 1970-01-01 to 2000-01-01
FIRST_DAY = int(datetimes.FIRST_DAY)  # 0001-01-01
USECS_A_DAY = int(USECS_PER_DAY)
USECS_A_SECOND = int(USECS_PER_SECOND)

FIXED_FROM = -4  # decimal exponents from here up to the bounds below print without `e`
SINGLE_FIXED_BELOW = 6
DOUBLE_FIXED_BELOW = 15
SINGLE_MANTISSA = 23  # bits
DOUBLE_MANTISSA = 52
SINGLE_EXPONENT = 255  # the greatest one: infinities and NaN
DOUBLE_EXPONENT = 2047

WORD_NULL = b"null"
WORD_UNCHANGED = b"unchanged-toast-datum"
WORD_TRUE = b"true"
WORD_FALSE = b"false"
WORD_NAN = b"NaN"
WORD_INFINITY = b"Infinity"
WORD_MINUS_INFINITY = b"-Infinity"
WORD_END = b"infinity"
WORD_BEGIN = b"-infinity"
WORD_BC = b" BC"
WORD_UTC = b"+00"
HEX = b"0123456789abcdef"


def read_unsigned(data: Data, location: int, size: int) -> int:
    """Read a little-endian integer of up to eight bytes."""
    number = 0
    for index in range(size):
        byte = data[location + size - 1 - index]
        number = number << 8 | byte
    return number


def read_signed(data: Data, location: int, size: int) -> int:
    """Read a little-endian integer of up to eight bytes, in two's complement."""
    number = read_unsigned(data, location, size)
    sign = WORD_ONE << (8 * size - 1)
    if number & sign:
        magnitude = sign - 1 - (number & (sign - 1))
        return -magnitude - 1
    return number


def write_signed(data: Data, location: int, size: int, out: IntView, at: int) -> int:
    """Write an integer; return the end offset."""
    value = read_signed(data, location, size)
    if value >= 0:
        return write_unsigned(value, out, at)
    out[at] = 45  # -
    magnitude = -(value + 1)  # NB: the least integer has no positive counterpart
    return write_unsigned(magnitude + 1, out, at + 1)


def write_date(value: int, out: IntView, at: int) -> int:
    """Write days since 2000-01-01 as a date; return the end offset."""
    if value == DATE_END:
        return write_word(WORD_END, out, at)
    if value == DATE_BEGIN:
        return write_word(WORD_BEGIN, out, at)
    days = value + EPOCH_DAYS
    at = write_day(days, 0, out, at)
    return write_word(WORD_BC, out, at) if days < FIRST_DAY else at


def write_clock(usecs: int, out: IntView, at: int) -> int:
    """Write microseconds since midnight, without trailing zeros of the fraction; return the end offset."""
    seconds = usecs // USECS_A_SECOND
    usecs -= seconds * USECS_A_SECOND
    at = write_padded(seconds // 3600, 2, out, at)
    out[at] = 58  # :
    at = write_padded(seconds // 60 % 60, 2, out, at + 1)
    out[at] = 58
    at = write_padded(seconds % 60, 2, out, at + 1)
    if usecs > 0:
        out[at] = 46  # .
        at = write_padded(usecs, 6, out, at + 1)
        while usecs % 10 == 0:
            usecs = usecs // 10
            at -= 1
    return at


def write_instant(value: int, zoned: int, out: IntView, at: int) -> int:
    """Write microseconds since 2000-01-01 as a timestamp; return the end offset."""
    if value == INSTANT_END:
        return write_word(WORD_END, out, at)
    if value == INSTANT_BEGIN:
        return write_word(WORD_BEGIN, out, at)
    days = value // USECS_A_DAY if value >= 0 else -1 - (-1 - value) // USECS_A_DAY
    usecs = value - days * USECS_A_DAY
    days += EPOCH_DAYS
    at = write_day(days, 0, out, at)
    out[at] = 32
    at = write_clock(usecs, out, at + 1)
    if zoned:
        at = write_word(WORD_UTC, out, at)
    return write_word(WORD_BC, out, at) if days < FIRST_DAY else at


def write_number(
    bits: int, mantissa_bits: int, exponent_max: int, fixed_below: int, powers: IntView, out: IntView, at: int
) -> int:
    """Write a float as PostgreSQL does (`float8out`), without a point if it is whole; return the end offset."""
    if (bits >> mantissa_bits) & exponent_max == exponent_max:
        if bits & ((WORD_ONE << mantissa_bits) - 1):
            return write_word(WORD_NAN, out, at)
        if bits >> mantissa_bits > exponent_max:
            return write_word(WORD_MINUS_INFINITY, out, at)
        return write_word(WORD_INFINITY, out, at)
    end = write_float(bits, mantissa_bits, exponent_max, FIXED_FROM, fixed_below, 2, 1, powers, out, at)
    if out[end - 2] == 46 and out[end - 1] == 48:  # .0
        end -= 2
    return end


def write_hex(data: Data, location: int, size: int, out: IntView, at: int) -> int:
    """Write bytes as hex digits; return the end offset."""
    for index in range(size):
        byte = data[location + index]
        out[at] = HEX[byte >> 4]
        out[at + 1] = HEX[byte & 15]
        at += 2
    return at


def write_uuid(data: Data, location: int, out: IntView, at: int) -> int:
    """Write sixteen bytes as five groups of digits; return the end offset."""
    at = write_hex(data, location, 4, out, at)
    for index in range(4, 10, 2):
        out[at] = 45  # -
        at = write_hex(data, location + index, 2, out, at + 1)
    out[at] = 45
    return write_hex(data, location + 10, 6, out, at + 1)


def write_text(data: Data, location: int, size: int, out: IntView, at: int) -> int:
    """Write text up to a zero byte, quotes doubled; return the end offset."""
    for index in range(size):
        byte = data[location + index]
        if byte == 0:
            break
        out[at] = byte
        at += 1
        if byte == 39:  # '
            out[at] = 39
            at += 1
    return at


def write_datum(
    data: Data, location: int, size: int, width: int, form: int, powers: IntView, out: IntView, at: int
) -> int:
    """Write a value; return the end offset, FULL or BAD."""
    if width > 0 and size != width:
        return BAD
    if form == AS_SIGNED:
        return write_signed(data, location, size, out, at)
    if form == AS_TEXT:
        return write_text(data, location, size, out, at)
    if form == AS_NUMERIC:
        return write_numeric_value(data, location, size, out, at)
    if form == AS_TIMESTAMP:
        return write_instant(read_signed(data, location, size), 0, out, at)
    if form == AS_TIMESTAMP_ZONED:
        return write_instant(read_signed(data, location, size), 1, out, at)
    if form == AS_LETTER:
        byte = data[location]
        out[at] = 102 if byte == 0 else 116  # f, t
        return at + 1
    if form == AS_WORD:
        byte = data[location]
        if byte == 0:
            return write_word(WORD_FALSE, out, at)
        return write_word(WORD_TRUE, out, at)
    if form == AS_UNSIGNED:
        return write_unsigned(read_unsigned(data, location, size), out, at)
    if form == AS_DATE:
        return write_date(read_signed(data, location, size), out, at)
    if form == AS_DOUBLE:
        bits = read_unsigned(data, location, size)
        return write_number(bits, DOUBLE_MANTISSA, DOUBLE_EXPONENT, DOUBLE_FIXED_BELOW, powers, out, at)
    if form == AS_SINGLE:
        bits = read_unsigned(data, location, size)
        return write_number(bits, SINGLE_MANTISSA, SINGLE_EXPONENT, SINGLE_FIXED_BELOW, powers, out, at)
    if form == AS_UUID:
        return write_uuid(data, location, out, at)
    out[at] = 92  # a backslash
    out[at + 1] = 120  # x
    return write_hex(data, location, size, out, at + 2)


def write_datums(
    data: Data, locations: IntView, sizes: IntView, column_at: int, width: int, form: int, quoted: int,
    shows_nulls: int, label: bytes, powers: IntView, row: int, rows: int, out: IntView, offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write values, each after the column's label; `width` is their fixed length, or 0; `powers` has the powers of ten.

    A NULL is written as null, or left out.
    """
    with cython.nogil:
        at = offsets[base + row]
        while row < rows:
            location = locations[column_at + row]
            size = sizes[column_at + row] if location >= 0 else 0
            if at + len(label) + size * 2 + VALUE_BYTES > len(out):
                return row
            if location >= 0:
                at = write_word(label, out, at)
                if quoted:
                    out[at] = 39  # '
                    at += 1
                at = write_datum(data, location, size, width, form, powers, out, at)
                if at == FULL:
                    return row
                if at < 0:
                    return IS_ODD - row
                if quoted:
                    out[at] = 39
                    at += 1
            elif location == AT_EXTERNAL:
                at = write_word(label, out, at)
                at = write_word(WORD_UNCHANGED, out, at)
            elif shows_nulls:
                at = write_word(label, out, at)
                at = write_word(WORD_NULL, out, at)
            row += 1
            offsets[base + row] = at
    return ALL_DONE
