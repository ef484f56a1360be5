"""Writes text whose length differs from its value's: numeric without a decimal type, and jsonb.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same. The
length of the text is known only after it is written: a loop stops at the first row that does not fit, and the caller
enlarges the buffer and continues there. A value that a loop cannot convert (bytes that are not a value, jsonb deeper
than its stack) is left to the codec, which converts it or reports the error.

NB: assign a byte to a variable before shifting it, and use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: C901, PLR0911, PLR0912, PLR0915 - each loop in one piece: a call a value costs more than the value
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.decode.types.families import json_binary, numeric

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u16, read_u32
else:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tidemark.decode.datum.prefetch import fetch
    from cython.cimports.tidemark.decode.datum.value_bytes import copy_within, plain_bytes
    from cython.cimports.tidemark.wal.byte_readers import read_u16, read_u32  # type: ignore[no-redef] # the same ones

if TYPE_CHECKING:
    from tidemark.decode.datum.deforming import Buffer, Integers, OutBytes

COMPILED = bool(cython.compiled)
DONE = -1
ODD = -2
NO_SPACE = -3
FRAME = 9  # integers on the stack for each open container
DEPTH_MAX = 64  # of jsonb; deeper values are left to the codec
STACK_INTEGERS = FRAME * DEPTH_MAX

# Copies as C integers, which the loops can read without the interpreter.
ALL_DONE = int(DONE)
BAD = int(ODD)
FULL = int(NO_SPACE)
FRAME_INTEGERS = int(FRAME)
STACK_TOP = int(STACK_INTEGERS)

NUMERIC_SPECIAL = numeric.SPECIAL
NUMERIC_PLUS_INFINITY = numeric.PLUS_INFINITY
NUMERIC_MINUS_INFINITY = numeric.MINUS_INFINITY
NUMERIC_SPECIAL_SIGNS = numeric.SPECIAL_SIGNS
NUMERIC_SHORT = numeric.SHORT
NUMERIC_LONG_NEGATIVE = numeric.LONG_NEGATIVE
NUMERIC_LONG_SCALE = numeric.LONG_SCALE_MASK
NUMERIC_SHORT_NEGATIVE = numeric.SHORT_NEGATIVE
NUMERIC_SHORT_SCALE = numeric.SHORT_SCALE_MASK
NUMERIC_WEIGHT_SIGN = numeric.SHORT_WEIGHT_SIGN
NUMERIC_WEIGHT = numeric.SHORT_WEIGHT_MASK
GROUP_MAX = numeric.GROUP_BASE - 1
ZEROS = 48 | 48 << 8 | 48 << 16 | 48 << 24  # the text of four zeros
AHEAD = 8  # rows

COUNT_MASK = json_binary.COUNT_MASK
FORM_OBJECT = json_binary.OBJECT
FORM_ARRAY = json_binary.ARRAY
FORM_SCALAR = json_binary.BARE_SCALAR
KIND_SHIFT = json_binary.ENTRY_TYPE_SHIFT
STRING = json_binary.STRING
NUMERIC = json_binary.NUMERIC
FALSE = json_binary.FALSE
TRUE = json_binary.TRUE
NULL = json_binary.NULL
CONTAINER = json_binary.CONTAINER

WORD_FALSE = b"false"
WORD_TRUE = b"true"
WORD_NULL = b"null"
WORD_NAN = b"NaN"
WORD_INFINITY = b"Infinity"
WORD_MINUS_INFINITY = b"-Infinity"
OPEN = b"[{"
CLOSE = b"]}"


def write_word(word: bytes, length: int, out: OutBytes, at: int) -> int:
    """Write an ASCII word; return the end offset, or FULL."""
    if at + length > len(out):
        return FULL
    for index in range(length):
        out[at + index] = word[index]
    return at + length


def write_group(group: int, zeros: int, out: OutBytes, at: int) -> int:
    """Write the four digits of a group except the first `zeros`, followed by `zeros` bytes without meaning.

    NB: the shifts divide by 100 and 10, exactly for every value of a group.
    """
    word = group * 5243 >> 19  # the first two digits, then all four, one in each byte
    tens = word * 103 >> 10
    ones = word - tens * 10
    low = group - word * 100
    word = low * 103 >> 10
    low = low - word * 10
    word = ((tens | ones << 8 | word << 16 | low << 24) + ZEROS) >> (zeros * 8)
    if cython.compiled:
        out[at + 3] = 0
        memcpy(cython.address(out[at]), cython.address(word), 4)
    else:
        out[at : at + 4] = word.to_bytes(4, "little")
    return at + 4 - zeros


def write_numeric(data: Buffer, location: int, size: int, out: OutBytes, at: int) -> int:
    """Write the output of `numeric_out`; return the end offset, FULL or BAD."""
    if size < 2:
        return BAD
    head = read_u16(data, location)
    if head & NUMERIC_SPECIAL == NUMERIC_SPECIAL:
        if head & NUMERIC_SPECIAL_SIGNS == NUMERIC_PLUS_INFINITY:
            return write_word(WORD_INFINITY, 8, out, at)
        if head & NUMERIC_SPECIAL_SIGNS == NUMERIC_MINUS_INFINITY:
            return write_word(WORD_MINUS_INFINITY, 9, out, at)
        return write_word(WORD_NAN, 3, out, at)
    first = location + 2
    if head & NUMERIC_SHORT:
        negative = head & NUMERIC_SHORT_NEGATIVE
        scale = (head & NUMERIC_SHORT_SCALE) >> 7
        weight = head & NUMERIC_WEIGHT
        if head & NUMERIC_WEIGHT_SIGN:
            weight -= NUMERIC_WEIGHT + 1
    else:
        if size < 4:
            return BAD
        negative = head & NUMERIC_LONG_NEGATIVE
        scale = head & NUMERIC_LONG_SCALE
        weight = read_u16(data, first)
        if weight > 32767:
            weight -= 65536
        first += 2
    groups = (location + size - first) >> 1
    if at + 12 + max(weight, 0) * 4 + scale > len(out):  # a group that the scale cuts off is first written whole
        return FULL
    if negative:
        out[at] = 45  # -
        at += 1
    start = at
    for index in range(weight + 1):
        group = read_u16(data, first + index * 2) if index < groups else 0
        if group > GROUP_MAX:
            return BAD
        zeros = 0  # leading zeros are not printed
        if at == start:
            zeros = (group < 1000) + (group < 100) + (group < 10) + (group == 0)
        at = write_group(group, zeros, out, at)
    if at == start:
        out[at] = 48
        at += 1
    index = weight + 1
    if scale > 0:
        out[at] = 46  # .
        at += 1
        left = scale
        while left > 0:
            group = read_u16(data, first + index * 2) if 0 <= index < groups else 0
            if group > GROUP_MAX:
                return BAD
            write_group(group, 0, out, at)
            at += min(left, 4)
            left -= 4
            index += 1
    for rest in range(max(index, 0), groups):  # not printed, but must be valid digits
        group = read_u16(data, first + rest * 2)
        if group > GROUP_MAX:
            return BAD
    return at


def write_string(data: Buffer | OutBytes, location: int, end: int, out: OutBytes, at: int) -> int:
    """Write a JSON string (`escape_json`); return the end offset, or FULL."""
    space = len(out)
    if at + 2 > space:
        return FULL
    out[at] = 34  # "
    at += 1
    while True:
        begin = location
        if cython.compiled:
            if location < end:
                byte = data[end - 1]
                location += plain_bytes(cython.address(data[location]), end - location, len(data) - location)
        else:
            while location < end and data[location] >= 32 and data[location] != 34 and data[location] != 92:
                location += 1
        length = location - begin
        if at + length + 7 > space:
            return FULL
        if cython.compiled:
            if length > 0:
                copy_within(cython.address(out[at]), space - at, cython.address(data[begin]), len(data) - begin, length)
        else:
            out[at : at + length] = data[begin:location]
        at += length
        if location >= end:
            break
        byte = data[location]
        location += 1
        out[at] = 92  # a backslash, then a letter for some bytes, the hex code for others
        letter = byte
        if byte == 8:
            letter = 98
        elif byte == 9:
            letter = 116
        elif byte == 10:
            letter = 110
        elif byte == 12:
            letter = 102
        elif byte == 13:
            letter = 114
        if letter >= 32:
            out[at + 1] = letter
            at += 2
            continue
        out[at + 1] = 117  # u
        out[at + 2] = 48
        out[at + 3] = 48
        out[at + 4] = 48 + (byte >> 4)
        low = byte & 15
        out[at + 5] = 48 + low if low < 10 else 87 + low
        at += 6
    out[at] = 34
    return at + 1


def write_numeric_value(data: Buffer, location: int, size: int, out: OutBytes, at: int) -> int:
    """Write a numeric for kernels of other modules, which cannot inline `write_numeric`."""
    return write_numeric(data, location, size, out, at)


def write_string_value(data: Buffer | OutBytes, location: int, end: int, out: OutBytes, at: int) -> int:
    """Write a JSON string for kernels of other modules, which cannot inline `write_string`."""
    return write_string(data, location, end, out, at)


def datum_header(data: Buffer, at: int, end: int) -> int:
    """Return the header length of a datum, or BAD if it is not plain or short or does not end before `end`."""
    if at >= end:
        return BAD
    first = data[at]
    if first & 1:
        length = first >> 1
        header = 1
    else:
        if end - at < 4 or first & 2:
            return BAD
        length = read_u32(data, at) >> 2
        header = 4
    return header if header <= length <= end - at else BAD


def datum_end(data: Buffer, at: int) -> int:
    """Return the end of the datum at `at`, which `datum_header` accepted."""
    first = data[at]
    if first & 1:
        return at + (first >> 1)
    return at + (read_u32(data, at) >> 2)


def write_jsonb(data: Buffer, location: int, size: int, out: OutBytes, at: int, stack: Integers) -> int:
    """Write the output of `jsonb_out`; return the end offset, FULL or BAD.

    The stack has a frame for each container around the current one: 0 entries, 1 children's data, 2 end, 3 count,
    4 next child, 5 and 6 the starts of the next key and value in the data, 7 is an object, 8 is a bare scalar.
    """
    top = 0
    node = location
    end = location + size
    opening = 1
    child = count = entries = base = key_at = value_at = is_object = is_scalar = 0
    while True:
        if opening:
            if end - node < 4 or top == STACK_TOP:
                return BAD
            head = read_u32(data, node)
            count = head & COUNT_MASK
            form = head >> KIND_SHIFT
            is_object = 1 if form == FORM_OBJECT else 0
            is_scalar = 1 if form == FORM_SCALAR and count == 1 and top == 0 else 0
            if form != FORM_ARRAY and not is_object and not is_scalar:
                return BAD
            entries = node + 4
            base = entries + count * 4 + is_object * count * 4
            if base > end:
                return BAD
            key_at = value_at = child = 0
            if is_object:
                for index in range(count):
                    entry = read_u32(data, entries + index * 4)
                    length = entry & COUNT_MASK
                    value_at = length if entry >> 31 else value_at + length
            opening = 0
            if not is_scalar:
                if at >= len(out):
                    return FULL
                out[at] = OPEN[is_object]
                at += 1
        if at + 4 > len(out):
            return FULL
        if child == count:
            if not is_scalar:
                out[at] = CLOSE[is_object]
                at += 1
            if top == 0:
                return at
            top -= FRAME_INTEGERS
            entries = stack[top]
            base = stack[top + 1]
            end = stack[top + 2]
            count = stack[top + 3]
            child = stack[top + 4]
            key_at = stack[top + 5]
            value_at = stack[top + 6]
            is_object = stack[top + 7]
            is_scalar = stack[top + 8]
            continue
        if child > 0:
            out[at] = 44  # ,
            out[at + 1] = 32
            at += 2
        index = child
        child += 1
        if is_object:
            entry = read_u32(data, entries + index * 4)
            start = base + key_at
            length = entry & COUNT_MASK
            key_at = length if entry >> 31 else key_at + length
            stop = base + key_at
            if stop < start or stop > end or entry >> KIND_SHIFT & 7 != STRING:
                return BAD
            at = write_string(data, start, stop, out, at)
            if at < 0:
                return at
            if at + 2 > len(out):
                return FULL
            out[at] = 58  # :
            out[at + 1] = 32
            at += 2
            index += count
        entry = read_u32(data, entries + index * 4)
        start = base + value_at
        length = entry & COUNT_MASK
        value_at = length if entry >> 31 else value_at + length
        stop = base + value_at
        if stop < start or stop > end:
            return BAD
        kind = entry >> KIND_SHIFT & 7
        if kind == STRING:
            at = write_string(data, start, stop, out, at)
        elif kind == NUMERIC:
            start += (location - start) & 3
            header = datum_header(data, start, stop)
            if header < 0:
                return BAD
            at = write_numeric(data, start + header, datum_end(data, start) - start - header, out, at)
        elif kind == FALSE:
            at = write_word(WORD_FALSE, 5, out, at)
        elif kind == TRUE:
            at = write_word(WORD_TRUE, 4, out, at)
        elif kind == NULL:
            at = write_word(WORD_NULL, 4, out, at)
        elif kind == CONTAINER:
            stack[top] = entries
            stack[top + 1] = base
            stack[top + 2] = end
            stack[top + 3] = count
            stack[top + 4] = child
            stack[top + 5] = key_at
            stack[top + 6] = value_at
            stack[top + 7] = is_object
            stack[top + 8] = is_scalar
            top += FRAME_INTEGERS
            node = start + ((location - start) & 3)
            end = stop
            opening = 1
        else:
            return BAD
        if at < 0:
            return at


def build_numeric_text(
    data: Buffer, locations: Integers, sizes: Integers, first: int, row: int, rows: int, offsets: Integers,
    out: OutBytes,
) -> int:  # fmt: skip
    """Write the numerics from `row` on; return the first row that is not written, DONE, or ODD."""
    with cython.nogil:
        at = offsets[row]
        while row < rows:
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location >= 0:
                written = write_numeric(data, location, sizes[first + row], out, at)
                if written == FULL:
                    return row
                if written < 0:
                    return BAD
                at = written
            row += 1
            offsets[row] = at
    return ALL_DONE


def build_jsonb_text(
    data: Buffer, locations: Integers, sizes: Integers, first: int, row: int, rows: int, offsets: Integers,
    out: OutBytes, stack: Integers,
) -> int:  # fmt: skip
    """Write the jsonb values from `row` on; return the first row that is not written, DONE, or ODD."""
    with cython.nogil:
        at = offsets[row]
        while row < rows:
            if cython.compiled:
                fetch(data, locations, first + row + AHEAD, first + rows - 1)
            location = locations[first + row]
            if location >= 0:
                written = write_jsonb(data, location, sizes[first + row], out, at, stack)
                if written == FULL:
                    return row
                if written < 0:
                    return BAD
                at = written
            row += 1
            offsets[row] = at
    return ALL_DONE
