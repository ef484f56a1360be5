"""Builds the batch of a few rows in one call: both passes, all columns of both sides, in memory that is reused.

For a few rows the cost of a batch is that of its calls and buffers, not that of its values: so all buffers are held by
two objects, one for the shape and one for the rows and the reused memory. `batches` builds what this kernel leaves to
it: values that are compressed, missing or without a kernel, tuples that contradict their layout, and rows for which the
reused memory is too small.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
"""
# ruff: noqa: PLR0917 - buffers and their bounds: a struct of them would be an object a call

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tidemark.decode.arrow.batch_body import (
    META_BUFFERS,
    META_NODES,
    fill_unchanged,
    put_nothing,
    put_rows,
    put_unchanged,
    put_validity,
    survey,
)
from tidemark.decode.arrow.batch_columns import Stop, put_columns
from tidemark.decode.arrow.text_columns import STACK_INTEGERS
from tidemark.decode.datum.deforming import COMPRESSED, DONE, EXTERNAL, KINDS, MISSING, locate

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from tidemark.decode.datum.deforming import Buffer, Integers, OutBytes
    from tidemark.decode.datum.row_entries import SortedColumns

COMPILED = bool(cython.compiled)
MESSAGE_BYTES = 16 << 10  # of a small batch
SMALL_CELLS = 2048  # of both sides: a batch with more is not small
SMALL_COLUMNS = 256
LEFT = 0  # in place of a length: the rows are left to `batches`
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


class SmallShape:
    """The columns of a relation version."""

    def __init__(
        self,
        lengths: Integers, aligns: Integers, slots: Integers, plan: Integers, labels: bytes, levels: Integers,
        units: Integers, columns: int, row_bytes: int, head: bytes, length: int, body_length: int, nodes: int,
        buffers: int,
    ) -> None:  # fmt: skip
        """`columns` is the number of live columns, `row_bytes` the size of a row without variable parts.

        `head` begins each message; the other numbers are indexes of 64-bit words in it (`MessageForm`).
        """
        self.lengths = lengths
        self.aligns = aligns
        self.slots = slots
        self.plan = plan
        self.labels = labels
        self.levels = levels
        self.units = units
        self.columns = columns
        self.row_bytes = row_bytes
        self.head = head
        self.length = length
        self.body_length = body_length
        self.nodes = nodes
        self.buffers = buffers


class SmallBatches:
    """Rows, and the memory in which their batches are built, one after another; for one thread."""

    def __init__(self) -> None:
        # NB: memoryviews, because a slice of an array would be a copy.
        self.locations = memoryview(bytearray(8 * SMALL_CELLS)).cast("q")
        self.sizes = memoryview(bytearray(8 * SMALL_CELLS)).cast("q")
        self.counts = memoryview(bytearray(16 * SMALL_COLUMNS)).cast("q")
        self.stack = array("q", bytes(8 * STACK_INTEGERS))
        self.state = array("q", bytes(16))
        self.out = memoryview(bytearray(MESSAGE_BYTES))
        self.out_16 = memoryview(self.out).cast("H")
        self.out_32 = memoryview(self.out).cast("I")
        self.words = memoryview(self.out).cast("Q")
        self.offsets = memoryview(self.out).cast("i")
        self.rows: SortedColumns | None = None

    def hold(self, rows: SortedColumns) -> None:
        """Take the rows of the next batches, whose number can no longer change."""
        self.rows = rows
        self.op = rows.op
        self.before_kind = rows.before_kind
        self.timeline = rows.timeline
        self.commit_lsn = rows.commit_lsn
        self.ordinal = rows.ordinal
        self.origin = rows.origin
        self.lsn = rows.lsn
        self.xid = rows.xid
        self.commit_time = rows.commit_time_us
        self.new_at = rows.new_at
        self.new_length = rows.new_length
        self.old_at = rows.old_at
        self.old_length = rows.old_length

    def message(self, shape: SmallShape, data: Buffer, start: int, stop: int) -> bytes | None:
        """Return the message of the rows `start` to `stop`, with tuples in `data`; None: it is left to `batches`."""
        length = self.put(shape, data, start, stop)
        if length == LEFT:
            return None
        self.words[shape.length] = stop - start
        self.words[shape.body_length] = length - len(shape.head)
        if cython.compiled:
            made: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.address(self.out[0])), length)
            return made
        return bytes(self.out[:length])

    def put(self, shape: SmallShape, data: Buffer, start: int, stop: int) -> int:
        """Put the rows into `out`; return the message's length, or `LEFT`.

        For each side, `counts` has the kinds of values, the absent values of each column, and the bytes of the tuples.
        """
        columns = shape.columns
        rows = stop - start
        cells = rows * columns
        body = len(shape.head)
        width = COUNTED + columns + 1
        if rows <= 0 or 2 * cells > len(self.locations) or 2 * width > len(self.counts):
            return LEFT
        zero(self.counts, 2 * width)
        news, olds = self.new_at[start:stop], self.old_at[start:stop]
        new_nulls = survey(news, self.new_length[start:stop], self.counts[width - 1 : width])
        old_nulls = survey(olds, self.old_length[start:stop], self.counts[2 * width - 1 : 2 * width])
        space = rows * (ROW_SPACE + (columns >> 3) + 2 * (shape.row_bytes + 17)) + HEAD_SPACE
        space += 2 * columns * COLUMN_SPACE
        if body + space + self.counts[width - 1] + self.counts[2 * width - 1] > len(self.out):
            return LEFT
        if locate_side(
            data, news, self.new_length[start:stop], new_nulls, columns, shape.lengths, shape.aligns, shape.slots,
            self.locations[:cells], self.sizes[:cells], self.counts[:width],
        ) < 0 or locate_side(
            data, olds, self.old_length[start:stop], old_nulls, columns, shape.lengths, shape.aligns, shape.slots,
            self.locations[cells : 2 * cells], self.sizes[cells : 2 * cells], self.counts[width : 2 * width],
        ) < 0:  # fmt: skip
            return LEFT
        if self.counts[EXTERNAL_VALUES] > 0 and old_nulls < rows:
            space += fill_unchanged(
                self.locations[:cells], self.sizes[:cells], self.locations[cells : 2 * cells],
                self.sizes[cells : 2 * cells], self.counts[COUNTED : COUNTED + columns], self.counts[:COUNTED],
            )  # fmt: skip
            if body + space + self.counts[width - 1] + self.counts[2 * width - 1] > len(self.out):
                return LEFT
        if cython.compiled:
            memcpy(cython.address(self.out[0]), cython.address(shape.head[0]), body)
        else:
            self.out[:body] = shape.head
        at = put_rows(
            self.op[start:stop], self.timeline[start:stop], self.commit_lsn[start:stop], self.ordinal[start:stop],
            self.lsn[start:stop], self.xid[start:stop], self.commit_time[start:stop], self.origin[start:stop],
            self.before_kind[start:stop], self.counts[EXTERNAL_VALUES], self.out, self.offsets, self.words,
            shape.nodes, shape.buffers, body, body,
        )  # fmt: skip
        at = put_unchanged(
            self.locations[:cells], news, columns, self.counts[EXTERNAL_VALUES], rows - old_nulls, self.out,
            self.offsets, self.words, shape.nodes, shape.buffers, body, at,
        )  # fmt: skip
        nodes = shape.nodes + 2 * ROW_NODES
        buffers = shape.buffers + 2 * ROW_BUFFERS
        at = put_side(
            data, olds, old_nulls, columns, self.locations[cells : 2 * cells], self.sizes[cells : 2 * cells],
            self.counts[width : 2 * width], shape.plan, shape.labels, shape.levels, shape.units, self.stack, self.state,
            self.out, self.out_16, self.out_32, self.words, self.offsets, nodes, buffers, body, at,
        )  # fmt: skip
        if at == LEFT:
            return LEFT
        return put_side(
            data, news, new_nulls, columns, self.locations[:cells], self.sizes[:cells], self.counts[:width],
            shape.plan, shape.labels, shape.levels, shape.units, self.stack, self.state,
            self.out, self.out_16, self.out_32, self.words, self.offsets,
            nodes + 2 * len(shape.levels), buffers + 2 * len(shape.units), body, at,
        )  # fmt: skip
