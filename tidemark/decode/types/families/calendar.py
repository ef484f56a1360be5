"""Converts days and microseconds to dates and clock times, over the whole range of PostgreSQL's types, and back.

The proleptic Gregorian calendar, years counted astronomically: 0 is 1 BC. Python's dates end at 9999 and have no BC.
"""

import re
from functools import lru_cache

from tidemark.model.commit_time import USECS_PER_SECOND

EPOCH_2000_DAYS = 10_957  # days from 1970-01-01 to PostgreSQL's epoch, 2000-01-01
DAYS_PER_ERA = 146_097  # 400 years
DAYS_FROM_ERA_START = 719_468  # from 0000-03-01 to 1970-01-01
DATES_REMEMBERED = 4096  # dates recur often
DATE = re.compile(r"(\d{4,})-(\d\d)-(\d\d)")
CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
ZONE = re.compile(r"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?")


def civil_date(days: int) -> tuple[int, int, int]:
    """Return (year, month, day) of the day `days` after 1970-01-01.

    Years are counted from March, so that the leap day is the last one, in eras of 400 years (H. Hinnant, "chrono-
    Compatible Low-Level Date Algorithms").
    """
    era, day_of_era = divmod(days + DAYS_FROM_ERA_START, DAYS_PER_ERA)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    return era * 400 + year_of_era + (month <= 2), month, day_of_year - (153 * shifted_month + 2) // 5 + 1


def days_of(year: int, month: int, day: int) -> int:
    """Return the days from 1970-01-01 to the date; the inverse of `civil_date`."""
    era, year_of_era = divmod(year - (month <= 2), 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return (
        era * DAYS_PER_ERA
        + 365 * year_of_era
        + year_of_era // 4
        - year_of_era // 100
        + day_of_year
        - DAYS_FROM_ERA_START
    )


@lru_cache(DATES_REMEMBERED)
def date_text(days: int) -> tuple[str, str]:
    """Return the date in ISO form, and the suffix for the very end: " BC" or empty."""
    year, month, day = civil_date(days)
    if year > 0:
        return f"{year:04d}-{month:02d}-{day:02d}", ""
    return f"{1 - year:04d}-{month:02d}-{day:02d}", " BC"


def clock_text(usecs: int) -> str:
    """Return a time of day, without trailing zeros in its fraction."""
    seconds, fraction = divmod(usecs, USECS_PER_SECOND)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def zone_text(seconds_east: int) -> str:
    """Return a UTC offset: hours, and minutes and seconds if they are not zero."""
    minutes, second = divmod(abs(seconds_east), 60)
    hour, minute = divmod(minutes, 60)
    text = f"{'-' if seconds_east < 0 else '+'}{hour:02d}"
    if minute or second:
        text += f":{minute:02d}"
    return f"{text}:{second:02d}" if second else text


def parse_date(text: str) -> int:
    """Return the days since 1970-01-01 of an ISO date, which may end in " BC"."""
    found = DATE.match(text)
    if found is None:
        raise ValueError(f"not a date: {text!r}")
    year = int(found[1])
    return days_of(1 - year if text.endswith(" BC") else year, int(found[2]), int(found[3]))


def parse_clock(text: str) -> int:
    """Return the microseconds since midnight of a time of day; ignore a zone after it."""
    found = CLOCK.match(text)
    if found is None:
        raise ValueError(f"not a time of day: {text!r}")
    fraction = int((found[4] or "").ljust(6, "0"))
    seconds = (int(found[1]) * 60 + int(found[2])) * 60 + int(found[3])
    return seconds * USECS_PER_SECOND + fraction


def parse_zone(text: str) -> int:
    """Return the seconds east of UTC in `text`, the part after a clock time; zero if it has no zone."""
    found = ZONE.match(text)
    if found is None:
        return 0
    seconds = (int(found[2]) * 60 + int(found[3] or 0)) * 60 + int(found[4] or 0)
    return -seconds if found[1] == "-" else seconds
