"""Puts all columns of a side into a batch in one call; it calls the kernels of `columns` and `text_columns`.

A column that has no kernel, or whose values its kernel cannot convert, is left to the caller, which then continues
with the next column. The caller also continues after it has enlarged a full buffer. Adjacent columns whose buffers can
be placed before any value is read are put together in three passes: reserve their buffers, fill in the values of
some rows of all these columns at a time (so each row is fetched from memory once), and check and write what only
filling shows.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same. `out`
and `out_*` are views of the same bytes; `nodes` and `buffers` are indexes in `out_64`; `state` is the offset of the
next column and its number.

NB: assign a byte to a variable before shifting it, and use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: C901 - a branch for each kernel
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from tidemark.decode.arrow.batch_body import clear, put_buffer, put_node
from tidemark.decode.arrow.columns import (
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
from tidemark.decode.arrow.text_columns import build_jsonb_text, build_numeric_text
from tidemark.decode.datum.deforming import OFFSET_MAX, present
from tidemark.decode.types.families import strings

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if TYPE_CHECKING:
    from tidemark.decode.datum.deforming import Buffer, Integers, OutBytes

COMPILED = bool(cython.compiled)


class ColumnKernel(IntEnum):
    """The kernel that puts a column into the body."""

    OTHER = 0  # the caller puts the column
    BOOL = 1
    FIXED_16 = 2
    FIXED_32 = 3
    FIXED_64 = 4
    UNSIGNED = 5
    DATE = 6
    TIMESTAMP = 7
    DECIMAL = 8
    BYTES = 9  # from here on values of variable length, with offsets before them
    TEXT = 10
    UUID = 11
    LABELS = 12  # from here on the length is known only after writing
    NUMERIC_TEXT = 13
    JSONB = 14


class Stop(IntEnum):
    """Why `put_columns` returned."""

    DONE = -1
    OTHER = -2  # the caller must put this column
    FULL = -3
    TOO_LONG = -4  # more bytes than Arrow's 32-bit offsets can address: the caller must use fewer rows


# The numbers of a column in a plan.
STEP = 6  # kernel, node, buffer; for a decimal precision and scale; for a date or timestamp its bounds and the epoch;
# for labels their index in the plan, their number, and the bytes of the longest
ROWS_TOGETHER = 1024  # their tuples and locations fit into the processor's second-level cache; a multiple of 64

# Copies as C integers, which Python code does not see.
KERNEL_OTHER = int(ColumnKernel.OTHER)
KERNEL_BOOL = int(ColumnKernel.BOOL)
KERNEL_16 = int(ColumnKernel.FIXED_16)
KERNEL_32 = int(ColumnKernel.FIXED_32)
KERNEL_64 = int(ColumnKernel.FIXED_64)
KERNEL_UNSIGNED = int(ColumnKernel.UNSIGNED)
KERNEL_DATE = int(ColumnKernel.DATE)
KERNEL_TIMESTAMP = int(ColumnKernel.TIMESTAMP)
KERNEL_DECIMAL = int(ColumnKernel.DECIMAL)
KERNEL_BYTES = int(ColumnKernel.BYTES)
KERNEL_TEXT = int(ColumnKernel.TEXT)
KERNEL_UUID = int(ColumnKernel.UUID)
KERNEL_LABELS = int(ColumnKernel.LABELS)
KERNEL_NUMERIC_TEXT = int(ColumnKernel.NUMERIC_TEXT)
KERNEL_JSONB = int(ColumnKernel.JSONB)
STOP_DONE = int(Stop.DONE)
STOP_OTHER = int(Stop.OTHER)
STOP_FULL = int(Stop.FULL)
STOP_TOO_LONG = int(Stop.TOO_LONG)
STOP_WRITTEN = -5  # one column was put alone
NUMBERS = STEP
DIGITS = b"0123456789abcdef"
UUID_TEXT_BYTES = strings.UUID_TEXT_BYTES
TEXT_BYTES_MAX = OFFSET_MAX  # bytes of one column
TOGETHER = int(ROWS_TOGETHER)


def unset(bits: OutBytes, count: int) -> int:
    """Return how many of the first `count` bits are zero."""
    left = count
    with cython.nogil:
        for index in range(count + 7 >> 3):
            byte = bits[index]
            while byte:
                byte = byte & (byte - 1)
                left -= 1
    return left


def put_columns(
    data: Buffer, locations: Integers, sizes: Integers, absent: Integers, rows: int, plan: Integers, labels: bytes,
    stack: Integers, out: OutBytes, out_16: Integers, out_32: Integers, out_64: Integers, offsets: Integers,
    nodes: int, buffers: int, body: int, state: Integers,
) -> int:  # fmt: skip
    """Put located columns from number `state[1]` on, at offset `state[0]`; advance both; return why it stopped.

    `absent` is the number of rows without a value for each column.
    """
    halt = STOP_DONE
    while halt == STOP_DONE and state[1] < len(absent):
        slot = state[1]
        halt = reserve(locations, sizes, absent, rows, plan, out, out_64, offsets, nodes, buffers, body, state)
        reserved = state[1]
        filled = fill(
            data, locations, sizes, rows, plan, out, out_16, out_32, out_64, offsets, buffers, body, slot, reserved
        )
        whole = seal(rows, plan, out, out_64, offsets, nodes, buffers, body, slot, filled)
        if whole < reserved:  # the kernel cannot convert some value
            state[0] = body + out_64[buffers + plan[whole * NUMBERS + 2] * 2]
            state[1] = whole
            halt = STOP_OTHER
        elif halt == STOP_WRITTEN:
            halt = put_written(
                data, locations, sizes, absent[reserved], rows, reserved, plan, labels, stack, out, out_64, offsets,
                nodes, buffers, body, state,
            )  # fmt: skip
    return halt


def byte_count(kernel: int, rows: int) -> int:
    """Return the size of a column's values, or of the offsets if the values have variable length."""
    if kernel >= KERNEL_BYTES:
        return (rows + 1) * 4
    if kernel == KERNEL_BOOL:
        return rows + 7 >> 3
    if kernel == KERNEL_16:
        return rows * 2
    if kernel in (KERNEL_32, KERNEL_DATE):
        return rows * 4
    return rows * 16 if kernel == KERNEL_DECIMAL else rows * 8


def reserve(
    locations: Integers, sizes: Integers, absent: Integers, rows: int, plan: Integers,
    out: OutBytes, out_64: Integers, offsets: Integers, nodes: int, buffers: int, body: int, state: Integers,
) -> int:  # fmt: skip
    """Place the buffers of the columns from `state[1]` on; advance `state`; return why it stopped."""
    bitmap = rows + 7 >> 3
    halt = STOP_DONE
    while state[1] < len(absent):
        slot = state[1]
        at = state[0]
        step = slot * NUMBERS
        kernel = plan[step]
        nulls = absent[slot]
        first = slot * rows
        needed = 0
        size = byte_count(kernel, rows)
        start = at + (bitmap + 7 & ~7 if nulls > 0 or kernel == KERNEL_DECIMAL else 0)
        end = start + (size + 7 & ~7)
        if kernel == KERNEL_OTHER:
            halt = STOP_OTHER
        elif kernel > KERNEL_UUID:
            halt = STOP_WRITTEN
        elif end > len(out):
            halt = STOP_FULL
        elif kernel >= KERNEL_BYTES:
            needed = (rows - nulls) * UUID_TEXT_BYTES
            if kernel != KERNEL_UUID:
                needed = measure(locations, sizes, first, rows, offsets[start >> 2 : (start >> 2) + rows + 1])
            if needed < 0 or needed > TEXT_BYTES_MAX:
                halt = STOP_TOO_LONG
            elif end + (needed + 7 & ~7) > len(out):
                halt = STOP_FULL
        if halt != STOP_DONE:
            return halt
        if start > at:
            clear(out, at, start)
            present(locations, first, rows, out[at:start])
        clear(out, start if kernel == KERNEL_BOOL or (nulls > 0 and kernel < KERNEL_BYTES) else start + size, end)
        buffer = buffers + plan[step + 2] * 2
        put_node(out_64, nodes + plan[step + 1] * 2, rows, nulls)
        put_buffer(out_64, buffer, at - body, bitmap if nulls > 0 else 0)
        put_buffer(out_64, buffer + 2, start - body, size)
        if kernel >= KERNEL_BYTES:
            put_buffer(out_64, buffer + 4, end - body, needed)
            end += needed + 7 & ~7
            if kernel == KERNEL_UUID:
                offsets[start >> 2] = 0
        state[0] = end
        state[1] = slot + 1
    return halt


def fill(
    data: Buffer, locations: Integers, sizes: Integers, rows: int, plan: Integers,
    out: OutBytes, out_16: Integers, out_32: Integers, out_64: Integers, offsets: Integers,
    buffers: int, body: int, slot: int, last: int,
) -> int:  # fmt: skip
    """Fill the columns from `slot` to `last`; return the first column that the caller must put, or `last`."""
    begin = 0
    while begin < rows:
        count = min(rows - begin, TOGETHER)
        index = slot
        while index < last:
            step = index * NUMBERS
            kernel = plan[step]
            buffer = buffers + plan[step + 2] * 2
            first = index * rows + begin
            at = body + out_64[buffer]
            start = body + out_64[buffer + 2]
            odd = STOP_DONE
            if kernel == KERNEL_BOOL:
                start += begin >> 3
                build_bool(data, locations, first, count, out[start : start + (count + 7 >> 3)])
            elif kernel == KERNEL_16:
                start = (start >> 1) + begin
                build_16(data, locations, first, count, out_16[start : start + count])
            elif kernel == KERNEL_32:
                start = (start >> 2) + begin
                build_32(data, locations, first, count, out_32[start : start + count])
            elif kernel == KERNEL_64:
                start = (start >> 3) + begin
                build_64(data, locations, first, count, out_64[start : start + count])
            elif kernel == KERNEL_UNSIGNED:
                start = (start >> 3) + begin
                build_widened(data, locations, first, count, out_64[start : start + count])
            elif kernel == KERNEL_DATE:
                start = (start >> 2) + begin
                build_clamped_32(
                    data, locations, first, count, plan[step + 3], plan[step + 4], plan[step + 5],
                    out_32[start : start + count],
                )  # fmt: skip
            elif kernel == KERNEL_TIMESTAMP:
                start = (start >> 3) + begin
                build_clamped_64(
                    data, locations, first, count, plan[step + 3], plan[step + 4], plan[step + 5],
                    out_64[start : start + count],
                )  # fmt: skip
            elif kernel == KERNEL_DECIMAL:
                at += begin >> 3
                start = (start >> 3) + begin * 2
                odd = build_decimal(
                    data, locations, sizes, first, count, plan[step + 3], plan[step + 4],
                    out_64[start : start + count * 2], out[at : at + (count + 7 >> 3)],
                )  # fmt: skip
            else:
                start = (start >> 2) + begin
                at = body + out_64[buffer + 4]
                odd = fill_texts(
                    data, locations, sizes, first, count, kernel, offsets[start : start + count + 1],
                    out[at : at + (out_64[buffer + 5] + 7 & ~7)],
                )  # fmt: skip
            if odd != STOP_DONE:
                last = index  # the columns after it are not filled
            index += 1
        begin += count
    return last


def fill_texts(
    data: Buffer,
    locations: Integers,
    sizes: Integers,
    first: int,
    count: int,
    kernel: int,
    ends: Integers,
    out: OutBytes,
) -> int:
    """Fill a column of variable length; each value's end comes from its size. Return why it stopped, or DONE."""
    if kernel == KERNEL_UUID:
        return build_uuid(data, locations, sizes, first, count, DIGITS, ends, out)
    return copy_bytes(data, locations, sizes, first, count, ends, out)


def seal(
    rows: int, plan: Integers, out: OutBytes, out_64: Integers, offsets: Integers,
    nodes: int, buffers: int, body: int, slot: int, last: int,
) -> int:  # fmt: skip
    """Set NULL counts, check for NaN and invalid text; return the first column that the caller must put."""
    bitmap = rows + 7 >> 3
    for index in range(slot, last):
        step = index * NUMBERS
        kernel = plan[step]
        buffer = buffers + plan[step + 2] * 2
        start = body + out_64[buffer + 2]
        if kernel == KERNEL_DECIMAL:
            at = body + out_64[buffer]
            nulls = unset(out[at:start], rows)
            put_node(out_64, nodes + plan[step + 1] * 2, rows, nulls)
            put_buffer(out_64, buffer, at - body, bitmap if nulls > 0 else 0)
        elif kernel >= KERNEL_BYTES:
            at = body + out_64[buffer + 4]
            size = out_64[buffer + 5]
            clear(out, at + size, at + (size + 7 & ~7))
            ends = offsets[start >> 2 : (start >> 2) + rows + 1]
            if kernel == KERNEL_TEXT and not valid_utf8(out[at : at + size], ends, rows):
                return index  # invalid text, although the database's encoding promises valid text
    return last


def put_written(
    data: Buffer, locations: Integers, sizes: Integers, nulls: int, rows: int, slot: int, plan: Integers, labels: bytes,
    stack: Integers, out: OutBytes, out_64: Integers, offsets: Integers, nodes: int, buffers: int, body: int,
    state: Integers,
) -> int:  # fmt: skip
    """Put a column whose length is known only after its texts are written; return why it stopped, or DONE."""
    step = slot * NUMBERS
    kernel = plan[step]
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
        present(locations, first, rows, out[at:start])
    clear(out, start + size, end)
    ends = offsets[start >> 2 : (start >> 2) + rows + 1]
    space = min(len(out) - end, TEXT_BYTES_MAX)
    if kernel == KERNEL_LABELS:
        needed = rows * plan[step + 5]
        if needed > space:
            return STOP_TOO_LONG if needed > TEXT_BYTES_MAX else STOP_FULL
        odd = build_labels(
            data, locations, first, rows, plan, plan[step + 3], plan[step + 4], labels, ends, out[end : end + space]
        )
    else:
        ends[0] = 0
        if kernel == KERNEL_NUMERIC_TEXT:
            odd = build_numeric_text(data, locations, sizes, first, 0, rows, ends, out[end : end + space])
        else:
            odd = build_jsonb_text(data, locations, sizes, first, 0, rows, ends, out[end : end + space], stack)
        if odd >= 0:  # the first row that did not fit
            return STOP_TOO_LONG if space == TEXT_BYTES_MAX else STOP_FULL
    if odd != STOP_DONE:
        return STOP_OTHER
    needed = ends[rows]
    if kernel == KERNEL_JSONB and not valid_utf8(out[end : end + needed], ends, rows):
        return STOP_OTHER  # invalid text, although the database's encoding promises valid text
    buffer = buffers + plan[step + 2] * 2
    put_node(out_64, nodes + plan[step + 1] * 2, rows, nulls)
    put_buffer(out_64, buffer, at - body, bitmap if nulls > 0 else 0)
    put_buffer(out_64, buffer + 2, start - body, size)
    put_buffer(out_64, buffer + 4, end - body, needed)
    clear(out, end + needed, end + (needed + 7 & ~7))
    state[0] = end + (needed + 7 & ~7)
    state[1] = slot + 1
    return STOP_DONE
