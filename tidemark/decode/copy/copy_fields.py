"""Loops over lines of COPY's text format: find the fields, and write a column's fields as an Arrow array's bytes.

Escapes are removed here (`CopyAttributeOutText`, PG 16): a backslash before b, f, n, r, t, v, another backslash, and
the N of a NULL. So a field contains no tab or newline. A loop for numbers or instants leaves unusual text to the type's
codec, which reads all of the type's formats.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
NB: assign a byte to a variable before shifting it, and use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call
# ruff: noqa: B007 - a loop variable of its own name has a C type, `_` has none
# ruff: noqa: PLR0911 - a letter a line

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.decode.types.families.calendar import DAYS_FROM_ERA_START
from tidemark.model.commit_time import SECONDS_PER_DAY, USECS_PER_SECOND

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from tidemark.decode.datum.deforming import Buffer, Integers

ALL_FIT = -1
DIGITS_MAX = 18  # of a number, with or without a point; that many fit into 64 bits

# Copies as C integers, which the loops can read without the interpreter.
DONE = int(ALL_FIT)
TAB = ord("\t")
NEWLINE = ord("\n")
ESCAPE = ord("\\")
NULL_LETTER = ord("N")
NULL_BYTES = 2
MINUS = ord("-")
PLUS = ord("+")
POINT = ord(".")
COLON = ord(":")
SPACE = ord(" ")
DIGIT_0 = ord("0")
DIGIT_9 = ord("9")
DIGITS = int(DIGITS_MAX)
DAY_BYTES = 10  # YYYY-MM-DD
SECOND_END = 19  # after YYYY-MM-DD HH:MM:SS
FRACTION_END = 26  # with six digits after a point
ZONE_BYTES = 3  # +00
DAY_SECONDS = int(SECONDS_PER_DAY)
USECS = int(USECS_PER_SECOND)
NO_DAY = -(1 << 30)
DAYS_TO_1970 = int(DAYS_FROM_ERA_START)  # from March 1 of the year 0


def find_fields(lines: Buffer, columns: int, ends: Integers, sizes: Integers, escapes: bytearray) -> int:
    """Record the end of each field, row by row, the bytes of each column, and whether it contains a backslash.

    Return the first row that has another number of fields, or `ALL_FIT`.
    """
    at = 0
    start = 0
    column = 0
    field = 0
    with cython.nogil:
        for at in range(len(lines)):
            byte = lines[at]
            if byte > NEWLINE:
                if byte == ESCAPE and column < columns:
                    escapes[column] = 1
            elif byte >= TAB:
                if column == columns:
                    return field // columns
                sizes[column] += at - start
                ends[field] = at
                start = at + 1
                field += 1
                column += 1
                if byte == NEWLINE:
                    if column < columns:
                        return (field - 1) // columns
                    column = 0
    return DONE if field == len(ends) else field // columns


def find_nulls(
    lines: Buffer, ends: Integers, columns: int, column: int, rows: int, valid: bytearray | memoryview
) -> int:
    """Set the bits of the rows that have a value; return how many are NULL."""
    nulls = 0
    with cython.nogil:
        for row in range(rows):
            field = row * columns + column
            start = ends[field - 1] + 1 if field > 0 else 0
            if is_null(lines, start, ends[field] - start):
                nulls += 1
            else:
                valid[row >> 3] |= 1 << (row & 7)
    return nulls


def is_null(lines: Buffer, start: int, size: int) -> int:
    """Return whether a field is the N of a NULL."""
    return 1 if size == NULL_BYTES and lines[start] == ESCAPE and lines[start + 1] == NULL_LETTER else 0


def fill_texts(
    lines: Buffer,
    ends: Integers,
    columns: int,
    column: int,
    rows: int,
    has_escapes: int,
    offsets: Integers,
    out: bytearray | memoryview,
) -> int:
    """Write one column's fields end to end; return their size."""
    used = 0
    with cython.nogil:
        for row in range(rows):
            field = row * columns + column
            start = ends[field - 1] + 1 if field > 0 else 0
            size = ends[field] - start
            if has_escapes == 0:
                copy_bytes(lines, start, size, out, used)
                used += size
            elif not is_null(lines, start, size):
                used += copy_plain(lines, start, size, out, used)
            offsets[row + 1] = used
    return used


def fill_numbers(
    lines: Buffer,
    ends: Integers,
    columns: int,
    column: int,
    rows: int,
    scale: int,
    limit: int,
    words: int,
    out: Integers,
    halves: Integers,
) -> int:
    """Read one column's numbers, each with `scale` digits after a point, as integers of one or two 64-bit words.

    With no word they have 32 bits and go to `halves`. A NULL becomes zero. Return the first row that has other text,
    more than 18 digits, or a magnitude, without its point, of at least `limit`.
    """
    with cython.nogil:
        for row in range(rows):
            field = row * columns + column
            start = ends[field - 1] + 1 if field > 0 else 0
            stop = ends[field]
            if is_null(lines, start, stop - start):
                put_number(0, row, words, out, halves)
                continue
            at = start + 1 if start < stop and lines[start] == MINUS else start
            is_negative = at - start
            point = stop - scale - 1 if scale > 0 else stop
            if point <= at or stop - at > DIGITS:
                return row
            value = read_digits(lines, at, point, 0)
            if scale > 0 and value >= 0:
                value = read_digits(lines, point + 1, stop, value) if lines[point] == POINT else -1
            if value < 0 or value >= limit:
                return row
            if is_negative:
                value = -value
            put_number(value, row, words, out, halves)
    return DONE


def put_number(value: int, row: int, words: int, out: Integers, halves: Integers) -> int:
    """Write a row's number to its position in the column."""
    if words == 0:
        halves[row] = value
        return 0
    out[row * words] = value
    if words > 1:
        out[row * words + 1] = -1 if value < 0 else 0
    return 0


def read_digits(lines: Buffer, start: int, stop: int, value: int) -> int:
    """Append digits to `value`; return -1 if there is any other character."""
    for at in range(start, stop):
        byte = lines[at]
        if byte < DIGIT_0 or byte > DIGIT_9:
            return -1
        value = value * 10 + (byte - DIGIT_0)
    return value


def fill_instants(
    lines: Buffer, ends: Integers, columns: int, column: int, rows: int, has_zone: int, out: Integers
) -> int:
    """Read one column's instants of the years 1 to 9999, in UTC if they have a zone, as microseconds since 1970.

    A NULL becomes zero. Return the first row that has any other text.
    """
    with cython.nogil:
        for row in range(rows):
            field = row * columns + column
            start = ends[field - 1] + 1 if field > 0 else 0
            stop = ends[field]
            if is_null(lines, start, stop - start):
                out[row] = 0
                continue
            if has_zone:
                stop -= ZONE_BYTES
                if stop - start < SECOND_END or lines[stop] != PLUS or read_digits(lines, stop + 1, stop + 3, 0) != 0:
                    return row
            if stop - start < SECOND_END or stop - start == SECOND_END + 1 or stop - start > FRACTION_END:
                return row
            day = read_day(lines, start)
            second = read_second(lines, start + DAY_BYTES)
            fraction = 0
            if stop - start > SECOND_END:
                fraction = read_digits(lines, start + SECOND_END + 1, stop, 0)
                if lines[start + SECOND_END] != POINT:
                    return row
                for digit in range(stop - start, FRACTION_END):
                    fraction *= 10
            if day == NO_DAY or second < 0 or fraction < 0:
                return row
            out[row] = (day * DAY_SECONDS + second) * USECS + fraction
    return DONE


def read_day(lines: Buffer, at: int) -> int:
    """Read a year of four digits, a month and a day as days since 1970."""
    year = read_digits(lines, at, at + 4, 0)
    month = read_digits(lines, at + 5, at + 7, 0)
    day = read_digits(lines, at + 8, at + 10, 0)
    if lines[at + 4] != MINUS or lines[at + 7] != MINUS:
        return NO_DAY
    if year < 1 or month < 1 or month > 12 or day < 1 or day > 31:
        return NO_DAY
    # Years begin in March here, so that a leap day is the last day.
    year = year if month > 2 else year - 1
    month = month - 3 if month > 2 else month + 9
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1 - DAYS_TO_1970


def read_second(lines: Buffer, at: int) -> int:
    """Read a space and the time of day to the second; return -1 for any other text."""
    hour = read_digits(lines, at + 1, at + 3, 0)
    minute = read_digits(lines, at + 4, at + 6, 0)
    second = read_digits(lines, at + 7, at + 9, 0)
    if lines[at] != SPACE or lines[at + 3] != COLON or lines[at + 6] != COLON:
        return -1
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return -1
    return (hour * 60 + minute) * 60 + second


def copy_bytes(lines: Buffer, start: int, size: int, out: bytearray | memoryview, to: int) -> int:
    """Copy a field that has no escapes."""
    if size > 0:
        if cython.compiled:
            first = lines[start]
            last = lines[start + size - 1]  # NB: two checked offsets make a check between them unnecessary
            out[to] = first
            out[to + size - 1] = last
            memcpy(cython.address(out[to]), cython.address(lines[start]), size)
        else:
            out[to : to + size] = lines[start : start + size]
    return 0


def copy_plain(lines: Buffer, start: int, size: int, out: bytearray | memoryview, to: int) -> int:
    """Copy a field without its escapes; return the bytes that remain."""
    used = to
    is_escaped = 0
    for at in range(start, start + size):
        byte = lines[at]
        if is_escaped:
            out[used] = plain_byte(byte)
            used += 1
            is_escaped = 0
        elif byte == ESCAPE:
            is_escaped = 1
        else:
            out[used] = byte
            used += 1
    return used - to


def plain_byte(byte: int) -> int:
    """Return the byte that a backslash and this character stand for."""
    if byte == ord("b"):
        return 8
    if byte == ord("f"):
        return 12
    if byte == ord("n"):
        return NEWLINE
    if byte == ord("r"):
        return 13
    if byte == ord("t"):
        return TAB
    if byte == ord("v"):
        return 11
    return byte
