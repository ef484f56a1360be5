"""`date`, `time`, `timetz`, `timestamp`, `timestamptz` (`date.c`, `timestamp.c`, `datetime.c`, PG 16).

Values that Arrow's readers do not support are clamped to the years 0001 to 9999: infinities, BC and five-digit years
become the first or the last instant. delta-rs panics on an infinite date, and Spark silently reads it as a number.
Clamping preserves the order and NOT NULL; the text form has the exact value.
"""

import struct

import pyarrow as pa

from tidemark.decode.types.codec import ArrowValue, Codec, ColumnKind, TextCodec, unpack_exactly
from tidemark.decode.types.families.calendar import (
    EPOCH_2000_DAYS,
    clock_text,
    date_text,
    days_of,
    parse_clock,
    parse_date,
    parse_zone,
    zone_text,
)
from tidemark.model.commit_time import USECS_PER_DAY

DATE_INFINITY = 0x7FFFFFFF  # DATEVAL_NOEND
DATE_MINUS_INFINITY = -0x80000000
TIMESTAMP_INFINITY = 0x7FFFFFFFFFFFFFFF  # DT_NOEND
TIMESTAMP_MINUS_INFINITY = -0x8000000000000000
FIRST_DAY = days_of(1, 1, 1)
LAST_DAY = days_of(9999, 12, 31)
FIRST_INSTANT = FIRST_DAY * USECS_PER_DAY
LAST_INSTANT = (LAST_DAY + 1) * USECS_PER_DAY - 1
INFINITY_TEXT = {"infinity": TIMESTAMP_INFINITY, "-infinity": TIMESTAMP_MINUS_INFINITY}
CLOCK_AT = 1  # of "date clock", split at the blank
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_TIMETZ = struct.Struct("<qi")


def clamp_day(days: int) -> int:
    """Return the day, clamped to the range that Arrow's readers support."""
    return min(max(days, FIRST_DAY), LAST_DAY)


def clamp_instant(usecs: int) -> int:
    """Return the instant, clamped to the range that Arrow's readers support."""
    return min(max(usecs, FIRST_INSTANT), LAST_INSTANT)


class DateCodec(Codec):
    """`date`: days since 2000-01-01."""

    note = "infinities, BC and years over 9999 become 0001-01-01 or 9999-12-31"

    arrow_type = pa.date32()

    def __init__(self, *, nulls: bool = False) -> None:
        """`nulls`: a value out of range is NULL, not clamped."""
        self._nulls = nulls
        self.kind = ColumnKind.OBJECTS if nulls else ColumnKind.DATE

    def text(self, payload: bytes) -> str:
        """Return the ISO date."""
        (days,) = unpack_exactly(_I32, payload)
        if days == DATE_INFINITY:
            return "infinity"
        if days == DATE_MINUS_INFINITY:
            return "-infinity"
        return "".join(date_text(days + EPOCH_2000_DAYS))

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the days since 1970-01-01."""
        return self._fitted(unpack_exactly(_I32, payload)[0] + EPOCH_2000_DAYS)

    def parse_text(self, text: str) -> ArrowValue:
        """Return the days since 1970-01-01."""
        return self._fitted(INFINITY_TEXT[text] if text in INFINITY_TEXT else parse_date(text))

    def _fitted(self, days: int) -> ArrowValue:
        clamped = clamp_day(days)
        return None if self._nulls and clamped != days else clamped


class TimestampCodec(Codec):
    """`timestamp` and `timestamptz`: microseconds since 2000-01-01, the latter in UTC."""

    note = "infinities, BC and years over 9999 become the first or last instant of the years 0001 to 9999"

    def __init__(self, *, zone: bool, nulls: bool = False) -> None:
        """`nulls`: a value out of range is NULL, not clamped."""
        self._nulls = nulls
        self.kind = ColumnKind.OBJECTS if nulls else ColumnKind.TIMESTAMP
        self.zoned = zone
        self.arrow_type = pa.timestamp("us", tz="UTC") if zone else pa.timestamp("us")

    def text(self, payload: bytes) -> str:
        """Return date and clock, with the UTC offset for timestamptz."""
        (usecs,) = unpack_exactly(_I64, payload)
        if usecs == TIMESTAMP_INFINITY:
            return "infinity"
        if usecs == TIMESTAMP_MINUS_INFINITY:
            return "-infinity"
        days, clock = divmod(usecs, USECS_PER_DAY)
        date, era = date_text(days + EPOCH_2000_DAYS)
        return f"{date} {clock_text(clock)}{'+00' if self.zoned else ''}{era}"

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the microseconds since 1970-01-01."""
        return self._fitted(unpack_exactly(_I64, payload)[0] + EPOCH_2000_DAYS * USECS_PER_DAY)

    def parse_text(self, text: str) -> ArrowValue:
        """Return the microseconds since 1970-01-01."""
        if text in INFINITY_TEXT:
            return self._fitted(INFINITY_TEXT[text])
        clock = text.split(" ")[CLOCK_AT]
        days = parse_date(text)
        return self._fitted(days * USECS_PER_DAY + parse_clock(clock) - _zone_usecs(clock))

    def _fitted(self, usecs: int) -> ArrowValue:
        clamped = clamp_instant(usecs)
        return None if self._nulls and clamped != usecs else clamped


def _zone_usecs(clock: str) -> int:
    """Return the UTC offset after a clock time."""
    sign = max(clock.find("+"), clock.find("-"))
    return parse_zone(clock[sign:]) * 1_000_000 if sign > 0 else 0


class TimeCodec(Codec):
    """`time`: microseconds since midnight, up to 24:00:00; an int64 in Arrow (delta-rs has no time of day)."""

    arrow_type = pa.int64()
    kind = ColumnKind.FIXED
    note = "microseconds since midnight"

    def text(self, payload: bytes) -> str:
        """Return the clock time."""
        return clock_text(self.arrow_value(payload))

    def arrow_value(self, payload: bytes) -> int:
        """Return the microseconds since midnight."""
        return unpack_exactly(_I64, payload)[0]

    def parse_text(self, text: str) -> ArrowValue:
        """Return the microseconds since midnight."""
        return parse_clock(text)


class TimetzCodec(TextCodec):
    """`timetz`: microseconds since midnight, and seconds *west* of UTC."""

    def text(self, payload: bytes) -> str:
        """Return the clock time and its offset."""
        usecs, west = unpack_exactly(_TIMETZ, payload)
        return clock_text(usecs) + zone_text(-west)
