"""Puts columns of located values into a batch: with kernels for the kinds that codecs name, else value by value."""

from array import array
from collections.abc import Mapping

import pyarrow as pa

from tidemark.decode.arrow import batch_body, batch_columns, text_columns
from tidemark.decode.arrow.batch_columns import STEP, ColumnKernel, Stop
from tidemark.decode.arrow.batch_message import MEMORY_POOL, BatchMessage, padded
from tidemark.decode.arrow.column_plans import ColumnPlan
from tidemark.decode.datum import deforming
from tidemark.decode.datum.deforming import DONE, Buffer, Location
from tidemark.decode.types.arrays import ArrayCodec
from tidemark.decode.types.codec import ArrowValue, Codec
from tidemark.model.errors import CorruptWal
from tidemark.model.relation import TypeDescription

NO_STACK = array("q")
# Bytes of values that are copied unchanged.
PLAIN_WIDTHS: Mapping[int, int] = {ColumnKernel.FIXED_16: 2, ColumnKernel.FIXED_32: 4, ColumnKernel.FIXED_64: 8}
NONE_MISSING: Mapping[int, ArrowValue] = {}


class BadCell(Exception):
    """A value that its codec rejects: column, row and reason."""

    def __init__(self, slot: int, row: int, error: CorruptWal) -> None:
        super().__init__(str(error))
        self.slot = slot
        self.row = row


class TooLong(Exception):
    """A column exceeds Arrow's 32-bit offsets: use fewer rows."""


class Located:
    """The locations of the values of some columns in the arena `data`, column by column."""

    __slots__ = ("absent", "data", "locations", "rows", "sizes")

    def __init__(self, data: Buffer, rows: int, slots: int, *, located: bool = True) -> None:
        """Allocate the locations; none if there is nothing to locate."""
        self.data = data
        self.rows = rows
        self.locations = _uninitialized(rows * slots * located)  # NB: not initialized: the caller writes every location
        self.sizes = _uninitialized(rows * slots * located)
        self.absent = zeros(slots)  # number of rows without a value, by column


def zeros(count: int) -> "memoryview[int]":
    """Allocate `count` zeroed 64-bit integers."""
    return memoryview(bytearray(count * 8)).cast("q")


def _uninitialized(count: int) -> "memoryview[int]":
    """Allocate `count` 64-bit integers, not initialized."""
    return memoryview(pa.allocate_buffer(count * 8, MEMORY_POOL)).cast("q")


def put(
    plan: ColumnPlan,
    located: Located,
    message: BatchMessage,
    *,
    nodes: int,
    buffers: int,
    missing: Mapping[int, ArrowValue] = NONE_MISSING,
) -> None:
    """Put columns into a batch; `missing` has the values, by slot, of columns younger than a tuple."""
    numbers = plan.numbers
    if missing:  # NB: such values have no payload that a kernel could read
        numbers = numbers[:]
        for slot in missing:
            numbers[slot * STEP] = ColumnKernel.OTHER
    stack = array("q", bytes(8 * text_columns.STACK_INTEGERS)) if plan.has_jsonb else NO_STACK
    state = array("q", [message.at, 0])
    while True:
        stop = batch_columns.put_columns(
            located.data,
            located.locations,
            located.sizes,
            located.absent,
            located.rows,
            numbers,
            plan.labels,
            stack,
            message.out,
            message.out_16,
            message.out_32,
            message.words,
            message.offsets,
            nodes,
            buffers,
            message.body,
            state,
        )
        message.at, slot = state
        if stop == Stop.DONE:
            return
        if stop == Stop.TOO_LONG:
            raise TooLong
        if stop == Stop.FULL:
            message.grow()
            continue
        node, buffer = nodes + 2 * numbers[slot * STEP + 1], buffers + 2 * numbers[slot * STEP + 2]
        if (
            slot in missing
            or slot not in plan.elements
            or not _put_lists(plan, located, slot, message, node=node, buffer=buffer)
        ):
            message.add(_objects(plan.codecs[slot], located, slot, missing.get(slot)), node, buffer)
        state[0], state[1] = message.at, slot + 1


def _put_lists(plan: ColumnPlan, located: Located, slot: int, message: BatchMessage, *, node: int, buffer: int) -> bool:
    """Put a column of arrays with its elements' kernel; return False, with nothing put, if an array is irregular."""
    codec = plan.codecs[slot]
    assert isinstance(codec, ArrayCodec), codec
    rows, first, begin = located.rows, slot * located.rows, message.at
    nulls = located.absent[slot]
    bitmap_bytes = rows + 7 >> 3 if nulls else 0
    offsets_at = begin + padded(bitmap_bytes)
    end = offsets_at + padded((rows + 1) * 4)
    message.require(end - begin)
    message.out[begin:end] = bytes(end - begin)
    offsets = message.offsets[offsets_at >> 2 : (offsets_at >> 2) + rows + 1]
    total = deforming.measure_arrays(located.data, located.locations, located.sizes, first, rows, offsets)
    if total == DONE:
        return False
    if nulls:
        deforming.present(located.locations, first, rows, message.out[begin:offsets_at])
    message.at = end
    if not _put_elements(
        plan.elements[slot], codec.element, located, first, offsets, message=message, node=node + 2, buffer=buffer + 4
    ):
        message.at = begin
        return False
    batch_body.put_node(message.words, node, rows, nulls)
    batch_body.put_buffer(message.words, buffer, begin - message.body, bitmap_bytes)
    batch_body.put_buffer(message.words, buffer + 2, offsets_at - message.body, (rows + 1) * 4)
    return True


def _put_plain_elements(
    located: Located,
    first: int,
    offsets: "memoryview[int]",
    width: int,
    *,
    message: BatchMessage,
    node: int,
    buffer: int,
) -> bool:
    """Copy elements unchanged from their arrays; return False if one is NULL or irregular."""
    total = offsets[located.rows]
    size = total * width
    end = padded(size)
    message.require(end)
    at = message.at
    out = message.out[at : at + end]
    if (
        deforming.copy_elements(
            located.data, located.locations, located.sizes, first, located.rows, width, offsets, out
        )
        != DONE
    ):
        return False
    out[size:] = bytes(end - size)
    batch_body.put_node(message.words, node, total, 0)
    batch_body.put_buffer(message.words, buffer, at - message.body, 0)
    batch_body.put_buffer(message.words, buffer + 2, at - message.body, size)
    message.at += end
    return True


def _put_elements(
    plan: ColumnPlan,
    element: TypeDescription,
    located: Located,
    first: int,
    offsets: "memoryview[int]",
    *,
    message: BatchMessage,
    node: int,
    buffer: int,
) -> bool:
    """Put elements with their kernel; return False if one is irregular."""
    width = PLAIN_WIDTHS.get(plan.numbers[0])
    if width is not None and _put_plain_elements(
        located, first, offsets, width, message=message, node=node, buffer=buffer
    ):
        return True
    elements = Located(located.data, offsets[located.rows], 1)
    odd = deforming.locate_elements(
        located.data,
        located.locations,
        located.sizes,
        first,
        located.rows,
        element.length,
        element.align.width,
        offsets,
        elements.locations,
        elements.sizes,
    ) != DONE or deforming.next_compressed(elements.locations, elements.sizes, 0) != DONE  # fmt: skip
    if odd:
        return False
    elements.absent[0] = batch_body.survey(elements.locations, elements.sizes, zeros(1))
    try:
        put(plan, elements, message, nodes=node, buffers=buffer)
    except BadCell:  # NB: the error names an element; converting the whole array names the row
        return False
    return True


def _objects(codec: Codec, located: Located, slot: int, missing: ArrowValue) -> pa.Array:
    """Build a column value by value; `missing` is the value where the tuple is older than the column."""
    values: list[ArrowValue] = []
    for row in range(located.rows):
        cell = slot * located.rows + row
        location = located.locations[cell]
        if location >= 0:
            payload = bytes(located.data[location : location + located.sizes[cell]])
            try:
                values.append(codec.arrow_value(payload))
            except CorruptWal as error:
                raise BadCell(slot, row, error) from error
        else:
            values.append(missing if location == Location.MISSING else None)
    made = pa.array(values, codec.arrow_type)
    if isinstance(made, pa.ChunkedArray):  # NB: pyarrow returns chunks if one array cannot hold the values
        raise TooLong
    return made
