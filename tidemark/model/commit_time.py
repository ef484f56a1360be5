"""Commit times by the server's clock: microseconds since 1970-01-01 UTC. Clocks can go back, LSNs cannot."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, parse_lsn

USECS_PER_MILLISECOND = 1_000
NSECS_PER_USEC = 1000
USECS_PER_SECOND = 1_000_000
USECS_PER_MINUTE = 60 * USECS_PER_SECOND
USECS_PER_HOUR = 60 * USECS_PER_MINUTE
USECS_PER_DAY = 24 * USECS_PER_HOUR
MSECS_PER_SECOND = 1_000
SECONDS_PER_DAY = 86_400
PG_EPOCH_US = 946_684_800_000_000  # PostgreSQL's epoch, 2000-01-01, in microseconds since 1970-01-01
UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_MICROSECOND = timedelta(microseconds=1)


class InvalidTime(ConfigError):
    """Text that is not a time."""

    hint = "write a time as in ISO 8601, with its zone: 2026-11-22T14:00:00+01:00, or ending in Z for UTC"


@dataclass(frozen=True, slots=True, order=True)
class CommitTime:
    """A time of the server's clock."""

    us: int

    def __str__(self) -> str:
        try:
            return (UNIX_EPOCH + self.us * _MICROSECOND).isoformat().replace("+00:00", "Z")
        except OverflowError:
            return f"{self.us} microseconds after 1970"

    def earlier_by(self, seconds: int) -> "CommitTime":
        """Return the time earlier by the given duration."""
        return CommitTime(self.us - seconds * 1_000_000)


def parse_commit_time(text: str) -> CommitTime:
    """Parse a time such as `2026-11-22T14:00:00Z`; raise `InvalidTime` for anything else."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTime(f"neither an LSN nor a time: {text!r}") from None
    if parsed.tzinfo is None:
        raise InvalidTime(f"{text!r} has no time zone")
    return CommitTime((parsed - UNIX_EPOCH) // _MICROSECOND)


def parse_lsn_or_time(text: str) -> Lsn | CommitTime:
    """Parse an end of a range: an LSN or a time; raise `ConfigError`."""
    return parse_lsn(text) if "/" in text else parse_commit_time(text)
