"""Integers, floats, booleans, money, OIDs and transaction ids: fixed-length values, stored little-endian."""

import struct
from decimal import Decimal

import pyarrow as pa

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import ArrowValue, Codec, ColumnKind, unpack_exactly
from tidemark.decode.types.families.float_text import double_text, single_text

XID8_DIGITS = 20  # 2 ** 64 - 1 has 20
MONEY_DIGITS = 19  # 2 ** 63 has 19
MONEY_SCALE = 2  # of lc_monetary C
_GROUPING = str.maketrans("", "", "$,")


class BoolCodec(Codec):
    """`bool`: one byte."""

    arrow_type = pa.bool_()
    kind = ColumnKind.BOOL

    def text(self, payload: bytes) -> str:
        """Return t or f."""
        return "t" if self.arrow_value(payload) else "f"

    def arrow_value(self, payload: bytes) -> bool:
        """Return the boolean."""
        if len(payload) != 1:
            raise BadDatum(f"boolean has the invalid length {len(payload)}")
        return payload != b"\0"

    def parse_text(self, text: str) -> ArrowValue:
        """Return the boolean of t or f."""
        return text == "t"


class IntegerCodec(Codec):
    """Integers of any width; unsigned ones (`oid`, `xid`) widen, because Spark has no unsigned types."""

    def __init__(self, form: str, arrow_type: pa.DataType, kind: ColumnKind = ColumnKind.FIXED) -> None:
        self._form = struct.Struct(form)
        self.arrow_type = arrow_type
        self.kind = kind

    def text(self, payload: bytes) -> str:
        """Return the decimal digits."""
        return str(self.arrow_value(payload))

    def arrow_value(self, payload: bytes) -> int:
        """Return the integer."""
        return unpack_exactly(self._form, payload)[0]

    def parse_text(self, text: str) -> ArrowValue:
        """Return the integer."""
        return int(text)


class Xid8Codec(Codec):
    """`xid8`: 64 bits unsigned, which in Arrow fit only into a decimal."""

    arrow_type = pa.decimal128(XID8_DIGITS, 0)
    note = "Spark has no unsigned 64-bit integer"
    _form = struct.Struct("<Q")

    def text(self, payload: bytes) -> str:
        """Return the decimal digits."""
        return str(unpack_exactly(self._form, payload)[0])

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the number as a decimal."""
        return Decimal(unpack_exactly(self._form, payload)[0])

    def parse_text(self, text: str) -> ArrowValue:
        """Return the number as a decimal."""
        return Decimal(text)


class MoneyCodec(Codec):
    """`money`: an integer number of cents, as in lc_monetary C."""

    arrow_type = pa.decimal128(MONEY_DIGITS, MONEY_SCALE)
    note = "two fractional digits, as with lc_monetary C"
    _form = struct.Struct("<q")

    def text(self, payload: bytes) -> str:
        """Return dollars and cents, with a comma before each group of three digits."""
        (cents,) = unpack_exactly(self._form, payload)
        dollars, rest = divmod(abs(cents), 10**MONEY_SCALE)
        return f"{'-' if cents < 0 else ''}${dollars:,}.{rest:02d}"

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the amount as a decimal."""
        return Decimal(unpack_exactly(self._form, payload)[0]).scaleb(-MONEY_SCALE)

    def parse_text(self, text: str) -> ArrowValue:
        """Return the amount as a decimal."""
        return Decimal(text.translate(_GROUPING))


class FloatCodec(Codec):
    """`float4` and `float8`."""

    kind = ColumnKind.FIXED
    note = "NaN, infinities and -0 are kept"

    def __init__(self, width: int) -> None:
        self._form = struct.Struct("<f" if width == 4 else "<d")
        self._text = single_text if width == 4 else double_text
        self.arrow_type = pa.float32() if width == 4 else pa.float64()

    def text(self, payload: bytes) -> str:
        """Return the shortest text that reads back as the same number."""
        unpack_exactly(self._form, payload)
        return self._text(payload)

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the number."""
        return unpack_exactly(self._form, payload)[0]

    def parse_text(self, text: str) -> ArrowValue:
        """Return the number."""
        return float(text)
