"""The Arrow forms of values that have several. Fixed with a capture's state, as its tables have this form."""

from dataclasses import dataclass
from enum import StrEnum


class Decimals(StrEnum):
    """`numeric` and `money`."""

    PRECISE = "precise"  # decimals if 38 digits are enough, else text
    STRING = "string"
    DOUBLE = "double"


class Binary(StrEnum):
    """`bytea`."""

    BYTES = "bytes"
    BASE64 = "base64"
    HEX = "hex"


class Intervals(StrEnum):
    """`interval`."""

    POSTGRES = "postgres"  # text, as IntervalStyle postgres
    ISO_8601 = "iso_8601"  # text, as IntervalStyle iso_8601
    MICROSECONDS = "microseconds"  # an integer, as extract(epoch from ...) counts


class TimePrecision(StrEnum):
    """`time`, `timestamp` and `timestamptz`."""

    MICROSECONDS = "microseconds"
    MILLISECONDS = "milliseconds"


class OutOfRange(StrEnum):
    """Infinities, BC and years over 9999 of `date`, `timestamp` and `timestamptz`."""

    CLAMP = "clamp"  # to the first or last value of the years 0001 to 9999
    NULL = "null"
    STRING = "string"  # all values of these types become text


@dataclass(frozen=True, slots=True)
class TypeMapping:
    """One choice of each."""

    decimals: Decimals = Decimals.PRECISE
    binary: Binary = Binary.BYTES
    intervals: Intervals = Intervals.POSTGRES
    time_precision: TimePrecision = TimePrecision.MICROSECONDS
    out_of_range: OutOfRange = OutOfRange.CLAMP


DEFAULT_MAPPING = TypeMapping()
