"""Columns of datums as test_decoding prints them: label and literal, by a kernel for the common types.

The rules depend on the column's declared type: a domain over int4 is quoted. Codecs print all other types value by
value.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.decode.arrow.located_tuples import Side, TupleLocator
from tidemark.decode.datum.deforming import IntView, Location
from tidemark.decode.render import datum_text
from tidemark.decode.render.column_texts import ColumnTexts
from tidemark.decode.render.datum_text import ODD, TextForm
from tidemark.decode.render.json_columns import powers
from tidemark.decode.transactions.object_names import NamesThen
from tidemark.decode.types.codec import Codec, ColumnKind, Dialect
from tidemark.decode.types.families.datetimes import DateCodec, TimestampCodec
from tidemark.decode.types.families.numbers import BoolCodec, FloatCodec, IntegerCodec
from tidemark.decode.types.families.numeric import DecimalCodec, NumericCodec
from tidemark.decode.types.families.strings import ByteaCodec, StringCodec, UuidCodec
from tidemark.decode.types.identifiers import quote_identifier
from tidemark.decode.types.registry import column_codec, prints_names
from tidemark.model.errors import CorruptWal, InternalError
from tidemark.model.lsn import Lsn
from tidemark.model.relation import Column

MEMO_MAX = 4096  # values of a column whose texts are cached: enums, dates and similar values recur
MEMO_BYTES = 64  # longer values seldom recur
_UNQUOTED_TYPES = frozenset({20, 21, 23, 26, 700, 701, 1700})  # int8, int2, int4, oid, float4, float8, numeric
_BIT_TYPES = frozenset({1560, 1562})  # bit, varbit
_BOOL = 16
# NB: compares the class itself: derived codecs print differently, as regclass does, which is an integer.
_FORMS: dict[type[Codec], TextForm] = {
    BoolCodec: TextForm.T_F,
    ByteaCodec: TextForm.HEX,
    DateCodec: TextForm.DATE,
    DecimalCodec: TextForm.NUMERIC,
    IntegerCodec: TextForm.SIGNED,
    NumericCodec: TextForm.NUMERIC,
    FloatCodec: TextForm.DOUBLE,
    StringCodec: TextForm.TEXT,
    TimestampCodec: TextForm.TIMESTAMP,
    UuidCodec: TextForm.UUID,
}


def _form(codec: Codec) -> TextForm | None:
    """Return how a kernel writes the values of a codec; None if no kernel does."""
    form = _FORMS.get(type(codec))
    if form is TextForm.SIGNED and codec.kind is ColumnKind.UNSIGNED4:
        return TextForm.UNSIGNED
    if form is TextForm.DOUBLE and pa.types.is_float32(codec.arrow_type):
        return TextForm.SINGLE
    if form is TextForm.TEXT and codec.kind is not ColumnKind.TEXT:
        return None  # only UTF-8 is copied unchanged
    if isinstance(codec, TimestampCodec) and codec.zoned:
        return TextForm.TIMESTAMP_ZONED
    return form


class Literals:
    """A live column of a relation version: how its name, its type and its values are printed."""

    __slots__ = (
        "_codec",
        "_form",
        "_label",
        "_locator",
        "_memo",
        "_missing",
        "_names",
        "_quoted",
        "_remembers",
        "_slot",
        "_type_oid",
        "_width",
    )

    def __init__(  # noqa: PLR0917 - what a table's columns have in common would be an object of five
        self, column: Column, slot: int, major: int, dialect: Dialect, names: NamesThen, locator: TupleLocator
    ) -> None:
        """Resolve names in values with `names`; `slot` is the column's index among the live ones."""
        assert column.type is not None, column
        label = f" {quote_identifier(column.name, major)}[{column.type.display_name}]:"
        self._label = label.encode("utf-8", "surrogateescape")
        self._slot = slot
        self._locator = locator
        self._missing = locator.missing_text(slot)
        self._names = names
        self._remembers = not prints_names(column.type)
        self._codec = column_codec(column, dialect.naming(names))
        self._type_oid = column.type.oid
        form = _form(self._codec)
        self._form = TextForm.TRUE_FALSE if form is TextForm.T_F and self._type_oid == _BOOL else form
        self._quoted = self._type_oid not in _UNQUOTED_TYPES and self._type_oid != _BOOL
        self._width = max(column.length, 0)
        self._memo: dict[bytes, bytes] = {}

    def of(self, side: Side, *, shows_nulls: bool) -> "SideLiterals":
        """Return the texts of the column in some tuples; NULLs are left out, or shown."""
        return SideLiterals(self, side, shows_nulls)

    def put(self, texts: ColumnTexts, side: Side, first: int, rows: int, *, shows_nulls: bool) -> int:
        """Write label and literal of some rows; return the index of their first offset."""
        begin = self._slot * side.rows + first
        form = self._form
        if form is None or (self._missing is not None and _has_missing(side, begin, rows)):
            return texts.add_texts([self._made(side, begin + row, first + row, shows_nulls) for row in range(rows)])
        written = partial(
            datum_text.write_datums,
            side.data,
            side.locations,
            side.sizes,
            begin,
            self._width,
            form,
            self._quoted,
            shows_nulls,
            self._label,
            powers(),
        )

        def write(row: int, count: int, out: IntView, offsets: IntView, base: int) -> int:
            stop = written(row, count, out, offsets, base)
            if stop <= ODD:
                self._made(side, begin + ODD - stop, first + ODD - stop, shows_nulls)
                raise InternalError(f"the kernel and the codec of{self._label.decode('utf-8', 'replace')} disagree")
            return stop

        return texts.add(rows, write)

    def _made(self, side: Side, cell: int, row: int, shows_nulls: bool) -> bytes:  # noqa: FBT001 - of one kind
        """Return label and literal of one value."""
        location = side.locations[cell]
        if location == Location.EXTERNAL:
            return self._label + b"unchanged-toast-datum"
        if location >= 0:
            return self._label + self._literal(bytes(side.data[location : location + side.sizes[cell]]), side, row)
        if location == Location.MISSING and self._missing is not None:
            return self._label + self._quote(self._missing)
        return self._label + b"null" if shows_nulls else b""

    def _literal(self, payload: bytes, side: Side, row: int) -> bytes:
        known = self._memo.get(payload)
        if known is not None:
            return known
        self._names.lsn = Lsn(side.lsn[row])
        try:
            made = self._quote(self._codec.text(payload))
        except CorruptWal as error:
            raise self._locator.bad(side, row, error, self._slot) from error
        if len(payload) <= MEMO_BYTES and self._remembers:
            if len(self._memo) >= MEMO_MAX:
                self._memo.clear()
            self._memo[payload] = made
        return made

    def _quote(self, text: str) -> bytes:
        made = text.encode("utf-8", "surrogateescape")
        if self._type_oid in _UNQUOTED_TYPES:
            return made
        if self._type_oid == _BOOL:
            return b"true" if made == b"t" else b"false"
        if self._type_oid in _BIT_TYPES:
            return b"B'%b'" % made
        return b"'%b'" % made.replace(b"'", b"''")


def _has_missing(side: Side, begin: int, rows: int) -> bool:
    """Return whether tuples are older than the column whose cells begin there."""
    return bool((np.frombuffer(side.locations, np.int64)[begin : begin + rows] == Location.MISSING).any())


class SideLiterals(NamedTuple):
    """A column's texts in some tuples."""

    column: Literals
    side: Side
    shows_nulls: bool

    def put(self, texts: ColumnTexts, first: int, rows: int) -> int:
        """Write the texts of some rows; return the index of their first offset."""
        return self.column.put(texts, self.side, first, rows, shows_nulls=self.shows_nulls)
