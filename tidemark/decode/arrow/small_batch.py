"""Builds the batch of a few rows in one call: both passes, all columns of both sides, in memory that is reused.

For a few rows the cost of a batch is that of its calls and buffers, not that of its values. `batches` builds what this
kernel leaves to it: values that are compressed, missing or without a kernel, tuples that contradict their layout, and
rows for which the reused memory is too small.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
"""
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.decode.arrow.batch_body import (
    META_BUFFERS,
    META_NODES,
    put_nothing,
    put_rows,
    put_unchanged,
    put_validity,
    survey,
)
from tidemark.decode.arrow.batch_columns import Stop, put_columns
from tidemark.decode.datum.deforming import COMPRESSED, DONE, EXTERNAL, KINDS, MISSING, locate

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from tidemark.decode.datum.deforming import Buffer, Integers, OutBytes

COMPILED = bool(cython.compiled)
LEFT = 0  # returned if the rows are left to `batches`
ROW_BYTES = 64  # upper bound of a row's metadata
HEAD_BYTES = 160  # padding of the metadata buffers
COLUMN_BYTES = 24  # padding of one column's buffers

# Copies as C integers, which Python code does not see.
ROW_SPACE = ROW_BYTES
HEAD_SPACE = HEAD_BYTES
COLUMN_SPACE = COLUMN_BYTES
COUNTED = KINDS
COMPRESSED_VALUES = COMPRESSED
MISSING_VALUES = MISSING
EXTERNAL_VALUES = EXTERNAL
ALL_LOCATED = DONE
ALL_PUT = int(Stop.DONE)
ROW_NODES = META_NODES
ROW_BUFFERS = META_BUFFERS


def zero(counts: Integers, count: int) -> int:
    """Set the first counts to zero."""
    for index in range(count):
        counts[index] = 0
    return 0


def locate_side(
    data: Buffer, tuple_at: Integers, tuple_length: Integers, nulls: int, columns: int,
    lengths: Integers, aligns: Integers, slots: Integers, locations: Integers, sizes: Integers, counts: Integers,
) -> int:  # fmt: skip
    """Locate the values of one side; return 0, or -1 if a value or a tuple is left to `batches`."""
    if nulls == len(tuple_at):
        return 0
    odd = locate(
        data, tuple_at, tuple_length, lengths, aligns, slots, locations, sizes, counts[COUNTED : COUNTED + columns],
        counts[:COUNTED],
    )  # fmt: skip
    return -1 if odd != ALL_LOCATED or counts[COMPRESSED_VALUES] + counts[MISSING_VALUES] > 0 else 0


def put_side(
    data: Buffer, tuple_at: Integers, nulls: int, columns: int, locations: Integers, sizes: Integers, counts: Integers,
    plan: Integers, labels: bytes, levels: Integers, units: Integers, stack: Integers, state: Integers,
    out: OutBytes, out_16: Integers, out_32: Integers, words: Integers, offsets: Integers,
    nodes: int, buffers: int, body: int, at: int,
) -> int:  # fmt: skip
    """Put the columns of one side at `at`; return the end offset, or `LEFT`."""
    rows = len(tuple_at)
    if nulls == rows:
        return put_nothing(levels, units, rows, out, words, nodes, buffers, body, at)
    state[0] = put_validity(tuple_at, nulls, out, words, nodes, buffers, body, at)
    state[1] = 0
    halt = put_columns(
        data, locations, sizes, counts[COUNTED : COUNTED + columns], rows, plan, labels, stack, out, out_16, out_32,
        words, offsets, nodes, buffers, body, state,
    )  # fmt: skip
    return state[0] if halt == ALL_PUT else LEFT


def put_small_batch(
    op: Buffer, before_kind: Buffer, timeline: Integers, commit_lsn: Integers, ordinal: Integers, origin: Integers,
    lsn: Integers, xid: Integers, commit_time: Integers, new_at: Integers, new_length: Integers, old_at: Integers,
    old_length: Integers, start: int, stop: int, data: Buffer,
    lengths: Integers, aligns: Integers, slots: Integers, plan: Integers, labels: bytes, levels: Integers,
    units: Integers, columns: int, row_bytes: int,
    locations: Integers, sizes: Integers, counts: Integers, stack: Integers, state: Integers,
    out: OutBytes, out_16: Integers, out_32: Integers, words: Integers, offsets: Integers,
    head: bytes, nodes: int, buffers: int,
) -> int:  # fmt: skip
    """Put the rows `start` to `stop` as a message into `out`; return its length, or `LEFT`.

    `columns` is the number of live columns, `row_bytes` the size of a row without variable parts. For each side,
    `counts` has the kinds of values, the absent values of each column, and the bytes of the tuples.
    """
    rows = stop - start
    cells = rows * columns
    body = len(head)
    width = COUNTED + columns + 1
    if rows <= 0 or 2 * cells > len(locations) or 2 * width > len(counts):
        return LEFT
    zero(counts, 2 * width)
    news, olds = new_at[start:stop], old_at[start:stop]
    new_nulls = survey(news, new_length[start:stop], counts[width - 1 : width])
    old_nulls = survey(olds, old_length[start:stop], counts[2 * width - 1 : 2 * width])
    space = rows * (ROW_SPACE + (columns >> 3) + 2 * (row_bytes + 17)) + HEAD_SPACE + 2 * columns * COLUMN_SPACE
    if body + space + counts[width - 1] + counts[2 * width - 1] > len(out):
        return LEFT
    if locate_side(
        data, news, new_length[start:stop], new_nulls, columns, lengths, aligns, slots, locations[:cells],
        sizes[:cells], counts[:width],
    ) < 0 or locate_side(
        data, olds, old_length[start:stop], old_nulls, columns, lengths, aligns, slots, locations[cells : 2 * cells],
        sizes[cells : 2 * cells], counts[width : 2 * width],
    ) < 0:  # fmt: skip
        return LEFT
    if cython.compiled:
        memcpy(cython.address(out[0]), cython.address(head[0]), body)
    else:
        out[:body] = head
    at = put_rows(
        op[start:stop], timeline[start:stop], commit_lsn[start:stop], ordinal[start:stop], lsn[start:stop],
        xid[start:stop], commit_time[start:stop], origin[start:stop], before_kind[start:stop],
        out, offsets, words, nodes, buffers, body, body,
    )  # fmt: skip
    at = put_unchanged(
        locations[:cells], news, columns, counts[EXTERNAL_VALUES], out, offsets, words, nodes, buffers, body, at
    )
    nodes += 2 * ROW_NODES
    buffers += 2 * ROW_BUFFERS
    at = put_side(
        data, olds, old_nulls, columns, locations[cells : 2 * cells], sizes[cells : 2 * cells],
        counts[width : 2 * width], plan, labels, levels, units, stack, state, out, out_16, out_32, words, offsets,
        nodes, buffers, body, at,
    )  # fmt: skip
    if at == LEFT:
        return LEFT
    return put_side(
        data, news, new_nulls, columns, locations[:cells], sizes[:cells], counts[:width], plan, labels, levels, units,
        stack, state, out, out_16, out_32, words, offsets, nodes + 2 * len(levels), buffers + 2 * len(units), body, at,
    )  # fmt: skip
