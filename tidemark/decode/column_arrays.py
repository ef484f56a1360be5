"""One column of located values to one Arrow array: by a kernel where the codec names one, value by value otherwise."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa

from tidemark.decode import columns, places, text_columns
from tidemark.decode.codecs.arrays import ArrayCodec
from tidemark.decode.codecs.calendar import EPOCH_2000_DAYS, USECS_PER_DAY
from tidemark.decode.codecs.codec import ArrowValue, Codec, ColumnKind, without_escapes
from tidemark.decode.codecs.datetimes import FIRST_DAY, FIRST_INSTANT, LAST_DAY, LAST_INSTANT
from tidemark.decode.codecs.numeric import DecimalCodec
from tidemark.decode.codecs.strings import EnumCodec
from tidemark.decode.places import DONE, Buffer, Place
from tidemark.model.errors import CorruptWal

ITEM_BYTES = {"H": 2, "i": 4, "I": 4, "q": 8, "Q": 8}
HEX_DIGITS = b"0123456789abcdef"
EPOCH_2000_USECS = EPOCH_2000_DAYS * USECS_PER_DAY
UUID_TEXT_BYTES = 36
TEXT_BYTES_MAX = (1 << 31) - 1  # a column's, by its 32-bit offsets
TEXT_GUESS_BYTES = 64  # a row, before it is known
# Bounds before the epoch is added, sign bit flipped: as the clamping kernels want them.
DAY_BOUNDS = (FIRST_DAY - EPOCH_2000_DAYS + (1 << 31), LAST_DAY - EPOCH_2000_DAYS + (1 << 31))
INSTANT_BOUNDS = (FIRST_INSTANT - EPOCH_2000_USECS + (1 << 63), LAST_INSTANT - EPOCH_2000_USECS + (1 << 63))


class BadCell(Exception):
    """A value that its codec refuses: which row, and why."""

    def __init__(self, row: int, error: CorruptWal) -> None:
        super().__init__(str(error))
        self.row = row


class TooLong(Exception):
    """A column of more bytes than Arrow's 32-bit offsets reach: fewer rows would do."""


class Cells:
    """The located values of one column: cells `first` to `first + rows` of the places, in the arena `data`."""

    __slots__ = ("absent", "data", "first", "places", "rows", "sizes")

    def __init__(
        self,
        data: Buffer,
        places: "memoryview[int]",
        sizes: "memoryview[int]",
        first: int,
        rows: int,
        *,
        absent: int | None = None,
    ) -> None:
        """`absent`: how many rows have no value, where that is known."""
        self.data = data
        self.places = places
        self.sizes = sizes
        self.first = first
        self.rows = rows
        self.absent = absent

    def any_missing(self) -> bool:
        """Tell if a tuple is older than the column."""
        return places.fill_missing(self.places, self.sizes, self.first, self.rows, Place.MISSING, 0) > 0

    def validity(self) -> tuple[bytearray, int]:
        """Return the bitmap of rows that have a value, and how many have none."""
        if self.absent == 0:
            return bytearray(b"\xff") * (self.rows + 7 >> 3), 0
        bitmap = bytearray(self.rows + 7 >> 3)
        return bitmap, places.present(self.places, self.first, self.rows, bitmap)


def zeros(code: Literal["H", "i", "I", "q", "Q"], count: int) -> "memoryview[int]":
    """Return room for `count` integers of the array type `code`, all zero."""
    return memoryview(bytearray(count * ITEM_BYTES[code])).cast(code)


def _finish(
    cells: Cells, arrow_type: pa.DataType, *buffers: "memoryview[int] | bytearray", bitmap: bytearray | None = None
) -> pa.Array:
    """Return the array over `buffers`; `bitmap` if a kernel took bits out of it."""
    nulls = -1
    if bitmap is None:
        bitmap, nulls = cells.validity()
    valid = pa.py_buffer(bitmap) if nulls else None
    return pa.Array.from_buffers(
        arrow_type, cells.rows, [valid, *(pa.py_buffer(buffer) for buffer in buffers)], null_count=nulls
    )


def _bools(codec: Codec, cells: Cells) -> pa.Array:
    bits = bytearray(cells.rows + 7 >> 3)
    columns.build_bool(cells.data, cells.places, cells.first, cells.rows, bits)
    return _finish(cells, codec.arrow_type, bits)


def _fixed(codec: Codec, cells: Cells) -> pa.Array:
    out: memoryview[int]
    match codec.arrow_type.bit_width:
        case 16:
            out = zeros("H", cells.rows)
            columns.build_16(cells.data, cells.places, cells.first, cells.rows, out)
        case 32:
            out = zeros("I", cells.rows)
            columns.build_32(cells.data, cells.places, cells.first, cells.rows, out)
        case _:
            out = zeros("Q", cells.rows)
            columns.build_64(cells.data, cells.places, cells.first, cells.rows, out)
    return _finish(cells, codec.arrow_type, out)


def _unsigned(codec: Codec, cells: Cells) -> pa.Array:
    out = zeros("Q", cells.rows)
    columns.build_widened(cells.data, cells.places, cells.first, cells.rows, out)
    return _finish(cells, codec.arrow_type, out)


def _dates(codec: Codec, cells: Cells) -> pa.Array:
    out = zeros("I", cells.rows)
    columns.build_clamped_32(cells.data, cells.places, cells.first, cells.rows, *DAY_BOUNDS, EPOCH_2000_DAYS, out)
    return _finish(cells, codec.arrow_type, out)


def _timestamps(codec: Codec, cells: Cells) -> pa.Array:
    out = zeros("Q", cells.rows)
    columns.build_clamped_64(cells.data, cells.places, cells.first, cells.rows, *INSTANT_BOUNDS, EPOCH_2000_USECS, out)
    return _finish(cells, codec.arrow_type, out)


def _bytes(codec: Codec, cells: Cells) -> pa.Array:
    offsets = zeros("i", cells.rows + 1)
    total = columns.measure(cells.places, cells.sizes, cells.first, cells.rows, offsets)
    if total == DONE:
        raise TooLong
    out = bytearray(total)
    columns.copy_bytes(cells.data, cells.places, cells.sizes, cells.first, cells.rows, offsets, out)
    return _finish(cells, codec.arrow_type, offsets, out)


def _texts(codec: Codec, cells: Cells) -> pa.Array:
    return _valid_text(_bytes(codec, cells), codec, cells)


def _valid_text(made: pa.Array, codec: Codec, cells: Cells) -> pa.Array:
    """Return `made` if it is UTF-8; else have the codec put U+FFFD in place of what is not."""
    try:
        made.validate(full=True)
    except pa.ArrowInvalid:  # NB: not UTF-8, although the database says so
        return objects(codec, cells, None)
    return made


def _uuids(codec: Codec, cells: Cells) -> pa.Array:
    offsets = zeros("i", cells.rows + 1)
    out = bytearray(cells.rows * UUID_TEXT_BYTES)
    odd = columns.build_uuid(cells.data, cells.places, cells.sizes, cells.first, cells.rows, HEX_DIGITS, offsets, out)
    if odd != DONE:
        return objects(codec, cells, None)
    return _finish(cells, codec.arrow_type, offsets, out)


def _decimals(codec: Codec, cells: Cells) -> pa.Array:
    assert isinstance(codec, DecimalCodec), codec
    out = zeros("Q", cells.rows * 2)
    bitmap, _ = cells.validity()
    odd = columns.build_decimal(
        cells.data,
        cells.places,
        cells.sizes,
        cells.first,
        cells.rows,
        codec.precision,
        codec.scale,
        out,
        bitmap,
    )
    if odd != DONE:
        return objects(codec, cells, None)
    return _finish(cells, codec.arrow_type, out, bitmap=bitmap)


def _enums(codec: Codec, cells: Cells) -> pa.Array:
    assert isinstance(codec, EnumCodec), codec
    out = zeros("I", cells.rows)
    columns.build_32(cells.data, cells.places, cells.first, cells.rows, out)
    bitmap, nulls = cells.validity()
    if not codec.labels:
        return objects(codec, cells, None)
    known, oids = np.array(sorted(codec.labels), np.uint32), np.asarray(out, np.uint32)
    numbers = np.minimum(np.searchsorted(known, oids), len(known) - 1).astype(np.int32)
    if np.count_nonzero(known[numbers] != oids) != nulls:  # a label that the catalog does not know
        return objects(codec, cells, None)
    valid = pa.py_buffer(bitmap) if nulls else None
    indices = pa.Array.from_buffers(pa.int32(), cells.rows, [valid, pa.py_buffer(numbers)], null_count=nulls)
    labels = [without_escapes(codec.labels[oid]) for oid in sorted(codec.labels)]
    return pa.array(labels, pa.string()).take(indices)


def _grown(
    cells: Cells, write: Callable[["memoryview[int]", bytearray, int], int]
) -> "tuple[memoryview[int], bytearray] | None":
    """Return offsets and text; the text gets longer until all rows fit. None if a value is odd."""
    offsets = zeros("i", cells.rows + 1)
    out = bytearray(cells.rows * TEXT_GUESS_BYTES)
    row = 0
    while (row := write(offsets, out, row)) >= 0:
        if len(out) >= TEXT_BYTES_MAX:
            raise TooLong
        out.extend(bytes(min(len(out) + TEXT_GUESS_BYTES, TEXT_BYTES_MAX - len(out))))
    return (offsets, out) if row == text_columns.DONE else None


def _numeric_texts(codec: Codec, cells: Cells) -> pa.Array:
    def write(offsets: "memoryview[int]", out: bytearray, row: int) -> int:
        return text_columns.build_numeric_text(
            cells.data, cells.places, cells.sizes, cells.first, row, cells.rows, offsets, out
        )

    written = _grown(cells, write)
    return _finish(cells, codec.arrow_type, *written) if written else objects(codec, cells, None)


def _jsonb(codec: Codec, cells: Cells) -> pa.Array:
    stack = zeros("q", text_columns.STACK_INTEGERS)

    def write(offsets: "memoryview[int]", out: bytearray, row: int) -> int:
        return text_columns.build_jsonb_text(
            cells.data, cells.places, cells.sizes, cells.first, row, cells.rows, offsets, out, stack
        )

    written = _grown(cells, write)
    return (
        _valid_text(_finish(cells, codec.arrow_type, *written), codec, cells)
        if written
        else objects(codec, cells, None)
    )


def _arrays(codec: Codec, cells: Cells) -> pa.Array:
    assert isinstance(codec, ArrayCodec), codec
    offsets = zeros("i", cells.rows + 1)
    total = places.measure_arrays(cells.data, cells.places, cells.sizes, cells.first, cells.rows, offsets)
    elements = Cells(cells.data, zeros("q", max(total, 0)), zeros("q", max(total, 0)), 0, max(total, 0))
    odd = total == DONE or places.locate_elements(
        cells.data,
        cells.places,
        cells.sizes,
        cells.first,
        cells.rows,
        codec.element.length,
        codec.element.align.width,
        offsets,
        elements.places,
        elements.sizes,
    ) != DONE or places.next_compressed(elements.places, elements.sizes, 0) != DONE  # fmt: skip
    if odd:
        return objects(codec, cells, None)
    try:
        child = build(codec.element_codec, elements)
    except BadCell:  # NB: it names an element; the whole array's way names the row
        return objects(codec, cells, None)
    bitmap, nulls = cells.validity()
    return pa.Array.from_buffers(
        codec.arrow_type,
        cells.rows,
        [pa.py_buffer(bitmap) if nulls else None, pa.py_buffer(offsets)],
        null_count=nulls,
        children=[child],
    )


def build(codec: Codec, cells: Cells) -> pa.Array:
    """Build a column whose values are all in the arena or NULL."""
    kernel = KERNELS.get(codec.kind)
    return kernel(codec, cells) if kernel else objects(codec, cells, None)


def objects(codec: Codec, cells: Cells, missing: ArrowValue) -> pa.Array:
    """Build the column value by value; `missing` stands where the tuple is older than the column."""
    values: list[ArrowValue] = []
    for row in range(cells.rows):
        place = cells.places[cells.first + row]
        if place >= 0:
            payload = bytes(cells.data[place : place + cells.sizes[cells.first + row]])
            try:
                values.append(codec.arrow_value(payload))
            except CorruptWal as error:
                raise BadCell(row, error) from error
        else:
            values.append(missing if place == Place.MISSING else None)
    made = pa.array(values, codec.arrow_type)
    if isinstance(made, pa.ChunkedArray):  # NB: what pyarrow makes of more than one array can hold
        raise TooLong
    return made


KERNELS: dict[ColumnKind, Callable[[Codec, Cells], pa.Array]] = {
    ColumnKind.ARRAY: _arrays,
    ColumnKind.BOOL: _bools,
    ColumnKind.BYTES: _bytes,
    ColumnKind.DATE: _dates,
    ColumnKind.ENUM: _enums,
    ColumnKind.FIXED: _fixed,
    ColumnKind.JSONB: _jsonb,
    ColumnKind.NUMERIC: _decimals,
    ColumnKind.NUMERIC_TEXT: _numeric_texts,
    ColumnKind.TEXT: _texts,
    ColumnKind.TIMESTAMP: _timestamps,
    ColumnKind.UNSIGNED4: _unsigned,
    ColumnKind.UUID: _uuids,
}
