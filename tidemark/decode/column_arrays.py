"""One column of located values to one Arrow array: by a kernel where the codec names one, value by value otherwise."""

from array import array
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode import columns
from tidemark.decode.codecs.calendar import EPOCH_2000_DAYS, USECS_PER_DAY
from tidemark.decode.codecs.codec import ArrowValue, Codec, ColumnKind
from tidemark.decode.codecs.datetimes import FIRST_DAY, FIRST_INSTANT, LAST_DAY, LAST_INSTANT
from tidemark.decode.codecs.numeric import DecimalCodec
from tidemark.decode.codecs.strings import EnumCodec
from tidemark.decode.columns import DONE, Buffer, Place
from tidemark.decode.varlena import BadDatum
from tidemark.model.errors import InternalError

HEX_DIGITS = b"0123456789abcdef"
EPOCH_2000_USECS = EPOCH_2000_DAYS * USECS_PER_DAY
UUID_TEXT_BYTES = 36
# Bounds before the epoch is added, sign bit flipped: as the clamping kernels want them.
DAY_BOUNDS = (FIRST_DAY - EPOCH_2000_DAYS + (1 << 31), LAST_DAY - EPOCH_2000_DAYS + (1 << 31))
INSTANT_BOUNDS = (FIRST_INSTANT - EPOCH_2000_USECS + (1 << 63), LAST_INSTANT - EPOCH_2000_USECS + (1 << 63))


class BadCell(Exception):
    """A value that its codec refuses: which row, and why."""

    def __init__(self, row: int, error: BadDatum) -> None:
        super().__init__(str(error))
        self.row = row


class Cells:
    """The located values of one column: cells `first` to `first + rows` of the places, in the arena `data`."""

    __slots__ = ("data", "first", "places", "rows", "sizes")

    def __init__(self, data: Buffer, places: "array[int]", sizes: "array[int]", first: int, rows: int) -> None:
        self.data = data
        self.places = places
        self.sizes = sizes
        self.first = first
        self.rows = rows

    def any_missing(self) -> bool:
        """Tell if a tuple is older than the column."""
        return columns.fill_missing(self.places, self.sizes, self.first, self.rows, Place.MISSING, 0) > 0

    def validity(self) -> tuple[bytearray, int]:
        """Return the bitmap of rows that have a value, and how many have none."""
        bitmap = bytearray(self.rows + 7 >> 3)
        return bitmap, columns.present(self.places, self.first, self.rows, bitmap)


def zeros(code: str, count: int) -> "array[int]":
    """Return `count` zeros of the array type `code`."""
    made: array[int] = array(code)
    made.frombytes(bytes(made.itemsize * count))
    return made


def _finish(
    cells: Cells, arrow_type: pa.DataType, *buffers: "array[int] | bytearray", bitmap: bytearray | None = None
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
    code, kernel = {16: ("H", columns.build_16), 32: ("I", columns.build_32), 64: ("Q", columns.build_64)}[
        codec.arrow_type.bit_width
    ]
    out = zeros(code, cells.rows)
    kernel(cells.data, cells.places, cells.first, cells.rows, out)
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
        raise InternalError(f"a column of {cells.rows} rows is longer than Arrow's offsets reach")
    out = bytearray(total)
    columns.copy_bytes(cells.data, cells.places, cells.sizes, cells.first, cells.rows, offsets, out)
    return _finish(cells, codec.arrow_type, offsets, out)


def _texts(codec: Codec, cells: Cells) -> pa.Array:
    made = _bytes(codec, cells)
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
    oids = _finish(cells, pa.uint32(), out)
    indices = pc.index_in(oids, value_set=pa.array(codec.labels.keys(), pa.uint32()))
    if indices.null_count != oids.null_count:  # a label that the catalog does not know
        return objects(codec, cells, None)
    return pa.array(codec.labels.values(), pa.string()).take(indices)


def objects(codec: Codec, cells: Cells, missing: ArrowValue) -> pa.Array:
    """Build the column value by value; `missing` stands where the tuple is older than the column."""
    values: list[ArrowValue] = []
    for row in range(cells.rows):
        place = cells.places[cells.first + row]
        if place >= 0:
            payload = bytes(cells.data[place : place + cells.sizes[cells.first + row]])
            try:
                values.append(codec.arrow_value(payload))
            except BadDatum as error:
                raise BadCell(row, error) from error
        else:
            values.append(missing if place == Place.MISSING else None)
    return pa.array(values, codec.arrow_type)


KERNELS: dict[ColumnKind, Callable[[Codec, Cells], pa.Array]] = {
    ColumnKind.BOOL: _bools,
    ColumnKind.BYTES: _bytes,
    ColumnKind.DATE: _dates,
    ColumnKind.ENUM: _enums,
    ColumnKind.FIXED: _fixed,
    ColumnKind.NUMERIC: _decimals,
    ColumnKind.TEXT: _texts,
    ColumnKind.TIMESTAMP: _timestamps,
    ColumnKind.UNSIGNED4: _unsigned,
    ColumnKind.UUID: _uuids,
}
