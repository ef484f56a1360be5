"""Rows of a first copy: lines of COPY ... TO STDOUT, in text format and UTF-8, to batches that equal the stream's.

The lines are taken apart by the loops of `tidemark.decode.copy_fields`, which also read most numbers and instants. The
settings of the copying session must be the reference session's (`codecs.codec`).
"""

from array import array
from importlib import import_module

import numpy as np
import pyarrow as pa

from tidemark.decode.codecs.codec import Codec, ColumnKind, Dialect, TextCodec
from tidemark.decode.codecs.registry import UTF8, arrow_struct, column_codec
from tidemark.decode.column_values import zeros
from tidemark.decode.copy_fields import (
    ALL_FIT,
    DIGITS_MAX,
    fill_instants,
    fill_numbers,
    fill_texts,
    find_fields,
    find_nulls,
)
from tidemark.decode.varlena import BadDatum
from tidemark.model.change import BeforeKind, ChangeBatch, Op, batch_schema
from tidemark.model.lsn import Oid
from tidemark.model.position import Position
from tidemark.model.relation import Relation

DELIMITER = b"\t"
TRUE = "t"
LIMIT_MAX = 10**DIGITS_MAX  # of a number that a loop reads
# What Arrow reads from PostgreSQL's text as we would; what it refuses (infinity, BC, NaN) takes the codec's way.
CAST_BY_ARROW = frozenset(
    {ColumnKind.DATE, ColumnKind.FIXED, ColumnKind.NUMERIC, ColumnKind.TIMESTAMP, ColumnKind.UNSIGNED4}
)


class Misshapen(Exception):
    """A line that has another number of fields: which row."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


class CopiedLines:
    """So many lines of COPY's text format, taken apart; raises `Misshapen` for one of another number of fields."""

    def __init__(self, lines: bytes, rows: int, columns: int) -> None:
        self.rows = rows
        self._lines = lines
        self._columns = columns
        self._ends = zeros(self.rows * columns)
        self._sizes = zeros(columns)
        self._escapes = bytearray(columns)
        misfit = find_fields(lines, columns, self._ends, self._sizes, self._escapes)
        if misfit != ALL_FIT:
            raise Misshapen(misfit)

    def texts(self, column: int) -> pa.Array:
        """Return the fields of a column: text, NULL where a field is. Bytes that are no UTF-8 stay as they are."""
        offsets, out = array("i", [0]) * (self.rows + 1), pa.allocate_buffer(self._sizes[column])
        room = memoryview(out).cast("B")
        size = fill_texts(self._lines, *self._place(column), self._escapes[column], offsets, room)
        nulls, validity = self._validity(column)
        return pa.Array.from_buffers(pa.string(), self.rows, [validity, pa.py_buffer(offsets), out[:size]], nulls)

    def numbers(self, column: int, codec: Codec) -> pa.Array | None:
        """Return the column as integers or decimals; None where there is anything that needs a closer look."""
        wanted = codec.arrow_type
        if pa.types.is_decimal128(wanted):
            scale, limit, words, form = wanted.scale, 10 ** min(wanted.precision, DIGITS_MAX), 2, wanted
        else:
            scale, limit, words, form = 0, 1 << wanted.bit_width - 1, 1, pa.int64()
        out = zeros(self.rows * words)
        if fill_numbers(self._lines, *self._place(column), scale, min(limit, LIMIT_MAX), words, out) != ALL_FIT:
            return None
        return self._array(column, out, form).cast(wanted)

    def instants(self, column: int, codec: Codec) -> pa.Array | None:
        """Return the column as instants; None where there is anything that needs a closer look."""
        out = zeros(self.rows)
        has_zone = codec.arrow_type.tz is not None
        if fill_instants(self._lines, *self._place(column), has_zone, out) != ALL_FIT:
            return None
        return self._array(column, out, codec.arrow_type)

    def _place(self, column: int) -> tuple["memoryview[int]", int, int, int]:
        return self._ends, self._columns, column, self.rows

    def _array(self, column: int, values: "memoryview[int]", form: pa.DataType) -> pa.Array:
        nulls, validity = self._validity(column)
        return pa.Array.from_buffers(form, self.rows, [validity, pa.py_buffer(values)], nulls)

    def _validity(self, column: int) -> tuple[int, pa.Buffer | None]:
        if not self._escapes[column]:
            return 0, None
        valid = bytearray(self.rows + 7 >> 3)
        return find_nulls(self._lines, *self._place(column), valid), pa.py_buffer(valid)


def read_column(codec: Codec, lines: CopiedLines, column: int) -> pa.Array:
    """Return the Arrow column of a relation's column."""
    made = None
    if codec.kind is ColumnKind.TIMESTAMP:
        made = lines.instants(column, codec)
    elif codec.kind in CAST_BY_ARROW and _is_number(codec.arrow_type):
        made = lines.numbers(column, codec)
    return parse_column(codec, lines.texts(column)) if made is None else made


def _is_number(wanted: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(wanted) or pa.types.is_signed_integer(wanted))


def parse_column(codec: Codec, texts: pa.Array) -> pa.Array:
    """Return the Arrow column of values that are given by their texts."""
    try:
        texts.validate(full=True)
        made = _parse_whole(codec, texts)
    except pa.ArrowInvalid:
        made = None  # what Arrow reads otherwise than PostgreSQL, or text that is no UTF-8
    if made is not None:
        return made
    fields = texts.view(pa.binary()).to_pylist()
    values = [None if field is None else codec.parse_text(field.decode("utf-8", "surrogateescape")) for field in fields]
    return pa.array(values, codec.arrow_type)


def _parse_whole(codec: Codec, texts: pa.Array) -> pa.Array | None:
    """Return the column without an object a value; None where that cannot be."""
    if codec.kind in CAST_BY_ARROW:
        return texts.cast(codec.arrow_type)
    if codec.kind is ColumnKind.BOOL:
        return import_module("pyarrow.compute").equal(texts, TRUE)
    if isinstance(codec, TextCodec) and type(codec).parse_text is TextCodec.parse_text:
        return texts  # it is sound UTF-8: there is nothing to replace
    return None


class CopyBatchBuilder:
    """Builds the batches of one relation's first copy."""

    def __init__(self, database: Oid, relation: Relation, dialect: Dialect = UTF8) -> None:
        self._database = database
        self._relation = relation
        self._codecs = [column_codec(column, dialect) for column in relation.live_columns]
        self._struct_type: pa.StructType = arrow_struct(relation.live_columns, dialect)
        self._schema: pa.Schema = batch_schema(self._struct_type)

    def build(self, lines: bytes, count: int, first: Position, time_us: int) -> ChangeBatch:
        """Return the `count` rows of `lines`, which hold the live columns in order, at positions from `first` on."""
        children = self._columns(lines, count, first)
        meta = [
            pa.repeat(pa.scalar(Op.COPY.value, pa.string()), count),
            _constant(first.timeline, count, pa.int32()),
            _constant(first.commit_lsn, count, pa.int64()),
            pa.array(np.arange(first.ordinal, first.ordinal + count, dtype=np.int64)),
            _constant(first.commit_lsn, count, pa.int64()),
            _constant(0, count, pa.int64()),
            _constant(time_us, count, pa.timestamp("us", tz="UTC")),
            _constant(0, count, pa.int32()),
            _constant(BeforeKind.NONE, count, pa.int8()),
            pa.nulls(count, pa.binary()),
            pa.nulls(count, self._struct_type),
            pa.Array.from_buffers(self._struct_type, count, [None], null_count=0, children=children),
        ]
        return ChangeBatch(self._database, self._relation, pa.RecordBatch.from_arrays(meta, schema=self._schema))

    def _columns(self, lines: bytes, count: int, first: Position) -> list[pa.Array]:
        """Return the rows' columns; name the row that has too many or too few."""
        if not self._codecs:
            return []
        try:
            taken = CopiedLines(lines, count, len(self._codecs))
        except Misshapen as error:
            fields = lines.split(b"\n")[error.row].count(DELIMITER) + 1
            raise BadDatum(
                f"{self._relation.qualified_name}: copied row {first.ordinal + error.row} has {fields} fields, "
                f"not {len(self._codecs)}",
                hint="the table changed while it was copied: copy it again",
            ) from None
        return [read_column(codec, taken, column) for column, codec in enumerate(self._codecs)]


def _constant(value: int, count: int, arrow_type: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(int(value), arrow_type), count)
