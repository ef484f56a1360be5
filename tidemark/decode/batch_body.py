"""Lays a record batch into one stretch of bytes, as Arrow's IPC format has it: nodes and buffers in front, then values.

A small batch is cheap only if few calls make it: one for what every row says of itself, one or none for what a side
does not have, and one for all columns of a side, which goes from kernel to kernel of `columns` and `text_columns`. A
column that has no kernel, or that its kernel does not like, is left to the caller, who goes on behind it; so it does
where there is no more room. Nothing stays as it was allocated: what no value is written to is set to zero.

The module is compiled where a compiler is there (its `.pxd` has the types) and runs interpreted otherwise; both do the
same. `out` and its like are views of the same bytes, `nodes` and `buffers` indexes in `words`, of 64 bits.

NB: a byte is named before it is shifted, and no literal exceeds 31 bits: see the `.pxd`.
"""
# ruff: noqa: C901, PLR0912, PLR0915 - one piece: a call a column costs more than a column of one row
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from tidemark.decode.columns import (
    build_16,
    build_32,
    build_64,
    build_bool,
    build_clamped_32,
    build_clamped_64,
    build_decimal,
    build_labels,
    build_uuid,
    build_widened,
    copy_bytes,
    measure,
    valid_utf8,
)
from tidemark.decode.places import mark_unchanged, present
from tidemark.decode.text_columns import build_jsonb_text, build_numeric_text

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy, memset

if TYPE_CHECKING:
    from tidemark.decode.places import Buffer, Integers, Room

COMPILED = bool(cython.compiled)


class Way(IntEnum):
    """How a column gets into the body."""

    OTHER = 0  # the caller knows
    BOOL = 1
    FIXED_16 = 2
    FIXED_32 = 3
    FIXED_64 = 4
    UNSIGNED = 5
    DATE = 6
    TIMESTAMP = 7
    DECIMAL = 8
    BYTES = 9  # from here on values of any length, behind offsets
    TEXT = 10
    UUID = 11
    LABELS = 12  # from here on as long as they turn out
    NUMERIC_TEXT = 13
    JSONB = 14


class Stop(IntEnum):
    """Why `put_columns` came back."""

    DONE = -1
    OTHER = -2  # the caller's column
    FULL = -3
    TOO_LONG = -4  # more bytes than Arrow's 32-bit offsets reach: fewer rows would do


# A column's numbers in a plan.
STEP = 6  # way, node, buffer, and of a decimal precision and scale; of a date or timestamp its bounds and the epoch; of
# labels where they are in the plan, how many, and the bytes of the longest
BITS = -1  # bytes a row of a buffer: a bit
OFFSETS = -4  # four, and four behind the last
ROWS_TOGETHER = 1024  # as long as their tuples and places are in the processor's second cache; a multiple of 64
UNCHANGED_NODE, UNCHANGED_BUFFER = 9, 19  # of model.change.META_FIELDS
META_NODES, META_BUFFERS = 10, 22

# The same as C integers, which Python does not see.
WAY_OTHER = int(Way.OTHER)
WAY_BOOL = int(Way.BOOL)
WAY_16 = int(Way.FIXED_16)
WAY_32 = int(Way.FIXED_32)
WAY_64 = int(Way.FIXED_64)
WAY_UNSIGNED = int(Way.UNSIGNED)
WAY_DATE = int(Way.DATE)
WAY_TIMESTAMP = int(Way.TIMESTAMP)
WAY_DECIMAL = int(Way.DECIMAL)
WAY_BYTES = int(Way.BYTES)
WAY_TEXT = int(Way.TEXT)
WAY_UUID = int(Way.UUID)
WAY_LABELS = int(Way.LABELS)
WAY_NUMERIC_TEXT = int(Way.NUMERIC_TEXT)
WAY_JSONB = int(Way.JSONB)
STOP_DONE = int(Stop.DONE)
STOP_OTHER = int(Stop.OTHER)
STOP_FULL = int(Stop.FULL)
STOP_TOO_LONG = int(Stop.TOO_LONG)
STOP_WRITTEN = -5  # a column for itself
NUMBERS = STEP
UNIT_BITS = BITS
UNIT_OFFSETS = OFFSETS
MARKED_NODE = UNCHANGED_NODE
MARKED_BUFFER = UNCHANGED_BUFFER
DIGITS = b"0123456789abcdef"
UUID_TEXT_BYTES = 36
TEXT_BYTES_MAX = (1 << 31) - 1  # a column's, by its 32-bit offsets
TOGETHER = int(ROWS_TOGETHER)


def clear(out: Room, start: int, stop: int) -> int:
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
    """Say how many rows an array has, and how many of them are NULL."""
    words[node] = rows
    words[node + 1] = nulls
    return 0


def put_buffer(words: Integers, buffer: int, start: int, length: int) -> int:
    """Say where a buffer is in the body."""
    words[buffer] = start
    words[buffer + 1] = length
    return 0


def survey(tuple_at: Integers, tuple_length: Integers, totals: Integers) -> int:
    """Return how many rows have no tuple; add the bytes of the others to the total."""
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


def put_64(values: Integers, rows: int, out: Room, at: int) -> int:
    """Copy integers of eight bytes."""
    if len(values) < rows or at + rows * 8 > len(out):
        raise IndexError(rows)
    if rows > 0:
        if cython.compiled:
            memcpy(cython.address(out[at]), cython.address(values[0]), rows * 8)
        else:
            out[at : at + rows * 8] = values[:rows].tobytes()
    return at + rows * 8


def put_32(values: Integers, rows: int, out: Room, at: int) -> int:
    """Copy integers of four bytes."""
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


def put_8(values: Buffer, rows: int, out: Room, at: int) -> int:
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


def put_rows(
    op: Buffer, timeline: Integers, commit_lsn: Integers, ordinal: Integers, lsn: Integers, xid: Integers,
    commit_time: Integers, origin: Integers, before_kind: Buffer,
    out: Room, offsets: Integers, words: Integers, nodes: int, buffers: int, body: int, at: int,
) -> int:  # fmt: skip
    """Put what every row says of itself, all but `_unchanged`; return where it ends."""
    rows = len(op)
    place = at >> 2
    for row in range(rows + 1):  # a byte a row
        offsets[place + row] = row
    if not rows & 1:
        offsets[place + rows + 1] = 0
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
    put_buffer(words, buffers + 32, at - body, rows * 4)
    at = put_32(origin, rows, out, at)
    put_buffer(words, buffers + 36, at - body, rows)
    at = put_8(before_kind, rows, out, at)
    for index in range(MARKED_NODE):
        put_node(words, nodes + index * 2, rows, 0)
        if index > 0:  # without NULLs
            put_buffer(words, buffers + 2 + index * 4, at - body, 0)
    return at


def put_unchanged(
    places: Integers, tuple_at: Integers, columns: int, found: int,
    out: Room, offsets: Integers, words: Integers, nodes: int, buffers: int, body: int, at: int,
) -> int:  # fmt: skip
    """Put the bitmaps of the columns that are external, NULL for rows without one; return where they end."""
    rows = len(tuple_at)
    bitmap = rows + 7 >> 3
    offsets_at = at + (bitmap + 7 & ~7)
    start = offsets_at + ((rows + 1) * 4 + 7 & ~7)
    width = columns + 7 >> 3
    end = start + (rows * width + 7 & ~7 if found else 0)
    clear(out, at, end)
    marked = 0
    if found:
        place = offsets_at >> 2
        marked = mark_unchanged(
            places, tuple_at, columns, out[start:end], offsets[place : place + rows + 1], out[at:offsets_at]
        )
    put_node(words, nodes + MARKED_NODE * 2, rows, rows - marked)
    buffer = buffers + MARKED_BUFFER * 2
    put_buffer(words, buffer, at - body, bitmap)
    put_buffer(words, buffer + 2, offsets_at - body, (rows + 1) * 4)
    put_buffer(words, buffer + 4, start - body, marked * width)
    return start + (marked * width + 7 & ~7)


def put_nothing(
    levels: Integers, units: Integers, rows: int,
    out: Room, words: Integers, nodes: int, buffers: int, body: int, at: int,
) -> int:  # fmt: skip
    """Put a side that no row has: its columns share the same zeros. Return where they end."""
    longest = 0
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
        length = rows if levels[index] == 0 else 0  # of lists without elements
        put_node(words, nodes + index * 2, length, length)
    end = at + (longest + 7 & ~7)
    clear(out, at, end)
    return end


def put_validity(
    tuple_at: Integers, nulls: int, out: Room, words: Integers, nodes: int, buffers: int, body: int, at: int
) -> int:
    """Put which rows have a tuple; return where that ends."""
    rows = len(tuple_at)
    bitmap = rows + 7 >> 3 if nulls > 0 else 0
    end = at + (bitmap + 7 & ~7)
    clear(out, at, end)
    if nulls > 0:
        present(tuple_at, 0, rows, out[at:end])
    put_node(words, nodes, rows, nulls)
    put_buffer(words, buffers, at - body, bitmap)
    return end


def unset(bits: Room, count: int) -> int:
    """Return how many of the first `count` bits are not set."""
    left = count
    with cython.nogil:
        for index in range(count + 7 >> 3):
            byte = bits[index]
            while byte:
                byte = byte & (byte - 1)
                left -= 1
    return left


def put_columns(
    data: Buffer, places: Integers, sizes: Integers, absent: Integers, rows: int, plan: Integers, labels: bytes,
    stack: Integers, out: Room, out_16: Integers, out_32: Integers, out_64: Integers, offsets: Integers,
    nodes: int, buffers: int, body: int, state: Integers,
) -> int:  # fmt: skip
    """Put the columns of located values from `state[1]` on, at `state[0]`; return why it stopped, with both moved on.

    `absent` says how many rows of each have no value. Columns next to each other whose buffers can be placed before a
    value is read are put together, some rows of all of them at a time: these rows are fetched from memory once.
    """
    bitmap = rows + 7 >> 3
    slot = state[1]
    while slot < len(absent):
        at = state[0]
        halt = STOP_DONE
        next_slot = slot
        while next_slot < len(absent):
            step = next_slot * NUMBERS
            way = plan[step]
            nulls = absent[next_slot]
            first = next_slot * rows
            needed = 0
            size = rows * 8
            if way >= WAY_BYTES:
                size = (rows + 1) * 4
            elif way == WAY_BOOL:
                size = bitmap
            elif way == WAY_16:
                size = rows * 2
            elif way in (WAY_32, WAY_DATE):
                size = rows * 4
            elif way == WAY_DECIMAL:
                size = rows * 16
            start = at + (bitmap + 7 & ~7 if nulls > 0 or way == WAY_DECIMAL else 0)
            end = start + (size + 7 & ~7)
            if way == WAY_OTHER:
                halt = STOP_OTHER
            elif way > WAY_UUID:
                halt = STOP_WRITTEN
            elif end > len(out):
                halt = STOP_FULL
            elif way >= WAY_BYTES:
                needed = (rows - nulls) * UUID_TEXT_BYTES
                if way != WAY_UUID:
                    needed = measure(places, sizes, first, rows, offsets[start >> 2 : (start >> 2) + rows + 1])
                if needed < 0 or needed > TEXT_BYTES_MAX:
                    halt = STOP_TOO_LONG
                elif end + (needed + 7 & ~7) > len(out):
                    halt = STOP_FULL
            if halt != STOP_DONE:
                break
            if start > at:
                clear(out, at, start)
                present(places, first, rows, out[at:start])
            clear(out, start if way == WAY_BOOL or (nulls > 0 and way < WAY_BYTES) else start + size, end)
            node = nodes + plan[step + 1] * 2
            buffer = buffers + plan[step + 2] * 2
            put_node(out_64, node, rows, nulls)
            put_buffer(out_64, buffer, at - body, bitmap if nulls > 0 else 0)
            put_buffer(out_64, buffer + 2, start - body, size)
            at = end
            if way >= WAY_BYTES:
                put_buffer(out_64, buffer + 4, end - body, needed)
                at = end + (needed + 7 & ~7)
                if way == WAY_UUID:
                    offsets[start >> 2] = 0
            next_slot += 1
        end = at
        last = next_slot
        begin = 0
        while begin < rows:
            count = min(rows - begin, TOGETHER)
            index = slot
            while index < last:
                step = index * NUMBERS
                way = plan[step]
                buffer = buffers + plan[step + 2] * 2
                first = index * rows + begin
                at = body + out_64[buffer]
                start = body + out_64[buffer + 2]
                odd = STOP_DONE
                if way == WAY_BOOL:
                    start += begin >> 3
                    build_bool(data, places, first, count, out[start : start + (count + 7 >> 3)])
                elif way == WAY_16:
                    start = (start >> 1) + begin
                    build_16(data, places, first, count, out_16[start : start + count])
                elif way == WAY_32:
                    start = (start >> 2) + begin
                    build_32(data, places, first, count, out_32[start : start + count])
                elif way == WAY_64:
                    start = (start >> 3) + begin
                    build_64(data, places, first, count, out_64[start : start + count])
                elif way == WAY_UNSIGNED:
                    start = (start >> 3) + begin
                    build_widened(data, places, first, count, out_64[start : start + count])
                elif way == WAY_DATE:
                    start = (start >> 2) + begin
                    build_clamped_32(
                        data, places, first, count, plan[step + 3], plan[step + 4], plan[step + 5],
                        out_32[start : start + count],
                    )  # fmt: skip
                elif way == WAY_TIMESTAMP:
                    start = (start >> 3) + begin
                    build_clamped_64(
                        data, places, first, count, plan[step + 3], plan[step + 4], plan[step + 5],
                        out_64[start : start + count],
                    )  # fmt: skip
                elif way == WAY_DECIMAL:
                    at += begin >> 3
                    start = (start >> 3) + begin * 2
                    odd = build_decimal(
                        data, places, sizes, first, count, plan[step + 3], plan[step + 4],
                        out_64[start : start + count * 2], out[at : at + (count + 7 >> 3)],
                    )  # fmt: skip
                else:
                    start = (start >> 2) + begin
                    ends = offsets[start : start + count + 1]
                    at = body + out_64[buffer + 4]
                    room = at + (out_64[buffer + 5] + 7 & ~7)
                    if way == WAY_UUID:
                        odd = build_uuid(data, places, sizes, first, count, DIGITS, ends, out[at:room])
                    else:
                        odd = copy_bytes(data, places, sizes, first, count, ends, out[at:room])
                if odd != STOP_DONE:  # the caller's column
                    last = index
                    halt = STOP_OTHER
                index += 1
            begin += count
        index = slot
        while index < last:
            step = index * NUMBERS
            way = plan[step]
            buffer = buffers + plan[step + 2] * 2
            start = body + out_64[buffer + 2]
            if way == WAY_DECIMAL:
                at = body + out_64[buffer]
                nulls = unset(out[at:start], rows)
                put_node(out_64, nodes + plan[step + 1] * 2, rows, nulls)
                put_buffer(out_64, buffer, at - body, bitmap if nulls > 0 else 0)
            elif way >= WAY_BYTES:
                at = body + out_64[buffer + 4]
                size = out_64[buffer + 5]
                clear(out, at + size, at + (size + 7 & ~7))
                ends = offsets[start >> 2 : (start >> 2) + rows + 1]
                if way == WAY_TEXT and not valid_utf8(out[at : at + size], ends, rows):
                    last = index  # although the database says so
                    halt = STOP_OTHER
            index += 1
        if last < next_slot:
            end = body + out_64[buffers + plan[last * NUMBERS + 2] * 2]
        state[0] = end
        state[1] = last
        slot = last
        if halt == STOP_WRITTEN:
            halt = put_written(
                data, places, sizes, absent[slot], rows, slot, plan, labels, stack, out, out_64, offsets, nodes,
                buffers, body, state,
            )  # fmt: skip
            slot += 1
        if halt != STOP_DONE:
            return halt
    return STOP_DONE


def put_written(
    data: Buffer, places: Integers, sizes: Integers, nulls: int, rows: int, slot: int, plan: Integers, labels: bytes,
    stack: Integers, out: Room, out_64: Integers, offsets: Integers, nodes: int, buffers: int, body: int,
    state: Integers,
) -> int:  # fmt: skip
    """Put a column whose texts have a length that is known when they are written; return why not, or DONE."""
    step = slot * NUMBERS
    way = plan[step]
    bitmap = rows + 7 >> 3
    first = slot * rows
    at = state[0]
    start = at + (bitmap + 7 & ~7 if nulls > 0 else 0)
    size = (rows + 1) * 4
    end = start + (size + 7 & ~7)
    if end > len(out):
        return STOP_FULL
    if start > at:
        clear(out, at, start)
        present(places, first, rows, out[at:start])
    clear(out, start + size, end)
    ends = offsets[start >> 2 : (start >> 2) + rows + 1]
    room = min(len(out) - end, TEXT_BYTES_MAX)
    if way == WAY_LABELS:
        needed = rows * plan[step + 5]
        if needed > room:
            return STOP_TOO_LONG if needed > TEXT_BYTES_MAX else STOP_FULL
        odd = build_labels(
            data, places, first, rows, plan, plan[step + 3], plan[step + 4], labels, ends, out[end : end + room]
        )
    else:
        ends[0] = 0
        if way == WAY_NUMERIC_TEXT:
            odd = build_numeric_text(data, places, sizes, first, 0, rows, ends, out[end : end + room])
        else:
            odd = build_jsonb_text(data, places, sizes, first, 0, rows, ends, out[end : end + room], stack)
        if odd >= 0:  # the first row that did not fit
            return STOP_TOO_LONG if room == TEXT_BYTES_MAX else STOP_FULL
    if odd != STOP_DONE:
        return STOP_OTHER
    needed = ends[rows]
    if way == WAY_JSONB and not valid_utf8(out[end : end + needed], ends, rows):
        return STOP_OTHER  # although the database says so
    buffer = buffers + plan[step + 2] * 2
    put_node(out_64, nodes + plan[step + 1] * 2, rows, nulls)
    put_buffer(out_64, buffer, at - body, bitmap if nulls > 0 else 0)
    put_buffer(out_64, buffer + 2, start - body, size)
    put_buffer(out_64, buffer + 4, end - body, needed)
    clear(out, end + needed, end + (needed + 7 & ~7))
    state[0] = end + (needed + 7 & ~7)
    state[1] = slot + 1
    return STOP_DONE
