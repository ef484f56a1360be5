"""`numeric`: base-10000 digits with a display scale (`numeric.c`, PG 16).

Arrow has decimals of 38 digits and no NaN. A column declared numeric(p, s) with p up to 38 becomes a decimal, and a NaN
in it NULL; every other one becomes text, without any loss. A negative scale, which Spark rejects, widens
the precision instead; a scale over the precision takes as many digits as the scale.
"""

import struct
from decimal import Decimal

import pyarrow as pa

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import ArrowValue, Codec, ColumnKind, TextCodec

DECIMAL_DIGITS_MAX = 38  # of Arrow's and Spark's decimal128
DIGITS_PER_GROUP = 4
GROUP_BASE = 10**DIGITS_PER_GROUP
SPECIAL_MASK = 0xC000
SPECIAL = 0xC000
SHORT = 0x8000
LONG_NEGATIVE = 0x4000
LONG_SCALE_MASK = 0x3FFF
SHORT_NEGATIVE = 0x2000
SHORT_SCALE_MASK = 0x1F80
SHORT_SCALE_SHIFT = 7
SHORT_WEIGHT_SIGN = 0x0040
SHORT_WEIGHT_MASK = 0x003F
SPECIAL_SIGNS = 0xF000  # NUMERIC_EXT_SIGN_MASK
PLUS_INFINITY = 0xD000
MINUS_INFINITY = 0xF000
SPECIAL_TEXT = {SPECIAL: "NaN", PLUS_INFINITY: "Infinity", MINUS_INFINITY: "-Infinity"}
TYPMOD_HEADER = 4  # VARHDRSZ, added to every numeric typmod
_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")


def declared_digits(typmod: int) -> tuple[int, int] | None:
    """Return (precision, scale) of the Arrow decimal for a column of this typmod; None if none is wide enough."""
    if typmod < TYPMOD_HEADER:
        return None
    declared = typmod - TYPMOD_HEADER
    precision = declared >> 16
    scale = ((declared & 0x7FF) ^ 0x400) - 0x400  # 11 bits, signed (`numeric_typmod_scale`); before 15 never negative
    precision, scale = (max(precision, scale), scale) if scale >= 0 else (precision - scale, 0)
    return (precision, scale) if precision <= DECIMAL_DIGITS_MAX else None


def _parse(payload: bytes) -> tuple[bool, int, int, tuple[int, ...]]:
    """Return (negative, weight of the first group, display scale, groups) of a finite number."""
    head = _head(payload)
    if head & SHORT:
        negative = bool(head & SHORT_NEGATIVE)
        scale = (head & SHORT_SCALE_MASK) >> SHORT_SCALE_SHIFT
        weight = (head & SHORT_WEIGHT_MASK) - (SHORT_WEIGHT_SIGN if head & SHORT_WEIGHT_SIGN else 0)
        at = 2
    else:
        if len(payload) < 4:
            raise BadDatum("numeric without its weight")
        negative = bool(head & LONG_NEGATIVE)
        scale = head & LONG_SCALE_MASK
        (weight,) = _I16.unpack_from(payload, 2)
        at = 4
    groups = struct.unpack_from(f"<{(len(payload) - at) // 2}H", payload, at)
    if any(group >= GROUP_BASE for group in groups):
        raise BadDatum(f"digit group over {GROUP_BASE - 1} in a numeric")
    return negative, weight, scale, groups


def _head(payload: bytes) -> int:
    if len(payload) < 2:
        raise BadDatum(f"numeric of {len(payload)} bytes is cut off")
    return int(_U16.unpack_from(payload)[0])


def numeric_text(payload: bytes) -> str:
    """Return the output of `numeric_out`."""
    head = _head(payload)
    if head & SPECIAL_MASK == SPECIAL:
        return SPECIAL_TEXT.get(head & SPECIAL_SIGNS, "NaN")
    negative, weight, scale, groups = _parse(payload)
    digits = "".join([f"{group:04d}" for group in groups])
    before_point = (weight + 1) * DIGITS_PER_GROUP
    if before_point < 0:
        digits = "0" * -before_point + digits
        before_point = 0
    whole = digits[:before_point].ljust(before_point, "0").lstrip("0") or "0"
    sign = "-" if negative else ""
    # NB: stored digits may exceed the display scale, but only as zeros in the last group.
    return f"{sign}{whole}.{digits[before_point:][:scale].ljust(scale, '0')}" if scale else sign + whole


class NumericCodec(TextCodec):
    """`numeric` that fits no Arrow decimal: unconstrained, or over 38 digits."""

    kind = ColumnKind.NUMERIC_TEXT
    note = "without declared digits, or with more than 38; NaN and infinities as PostgreSQL prints them"

    def text(self, payload: bytes) -> str:
        """Return the output of `numeric_out`."""
        return numeric_text(payload)


class DecimalCodec(Codec):
    """`numeric(p, s)` as a decimal."""

    kind = ColumnKind.NUMERIC
    note = "p up to 38. NaN becomes NULL. A negative scale widens p instead, a scale over p counts as p"

    def __init__(self, precision: int, scale: int) -> None:
        self.precision = precision
        self.scale = scale
        self.arrow_type = pa.decimal128(precision, scale)

    def text(self, payload: bytes) -> str:
        """Return the output of `numeric_out`."""
        return numeric_text(payload)

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the decimal at the column's scale; NULL for NaN, and for a value beyond the declared digits."""
        head = _head(payload)
        if head & SPECIAL_MASK == SPECIAL:
            return None
        negative, weight, _, groups = _parse(payload)
        coefficient = 0
        for group in groups:
            coefficient = coefficient * GROUP_BASE + group
        shift = (weight - len(groups) + 1) * DIGITS_PER_GROUP + self.scale
        unscaled = coefficient * 10**shift if shift >= 0 else coefficient // 10**-shift
        if unscaled >= 10**self.precision:
            return None
        return Decimal((int(negative), tuple(map(int, str(unscaled))), -self.scale))

    def parse_text(self, text: str) -> ArrowValue:
        """Return the decimal; NULL for NaN."""
        number = Decimal(text)
        return number if number.is_finite() else None
