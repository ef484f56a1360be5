"""`interval` in IntervalStyle postgres, and in other forms (`EncodeInterval`, PG 17)."""

import re
import struct

import pyarrow as pa

from tidemark.decode.types.codec import ArrowValue, Dialect, TextCodec, unpack_exactly
from tidemark.model.commit_time import USECS_PER_DAY, USECS_PER_HOUR, USECS_PER_MINUTE, USECS_PER_SECOND

MONTHS_PER_YEAR = 12
DAYS_PER_MONTH = 30
QUARTER_DAYS_PER_YEAR = 1461  # 365.25 days
IntervalParts = tuple[int, int, int]
"""Months, days, microseconds."""
INFINITE: dict[str, IntervalParts] = {  # since 17
    "infinity": (0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF),
    "-infinity": (-0x80000000, -0x80000000, -0x8000000000000000),
}
_FORM = struct.Struct("<qii")
_POSTGRES_STYLE = re.compile(
    r"(?:(?P<years>[+-]?\d+) years?)? ?(?:(?P<months>[+-]?\d+) mons?)? ?(?:(?P<days>[+-]?\d+) days?)? ?"
    r"(?:(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.(?P<fraction>\d{1,6}))?)?"
)


def interval_text(months: int, days: int, usecs: int) -> str:
    """Return months, days and microseconds as years, months, days and a clock, each with its sign.

    A positive part after a negative one has a plus sign.
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
    """Return hours (with any number of digits), minutes and seconds."""
    hours, rest = divmod(abs(usecs), USECS_PER_HOUR)
    minutes, rest = divmod(rest, USECS_PER_MINUTE)
    seconds, fraction = divmod(rest, USECS_PER_SECOND)
    sign = "-" if usecs < 0 else "+" if plus else ""
    text = f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def iso_text(months: int, days: int, usecs: int) -> str:
    """Return months, days and microseconds in IntervalStyle iso_8601: each part with its sign."""
    sign = -1 if months < 0 else 1
    years, rest = divmod(abs(months), MONTHS_PER_YEAR)
    date = _designated((sign * years, "Y"), (sign * rest, "M"), (days, "D"))
    negative = "-" if usecs < 0 else ""
    hours, rest = divmod(abs(usecs), USECS_PER_HOUR)
    minutes, rest = divmod(rest, USECS_PER_MINUTE)
    seconds, fraction = divmod(rest, USECS_PER_SECOND)
    time = "".join(f"{negative}{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M")) if value)
    if rest:
        decimals = f".{fraction:06d}".rstrip("0") if fraction else ""
        time += f"{negative}{seconds}{decimals}S"
    return f"P{date}{'T' if time else ''}{time}" if date or time else "PT0S"


def _designated(*parts: tuple[int, str]) -> str:
    return "".join(f"{value}{unit}" for value, unit in parts if value)


def epoch_usecs(months: int, days: int, usecs: int) -> int:
    """Return `extract(epoch from ...)` in microseconds: a year has 365.25 days, a month 30."""
    sign = -1 if months < 0 else 1
    years, rest = divmod(abs(months), MONTHS_PER_YEAR)
    quarter_days = sign * (years * QUARTER_DAYS_PER_YEAR + rest * 4 * DAYS_PER_MONTH) + 4 * days
    return quarter_days * (USECS_PER_DAY // 4) + usecs


def parse_interval(text: str) -> IntervalParts:
    """Return months, days and microseconds of an interval in style postgres."""
    if text in INFINITE:
        return INFINITE[text]
    found = _POSTGRES_STYLE.fullmatch(text)
    if found is None:
        raise ValueError(f"not an interval: {text!r}")
    years, months, days = (int(found[unit] or 0) for unit in ("years", "months", "days"))
    usecs = 0
    if found["hours"]:
        seconds = (int(found["hours"]) * 60 + int(found["minutes"])) * 60 + int(found["seconds"])
        usecs = seconds * USECS_PER_SECOND + int((found["fraction"] or "").ljust(6, "0"))
    return years * MONTHS_PER_YEAR + months, days, -usecs if found["sign"] == "-" else usecs


class IntervalCodec(TextCodec):
    """`interval`: microseconds, days, months; text in Arrow, which has no interval type that Spark reads."""

    note = "as IntervalStyle postgres prints it"

    def __init__(self, dialect: Dialect) -> None:
        self._infinite = dialect.infinite_intervals

    def text(self, payload: bytes) -> str:
        """Return the interval in style postgres."""
        parts = read_parts(payload)
        infinite = infinite_text(parts) if self._infinite else None
        return infinite or interval_text(*parts)


class IntervalIsoCodec(IntervalCodec):
    """`interval` in style iso_8601."""

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the interval in style iso_8601."""
        return self._iso(read_parts(payload))

    def parse_text(self, text: str) -> ArrowValue:
        """Return the interval in style iso_8601."""
        return self._iso(parse_interval(text))

    def _iso(self, parts: IntervalParts) -> str:
        infinite = infinite_text(parts) if self._infinite else None
        return infinite or iso_text(*parts)


class IntervalUsecsCodec(IntervalCodec):
    """`interval` as an integer; a value beyond 64 bits, or an infinity, becomes the greatest or lowest integer."""

    arrow_type = pa.int64()

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the microseconds."""
        return _in_64_bits(epoch_usecs(*read_parts(payload)))

    def parse_text(self, text: str) -> ArrowValue:
        """Return the microseconds."""
        return _in_64_bits(epoch_usecs(*parse_interval(text)))


def read_parts(payload: bytes) -> IntervalParts:
    """Return months, days and microseconds."""
    usecs, days, months = unpack_exactly(_FORM, payload)
    return months, days, usecs


def infinite_text(parts: IntervalParts) -> str | None:
    """Return the text of an infinite interval; None for others."""
    return next((text for text, infinite in INFINITE.items() if parts == infinite), None)


def _in_64_bits(number: int) -> int:
    return min(max(number, -(1 << 63)), (1 << 63) - 1)
