"""What a codec is: one type's values as PostgreSQL's text, as Arrow's, and from text to Arrow.

`text` is what the type's own output function prints under the reference session (TimeZone UTC, DateStyle "ISO, MDY",
IntervalStyle postgres, extra_float_digits 1, bytea_output hex, lc_monetary C), to the byte. `arrow_type` follows what
Spark and delta-rs accept: docs/types.md, generated from here, is the table of both.

Text that is not valid in the database's encoding (SQL_ASCII stores anything): the text form keeps the bytes as
surrogate escapes, so that they come out again as they are; Arrow, where invalid UTF-8 would pass unchecked into
Parquet, gets U+FFFD in their place.
"""

import struct
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import Enum
from typing import Protocol

import pyarrow as pa

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.encodings import PYTHON_ENCODINGS, UnsupportedEncoding, decode_text
from tidemark.model.lsn import Oid
from tidemark.model.mapping import DEFAULT_MAPPING, TypeMapping

ArrowValue = bool | int | float | str | bytes | Decimal | list["ArrowValue"] | None
"""What `pyarrow` takes for one value; dates and times are integers."""

NUMBER_BRACKETS_SINCE = 15  # jsonpath_out prints (1).type()
CHAR_ESCAPES_SINCE = 15  # charout prints bytes over 7Fh as \ooo
INFINITE_INTERVALS_SINCE = 17  # interval_out knows infinity


class ObjectNames(Protocol):
    """What relations, types and schemas are called."""

    def name(self, kind: Oid, oid: Oid) -> str:
        """Return what the type `kind` (`regclass` or its like) prints for an OID that is not 0."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What values come out as, beside what they are: the database's encoding, the server's major, the Arrow forms."""

    encoding: str = "utf-8"  # Python's name
    number_brackets: bool = True
    char_escapes: bool = True
    infinite_intervals: bool = True
    mapping: TypeMapping = DEFAULT_MAPPING
    names: ObjectNames | None = field(default=None, compare=False)  # None: OIDs come out as numbers

    @classmethod
    def of(cls, encoding: str, major: int, mapping: TypeMapping = DEFAULT_MAPPING) -> "Dialect":
        """Return the dialect of a database; `encoding` is PostgreSQL's name."""
        if encoding not in PYTHON_ENCODINGS:
            raise UnsupportedEncoding(f"database encoding {encoding} is not supported")
        return cls(
            PYTHON_ENCODINGS[encoding],
            number_brackets=major >= NUMBER_BRACKETS_SINCE,
            char_escapes=major >= CHAR_ESCAPES_SINCE,
            infinite_intervals=major >= INFINITE_INTERVALS_SINCE,
            mapping=mapping,
        )

    def mapped(self, mapping: TypeMapping) -> "Dialect":
        """Return the dialect with other Arrow forms."""
        return replace(self, mapping=mapping)

    def naming(self, names: ObjectNames) -> "Dialect":
        """Return the dialect in which OIDs come out as names."""
        return replace(self, names=names)

    def decode(self, data: bytes) -> str:
        """Return `data` as text; invalid bytes stay, as surrogate escapes."""
        return decode_text(data, self.encoding)


class ColumnKind(Enum):
    """How a whole column is built without an object per value; OBJECTS is the way through `arrow_value`."""

    OBJECTS = "objects"
    ARRAY = "array"
    BOOL = "bool"
    ENUM = "enum"
    FIXED = "fixed"  # the bytes as they are: 2, 4 or 8
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
    """One type's values; subclasses say which. `payload` is always the value without header, decompressed."""

    arrow_type: pa.DataType
    kind = ColumnKind.OBJECTS
    note = ""  # for docs/types.md: what the Arrow form leaves out or changes

    def text(self, payload: bytes) -> str:
        """Return what the type's output function prints."""
        raise NotImplementedError

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the value as `arrow_type` holds it."""
        raise NotImplementedError

    def parse_text(self, text: str) -> ArrowValue:
        """Return what `arrow_value` gives for the value whose text is `text`."""
        raise NotImplementedError


class TextCodec(Codec):
    """A type whose Arrow form is its text."""

    arrow_type = pa.string()

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the text, U+FFFD in place of what is invalid."""
        return without_escapes(self.text(payload))

    def parse_text(self, text: str) -> ArrowValue:
        """Return `text`, U+FFFD in place of what is invalid."""
        return without_escapes(text)


def without_escapes(text: str) -> str:
    """Return `text` with U+FFFD in place of surrogate escapes."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def unpack_exactly(form: struct.Struct, payload: bytes) -> tuple[int, ...]:
    """Return the integers of a fixed-length value."""
    if len(payload) != form.size:
        raise BadDatum(f"value of {len(payload)} bytes where the type has {form.size}")
    return form.unpack(payload)
