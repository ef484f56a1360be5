"""Loops that write floats and lists, and assemble lines from the texts of their columns.

Compiled if a compiler is available, else interpreted; a full buffer stops them as in `value_text`.

A float is written with the fewest digits that read back as the same number, choosing the closest (the algorithm is
Raffaello Giulietti's): at a sufficient precision, only a few decimals lie between the midpoints to its neighbours.

NB: assign a byte to a variable before shifting it, and use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: C901 - each loop in one piece: a call a value costs more than the value
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.decode.render.value_text import copied, is_null, write_padded, write_unsigned, write_word
else:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tidemark.decode.render.value_text import (  # type: ignore[no-redef] # the same ones
        copied,
        is_null,
        write_padded,
        write_unsigned,
        write_word,
    )

if TYPE_CHECKING:
    from tidemark.decode.datum.deforming import IntView

COMPILED = bool(cython.compiled)
DONE = -1
COLUMN = -1  # in place of a length: this piece is a column's

# Copies as C integers, which the loops can read without the interpreter.
ALL_DONE = int(DONE)
IS_COLUMN = int(COLUMN)

FLOAT_BYTES = 40  # of text: sign, 17 digits, zeros up to the bounds of notation, exponent, quotes
DIGITS_MAX = 20
POWER_MIN = -330  # of ten, in the table
POWER_MAX = 330
POWER_LEAST = int(POWER_MIN)
POWER_BITS = 128
MASK = (1 << 64) - 1
ONE = 1  # 128 bits
WORD_ONE = 1  # 64 bits

WORD_NULL = b"null"
WORD_NAN = b'"NaN"'
WORD_INFINITY = b'"Infinity"'
WORD_MINUS_INFINITY = b'"-Infinity"'


def log2_of_power(exponent: int) -> int:
    """Return the binary exponent of a power of ten, rounded down."""
    return exponent * 1741647 >> 19


def powers_of_ten() -> bytes:
    """Return the 128 highest bits of the powers of ten, rounded up: low and high word of each."""
    words = bytearray()
    for exponent in range(POWER_MIN, POWER_MAX + 1):
        shift = POWER_BITS - 1 - (exponent * 1741647 >> 19)
        if exponent >= 0:
            power = 10**exponent
            found = power << shift if shift >= 0 else -(-power >> -shift)
        else:
            found = -(-(1 << shift) // 10**-exponent)
        words += found.to_bytes(POWER_BITS // 8, "little")
    return bytes(words)


def rounded_to_odd(low: int, high: int, number: int) -> int:
    """Return the highest word of a product of 128 and 64 bits; its last bit is set if nonzero bits were cut off."""
    product = ONE * low
    product = (product * number) >> 64
    upper = ONE * high
    upper = upper * number + product
    word = upper >> 64
    return word | (1 if (upper & MASK) > 1 else 0)


def write_float(
    bits: int, mantissa_bits: int, exponent_max: int, fixed_from: int, fixed_below: int, exponent_digits: int,
    inside: int, powers: IntView, out: IntView, at: int,
) -> int:  # fmt: skip
    """Write a float, for which there is space; return the end offset.

    `inside`: the midpoint to a neighbour does not read back as the number.
    """
    mantissa = bits & ((WORD_ONE << mantissa_bits) - 1)
    biased = (bits >> mantissa_bits) & exponent_max
    negative = (bits >> mantissa_bits) > exponent_max
    if biased == exponent_max:
        if mantissa != 0:
            return write_word(WORD_NAN, out, at)
        if negative:
            return write_word(WORD_MINUS_INFINITY, out, at)
        return write_word(WORD_INFINITY, out, at)
    if negative:
        out[at] = 45  # -
        at += 1
    if biased == 0 and mantissa == 0:
        out[at] = 48
        out[at + 1] = 46
        out[at + 2] = 48
        return at + 3
    closer = 1 if mantissa == 0 and biased > 1 else 0  # the neighbour below is half as far as the one above
    power = (biased if biased > 0 else 1) - (exponent_max >> 1) - mantissa_bits
    if biased > 0:
        mantissa |= WORD_ONE << mantissa_bits
    odd = 1 if inside else mantissa & 1
    exponent = power * 1262611 - (524031 if closer else 0) >> 22
    shift = power + log2_of_power(-exponent) + 1
    index = 2 * (-exponent - POWER_LEAST)
    low = powers[index]
    high = powers[index + 1]
    middle = rounded_to_odd(low, high, mantissa * 4 << shift)
    least = rounded_to_odd(low, high, mantissa * 4 - 2 + closer << shift) + odd
    most = rounded_to_odd(low, high, mantissa * 4 + 2 << shift) - odd
    digits = middle // 4
    shorter = digits // 10 * 40
    below = 1 if least <= shorter else 0
    above = 1 if shorter + 40 <= most else 0
    if digits >= 10 and below != above:
        digits = digits // 10 + above
        exponent += 1
    else:
        below = 1 if least <= digits * 4 else 0
        above = 1 if digits * 4 + 4 <= most else 0
        if below != above:
            digits += above
        else:
            half = digits * 4 + 2
            digits += 1 if middle > half or (middle == half and digits & 1) else 0
    while digits % 10 == 0:
        digits = digits // 10
        exponent += 1
    return lay_out(digits, exponent, fixed_from, fixed_below, exponent_digits, out, at)


def lay_out(
    digits: int, exponent: int, fixed_from: int, fixed_below: int, exponent_digits: int, out: IntView, at: int
) -> int:
    """Write `digits` times ten to the `exponent`; return the end offset."""
    end = write_unsigned(digits, out, at)
    size = end - at
    first = exponent + size - 1  # exponent of the first digit
    if first < fixed_from or first >= fixed_below:
        if size > 1:
            for index in range(size - 1):
                out[end - index] = out[end - index - 1]
            out[at + 1] = 46  # .
            end += 1
        out[end] = 101  # e
        out[end + 1] = 45 if first < 0 else 43
        first = -first if first < 0 else first
        if first < 10:
            return write_padded(first, exponent_digits, out, end + 2)
        return write_unsigned(first, out, end + 2)
    if exponent >= 0:
        for index in range(exponent):
            out[end + index] = 48
        end += exponent
        out[end] = 46
        out[end + 1] = 48
        return end + 2
    if first >= 0:
        for index in range(-exponent):
            out[end - index] = out[end - index - 1]
        out[end + exponent] = 46
        return end + 1
    zeros = 1 - first  # 0. and the zeros before the first digit
    for index in range(size):
        out[end + zeros - 1 - index] = out[end - 1 - index]
    for index in range(zeros):
        out[at + index] = 48
    out[at + 1] = 46
    return end + zeros


def write_floats(
    bits: IntView, mantissa_bits: int, exponent_max: int, fixed_from: int, fixed_below: int, exponent_digits: int,
    powers: IntView, valid: IntView, valid_at: int, first: int, row: int, rows: int, out: IntView,
    offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write floats, without an exponent if that of their first digit is from `fixed_from` to below `fixed_below`."""
    with cython.nogil:
        at = offsets[base + row]
        while row < rows:
            if at + FLOAT_BYTES > len(out):
                return row
            if is_null(valid, valid_at + first + row):
                at = write_word(WORD_NULL, out, at)
            else:
                at = write_float(
                    bits[first + row], mantissa_bits, exponent_max, fixed_from, fixed_below, exponent_digits, 0,
                    powers, out, at,
                )  # fmt: skip
            row += 1
            offsets[base + row] = at
    return ALL_DONE


def write_lists(
    ends: IntView, elements: int, valid: IntView, valid_at: int, first: int, row: int, rows: int, out: IntView,
    offsets: IntView, base: int,
) -> int:  # fmt: skip
    """Write lists as arrays; their elements are written already: row n has those from `ends[n]` on.

    `offsets[elements]` belongs to the first element of row `first`.
    """
    with cython.nogil:
        at = offsets[base + row]
        start = ends[first]
        while row < rows:
            begin = elements + ends[first + row] - start
            end = elements + ends[first + row + 1] - start
            if at + offsets[end] - offsets[begin] + (end - begin) + 8 > len(out):
                return row
            if is_null(valid, valid_at + first + row):
                at = write_word(WORD_NULL, out, at)
            else:
                out[at] = 91  # [
                at += 1
                for index in range(begin, end):
                    if index > begin:
                        out[at] = 44  # ,
                        at += 1
                    at = copied(out, offsets[index], offsets[index + 1] - offsets[index], out, at)
                out[at] = 93  # ]
                at += 1
            row += 1
            offsets[base + row] = at
    return ALL_DONE


def mark_different(text: IntView, offsets: IntView, one: int, other: int, rows: int, out: IntView) -> int:
    """Set 1 for each row whose texts in two columns differ."""
    with cython.nogil:
        for row in range(rows):
            begin = offsets[one + row]
            size = offsets[one + row + 1] - begin
            against = offsets[other + row]
            if offsets[other + row + 1] - against != size:
                out[row] = 1
                continue
            for index in range(size):
                if text[begin + index] != text[against + index]:
                    out[row] = 1
                    break
    return ALL_DONE


def write_lines(
    text: IntView, offsets: IntView, pieces: IntView, begins: IntView, variants: IntView, rows: IntView,
    order: IntView, line: int, lines: int, out: IntView, used: IntView, ends: IntView,
) -> int:  # fmt: skip
    """Write lines from `line` on; return the first one without space, or DONE; set `used[0]` to the bytes written.

    `ends[n]` is set to the end of line n in `out`.
    Line n is that of `order[n]`: row `rows[order[n]]` of its columns, with the pieces of its variant, from
    `begins[variant]` to the next one's. A piece is a length and an offset in the text, or COLUMN and an index in
    offsets.
    """
    with cython.nogil:
        at = 0
        used[0] = 0
        while line < lines:
            index = order[line]
            row = rows[index]
            variant = variants[index]
            for piece in range(begins[variant], begins[variant + 1]):
                size = pieces[2 * piece]
                location = pieces[2 * piece + 1]
                if size == IS_COLUMN:
                    end = offsets[location + row + 1]
                    location = offsets[location + row]
                    size = end - location
                if at + size > len(out):
                    return line
                if size == 0:
                    continue
                first = text[location]
                last = text[location + size - 1]
                out[at] = first
                out[at + size - 1] = last
                # NB: in place, because a call would copy the descriptions of both buffers; a copy of a fixed size is
                # no call, and what it writes too much is overwritten by the next piece.
                if not cython.compiled:
                    out[at : at + size] = text[location : location + size]
                elif size <= 32 and location + 32 <= len(text) and at + 32 <= len(out):
                    memcpy(cython.address(out[at]), cython.address(text[location]), 32)
                else:
                    memcpy(cython.address(out[at]), cython.address(text[location]), size)
                at += size
            ends[line] = at
            line += 1
            used[0] = at
    return ALL_DONE
