"""A codec converts one type's values to PostgreSQL's text, to Arrow values, and from text to Arrow values.

`text` equals the output of the type's output function under the reference session (TimeZone UTC, DateStyle "ISO, MDY",
IntervalStyle postgres, extra_float_digits 1, bytea_output hex, lc_monetary C), to the byte. `arrow_type` is one that
Spark and delta-rs accept: docs/types.md, generated from here, is the table of both.

Text that is not valid in the database's encoding (SQL_ASCII stores anything): the text form keeps the bytes as
surrogate escapes, so that they can be written unchanged; Arrow, where invalid UTF-8 would pass unchecked into
Parquet, gets U+FFFD in their place.
"""

import struct
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import Enum
from typing import Protocol

import pyarrow as pa

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.encodings import decode_text, python_encoding
from tidemark.model.lsn import Oid
from tidemark.model.mapping import DEFAULT_MAPPING, TypeMapping

ArrowValue = bool | int | float | str | bytes | Decimal | list["ArrowValue"] | None
"""What `pyarrow` takes for one value; dates and times are integers."""

NUMBER_BRACKETS_SINCE = 15  # jsonpath_out prints (1).type()
CHAR_ESCAPES_SINCE = 15  # charout prints bytes over 7Fh as \ooo
INFINITE_INTERVALS_SINCE = 17  # interval_out prints infinity


class ObjectNames(Protocol):
    """The names of relations, types and schemas."""

    def name(self, kind: Oid, oid: Oid) -> str:
        """Return what the type `kind` (`regclass` or similar) prints for a nonzero OID."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The settings of all codecs: the database's encoding, the server's major, the Arrow types."""

    encoding: str = "utf-8"  # Python's name
    number_brackets: bool = True
    char_escapes: bool = True
    infinite_intervals: bool = True
    mapping: TypeMapping = DEFAULT_MAPPING
    names: ObjectNames | None = field(default=None, compare=False)  # None: OIDs are printed as numbers

    @classmethod
    def of(cls, encoding: str, major: int, mapping: TypeMapping = DEFAULT_MAPPING) -> "Dialect":
        """Return the dialect of a database; `encoding` is PostgreSQL's name."""
        return cls(
            python_encoding(encoding),
            number_brackets=major >= NUMBER_BRACKETS_SINCE,
            char_escapes=major >= CHAR_ESCAPES_SINCE,
            infinite_intervals=major >= INFINITE_INTERVALS_SINCE,
            mapping=mapping,
        )

    def mapped(self, mapping: TypeMapping) -> "Dialect":
        """Return the dialect with other Arrow types."""
        return replace(self, mapping=mapping)

    def naming(self, names: ObjectNames) -> "Dialect":
        """Return the dialect in which OIDs are printed as names."""
        return replace(self, names=names)

    def decode(self, data: bytes) -> str:
        """Return `data` as text; invalid bytes are kept as surrogate escapes."""
        return decode_text(data, self.encoding)


class ColumnKind(Enum):
    """How a whole column is built without an object for each value; OBJECTS uses `arrow_value`."""

    OBJECTS = "objects"
    ARRAY = "array"
    BOOL = "bool"
    ENUM = "enum"
    FIXED = "fixed"  # the unchanged bytes: 2, 4 or 8
    UNSIGNED4 = "unsigned4"  # u32 to int64
    DATE = "date"
    TIMESTAMP = "timestamp"
    TEXT = "text"
    BYTES = "bytes"
    NUMERIC = "numeric"
    NUMERIC_TEXT = "numeric text"
    JSONB = "jsonb"
    UUID = "uuid"


class Codec:
    """The values of one type; subclasses define it. `payload` is always the value without header, decompressed."""

    arrow_type: pa.DataType
    kind = ColumnKind.OBJECTS
    note = ""  # for docs/types.md: what the Arrow value omits or changes

    def text(self, payload: bytes) -> str:
        """Return the output of the type's output function."""
        raise NotImplementedError

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the value in the form of `arrow_type`."""
        raise NotImplementedError

    def parse_text(self, text: str) -> ArrowValue:
        """Return the result of `arrow_value` for the value whose text is `text`."""
        raise NotImplementedError


class TextCodec(Codec):
    """A type whose Arrow value is its text."""

    arrow_type = pa.string()

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the text, with U+FFFD in place of invalid bytes."""
        return without_escapes(self.text(payload))

    def parse_text(self, text: str) -> ArrowValue:
        """Return `text`, with U+FFFD in place of invalid bytes."""
        return without_escapes(text)


def without_escapes(text: str) -> str:
    """Return `text` with U+FFFD in place of surrogate escapes."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def unpack_exactly(form: struct.Struct, payload: bytes) -> tuple[int, ...]:
    """Return the integers of a fixed-length value."""
    if len(payload) != form.size:
        raise BadDatum(f"value of {len(payload)} bytes, but its type has {form.size}")
    return form.unpack(payload)
