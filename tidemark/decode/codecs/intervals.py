"""`interval` in IntervalStyle postgres (`EncodeInterval`, PG 17)."""

import struct

from tidemark.decode.codecs.calendar import USECS_PER_HOUR, USECS_PER_MINUTE, USECS_PER_SECOND
from tidemark.decode.codecs.codec import Dialect, TextCodec, unpack_exactly

MONTHS_PER_YEAR = 12
INFINITY = (0x7FFFFFFFFFFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF)  # since 17
MINUS_INFINITY = (-0x8000000000000000, -0x80000000, -0x80000000)
_FORM = struct.Struct("<qii")


def interval_text(months: int, days: int, usecs: int) -> str:
    """Return months, days and microseconds as years, months, days and a clock, each with its sign.

    A positive part after a negative one says so with a plus.
    """
    parts: list[str] = []
    before_negative = False
    sign = -1 if months < 0 else 1
    years, rest = divmod(abs(months), MONTHS_PER_YEAR)
    for value, unit in ((sign * years, "year"), (sign * rest, "mon"), (days, "day")):
        if value == 0:
            continue
        plus = "+" if before_negative and value > 0 else ""
        parts.append(f"{plus}{value} {unit}{'' if value == 1 else 's'}")
        before_negative = value < 0
    if usecs or not parts:
        parts.append(_signed_clock(usecs, plus=before_negative))
    return " ".join(parts)


def _signed_clock(usecs: int, *, plus: bool) -> str:
    """Return hours (as many as there are), minutes and seconds."""
    hours, rest = divmod(abs(usecs), USECS_PER_HOUR)
    minutes, rest = divmod(rest, USECS_PER_MINUTE)
    seconds, fraction = divmod(rest, USECS_PER_SECOND)
    sign = "-" if usecs < 0 else "+" if plus else ""
    text = f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


class IntervalCodec(TextCodec):
    """`interval`: microseconds, days, months; text in Arrow, which has no such type that Spark reads."""

    note = "as IntervalStyle postgres prints it"

    def __init__(self, dialect: Dialect) -> None:
        self._infinite = dialect.infinite_intervals

    def text(self, payload: bytes) -> str:
        """Return the interval in style postgres."""
        usecs, days, months = unpack_exactly(_FORM, payload)
        if self._infinite and (usecs, days, months) == INFINITY:
            return "infinity"
        if self._infinite and (usecs, days, months) == MINUS_INFINITY:
            return "-infinity"
        return interval_text(months, days, usecs)
