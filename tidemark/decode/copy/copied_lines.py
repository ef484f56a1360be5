"""Splits lines of COPY ... TO STDOUT, in text format and UTF-8, and puts their fields into a record batch.

The loops of `copy_fields` find the fields, and write text and most numbers and instants directly into the batch.
Other values are converted by the type's codec, value by value, or by Arrow's casts.
"""

from array import array
from importlib import import_module
from typing import NamedTuple

import pyarrow as pa

from tidemark.decode.arrow.batch_body import put_buffer, put_node
from tidemark.decode.arrow.batch_message import BatchMessage, padded
from tidemark.decode.arrow.column_values import zeros
from tidemark.decode.copy.copy_fields import (
    ALL_FIT,
    DIGITS_MAX,
    fill_instants,
    fill_numbers,
    fill_texts,
    find_fields,
    find_nulls,
)
from tidemark.decode.types.codec import Codec, ColumnKind, TextCodec

TRUE = "t"
LIMIT_MAX = 10**DIGITS_MAX  # bound of a number that a loop reads
NO_WORDS, NO_HALVES = array("q"), array("i")
# Types whose text Arrow reads as PostgreSQL writes it; the codec converts what Arrow rejects (infinity, BC, NaN).
CAST_BY_ARROW = frozenset(
    {ColumnKind.DATE, ColumnKind.FIXED, ColumnKind.NUMERIC, ColumnKind.TIMESTAMP, ColumnKind.UNSIGNED4}
)


class WrongFieldCount(Exception):
    """A line with another number of fields: which row."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


class ColumnTarget(NamedTuple):
    """The target of a column: a batch, and the column's first node and buffer in it."""

    message: BatchMessage
    node: int
    buffer: int


class CopiedLines:
    """Lines of COPY's text format, split into fields; raises `WrongFieldCount` if a line has another number of them."""

    def __init__(
        self, lines: bytes | bytearray, rows: int, columns: int, ends: "memoryview[int] | None" = None
    ) -> None:
        """Split the lines; `ends` has space for one number for each field and is overwritten."""
        self.rows = rows
        self._lines = lines
        self._columns = columns
        self._ends = zeros(rows * columns) if ends is None else ends[: rows * columns]
        self._sizes = zeros(columns)
        self._escapes = bytearray(columns)
        wrong_line = find_fields(lines, columns, self._ends, self._sizes, self._escapes)
        if wrong_line != ALL_FIT:
            raise WrongFieldCount(wrong_line)

    @property
    def text_bytes(self) -> int:
        """The bytes of all fields of all columns."""
        return sum(self._sizes)

    def texts(self, column: int) -> pa.Array:
        """Return the fields of a column as text with NULLs. Invalid UTF-8 is left unchanged."""
        offsets, out = array("i", [0]) * (self.rows + 1), pa.allocate_buffer(self._sizes[column])
        size = self._fill_texts(column, memoryview(offsets), memoryview(out).cast("B"))
        valid = bytearray(self.rows + 7 >> 3)
        nulls = find_nulls(self._lines, *self._fields_of(column), valid)
        buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets), out[:size]]
        return pa.Array.from_buffers(pa.string(), self.rows, buffers, nulls)

    def put_texts(self, column: int, target: ColumnTarget) -> bool:
        """Put the fields of a column into a batch; return False, with nothing put, if they are not valid UTF-8."""
        message, _, buffer = target
        message.require(padded((self.rows + 1) * 4) + self._sizes[column] + 8 + self._null_bytes(column))
        self._put_nulls(column, target)
        begin = message.at
        start = begin + padded((self.rows + 1) * 4)
        offsets = message.out[begin:start].cast("i")
        offsets[0] = offsets[len(offsets) - 1] = 0
        size = self._fill_texts(column, offsets, message.out[start : start + self._sizes[column]])
        stored = [None, pa.py_buffer(message.out[begin:start]), pa.py_buffer(message.out[start : start + size])]
        try:
            pa.Array.from_buffers(pa.string(), self.rows, stored, 0).validate(full=True)
        except pa.ArrowInvalid:
            return False
        put_buffer(message.words, buffer + 2, begin - message.body, (self.rows + 1) * 4)
        put_buffer(message.words, buffer + 4, start - message.body, size)
        message.at = start + padded(size)
        message.out[start + size : message.at] = bytes(message.at - start - size)
        return True

    def put_numbers(self, column: int, wanted: pa.DataType, target: ColumnTarget) -> bool:
        """Put the column as integers or decimals; return False if a field needs the codec."""
        scale, limit = 0, 1 << wanted.bit_width - 1
        if pa.types.is_decimal128(wanted):
            scale, limit = wanted.scale, 10 ** min(wanted.precision, DIGITS_MAX)
        out = self._output(column, wanted.bit_width // 8, target)
        whole, halves = (out.cast("q"), NO_HALVES) if wanted.bit_width >= 64 else (NO_WORDS, out.cast("i"))
        fields, words = self._fields_of(column), wanted.bit_width // 64
        return fill_numbers(self._lines, *fields, scale, min(limit, LIMIT_MAX), words, whole, halves) == ALL_FIT

    def put_instants(self, column: int, wanted: pa.DataType, target: ColumnTarget) -> bool:
        """Put the column as instants; return False if a field needs the codec."""
        out = self._output(column, 8, target).cast("q")
        return fill_instants(self._lines, *self._fields_of(column), wanted.tz is not None, out) == ALL_FIT

    def _fields_of(self, column: int) -> tuple["memoryview[int]", int, int, int]:
        return self._ends, self._columns, column, self.rows

    def _fill_texts(self, column: int, offsets: "memoryview[int]", out: "memoryview[int]") -> int:
        return fill_texts(self._lines, *self._fields_of(column), self._escapes[column], offsets, out)

    def _output(self, column: int, width: int, target: ColumnTarget) -> "memoryview[int]":
        """Put the validity bitmap; return the buffer after it, with the given bytes for each row."""
        message, _, buffer = target
        size = self.rows * width
        message.require(size + 8 + self._null_bytes(column))
        self._put_nulls(column, target)
        begin, message.at = message.at, message.at + padded(size)
        put_buffer(message.words, buffer + 2, begin - message.body, size)
        message.out[begin + size : message.at] = bytes(message.at - begin - size)
        return message.out[begin : message.at]

    def _null_bytes(self, column: int) -> int:
        return padded(self.rows + 7 >> 3) if self._escapes[column] else 0

    def _put_nulls(self, column: int, target: ColumnTarget) -> None:
        message, node, buffer = target
        size, begin, nulls = self._null_bytes(column), message.at, 0
        message.at += size
        if size:
            valid = message.out[begin : message.at]
            valid[:] = bytes(size)
            nulls = find_nulls(self._lines, *self._fields_of(column), valid)
        put_node(message.words, node, self.rows, nulls)
        put_buffer(message.words, buffer, begin - message.body, size)


def put_column(codec: Codec, lines: CopiedLines, column: int, target: ColumnTarget) -> None:
    """Put the Arrow column of a relation's column into a batch."""
    message, wanted = target.message, codec.arrow_type
    begin = message.at
    if codec.kind is ColumnKind.TIMESTAMP:
        is_put = lines.put_instants(column, wanted, target)
    elif codec.kind in CAST_BY_ARROW and _is_number(wanted):
        is_put = lines.put_numbers(column, wanted, target)
    else:
        is_put = _is_text(codec) and lines.put_texts(column, target)
    if not is_put:
        message.at = begin
        message.add(parse_column(codec, lines.texts(column)), target.node, target.buffer)


def _is_number(wanted: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(wanted) or pa.types.is_int32(wanted) or pa.types.is_int64(wanted))


def _is_text(codec: Codec) -> bool:
    """Return whether the column's value is its field, unchanged if it is valid UTF-8."""
    return isinstance(codec, TextCodec) and type(codec).parse_text is TextCodec.parse_text


def parse_column(codec: Codec, texts: pa.Array) -> pa.Array:
    """Return the Arrow column of values that are given as texts."""
    try:
        texts.validate(full=True)
        made = _parse_whole(codec, texts)
    except pa.ArrowInvalid:
        made = None  # Arrow reads it differently from PostgreSQL, or it is not valid UTF-8
    if made is not None:
        return made
    fields = texts.view(pa.binary()).to_pylist()
    values = [None if field is None else codec.parse_text(field.decode("utf-8", "surrogateescape")) for field in fields]
    return pa.array(values, codec.arrow_type)


def _parse_whole(codec: Codec, texts: pa.Array) -> pa.Array | None:
    """Return the column without creating an object for each value; None where that is not possible."""
    if codec.kind in CAST_BY_ARROW:
        return texts.cast(codec.arrow_type)
    if codec.kind is ColumnKind.BOOL:
        return import_module("pyarrow.compute").equal(texts, TRUE)
    return texts if _is_text(codec) else None
