"""The text family, bytea, bit strings, uuid, enums, and the bytes of types that are not supported."""

import re
from struct import Struct

import pyarrow as pa

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import (
    ArrowValue,
    Codec,
    ColumnKind,
    Dialect,
    TextCodec,
    unpack_exactly,
    without_escapes,
)
from tidemark.model.relation import EnumLabel

UUID_BYTES = 16
UUID_TEXT_BYTES = 36
BYTEA_ESCAPE = re.compile(rb"\\([0-7]{3}|\\)")


class StringCodec(TextCodec):
    """`text`, `varchar`, `bpchar` (with blanks), `json`: stored as printed, except for a zero byte.

    Only C functions and casts without a function can create one: the server prints the text before it.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        if dialect.encoding == "utf-8":
            self.kind = ColumnKind.TEXT

    def text(self, payload: bytes) -> str:
        """Return the text before the first zero byte."""
        return self._dialect.decode(payload.partition(b"\0")[0])

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return all of the text, with U+FFFD in place of invalid bytes."""
        return without_escapes(self._dialect.decode(payload))


class NameCodec(TextCodec):
    """`name`: 64 bytes, zero-padded."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def text(self, payload: bytes) -> str:
        """Return the text before the first zero byte."""
        return self._dialect.decode(payload.partition(b"\0")[0])


class CharCodec(TextCodec):
    """`"char"`: one byte; zero prints as nothing."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def text(self, payload: bytes) -> str:
        """Return the character; a byte over 7Fh as an octal escape, or unchanged before 15."""
        if len(payload) != 1:
            raise BadDatum(f'"char" of {len(payload)} bytes')
        if payload == b"\0":
            return ""
        if payload[0] > 0x7F and self._dialect.char_escapes:
            return f"\\{payload[0]:03o}"
        return self._dialect.decode(payload)


class ByteaCodec(Codec):
    """`bytea`."""

    arrow_type = pa.binary()
    kind = ColumnKind.BYTES

    def text(self, payload: bytes) -> str:
        """Return the hex format."""
        return "\\x" + payload.hex()

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the bytes."""
        return payload

    def parse_text(self, text: str) -> ArrowValue:
        """Return the bytes of the hex or the escape format."""
        if text.startswith("\\x"):
            return bytes.fromhex(text[2:])
        raw = text.encode("utf-8", "surrogateescape")
        return BYTEA_ESCAPE.sub(lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1], 8)]), raw)


class BitsCodec(TextCodec):
    """`bit` and `varbit`: the number of bits, then the bits, the highest of each byte first."""

    _form = Struct("<i")

    def text(self, payload: bytes) -> str:
        """Return a digit for each bit."""
        body = payload[self._form.size :]
        count = self._form.unpack_from(payload)[0] if len(payload) >= self._form.size else -1
        if count < 0 or (count + 7) // 8 != len(body):
            raise BadDatum(f"{count} bits in {len(payload)} bytes")
        return "".join(f"{byte:08b}" for byte in body)[:count]


class RawCodec(Codec):
    """A type without a codec: its bytes as on disk, without the header of a varlena.

    NB: if only the text is known, from COPY, it cannot be converted to these bytes: Arrow gets the text's bytes.
    """

    arrow_type = pa.binary()
    note = "the bytes on disk; in rows of a first copy, which have only text, the bytes of that text"

    def __init__(self, *, fixed_length: bool) -> None:
        self.kind = ColumnKind.OBJECTS if fixed_length else ColumnKind.BYTES

    def text(self, payload: bytes) -> str:
        """Return the bytes as bytea would print them."""
        return "\\x" + payload.hex()

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the bytes."""
        return payload

    def parse_text(self, text: str) -> ArrowValue:
        """Return the text's bytes."""
        return text.encode("utf-8", "surrogateescape")


class UuidCodec(TextCodec):
    """`uuid`: sixteen bytes."""

    kind = ColumnKind.UUID

    def text(self, payload: bytes) -> str:
        """Return the five groups of hex digits."""
        if len(payload) != UUID_BYTES:
            raise BadDatum(f"uuid has the invalid length {len(payload)}")
        digits = payload.hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class EnumCodec(TextCodec):
    """An enum: the OID of its label, whose text is in the type's description."""

    kind = ColumnKind.ENUM
    note = "the label at the time when the row was written"
    _form = Struct("<I")

    def __init__(self, name: str, labels: tuple[EnumLabel, ...]) -> None:
        self._name = name
        self.labels: dict[int, str] = {label.oid: label.label for label in labels}

    def text(self, payload: bytes) -> str:
        """Return the label."""
        (oid,) = unpack_exactly(self._form, payload)
        if oid not in self.labels:
            raise BadDatum(f"enum {self._name} has no label with OID {oid}")
        return self.labels[oid]
