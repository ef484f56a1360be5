"""The registered readers of the outbox."""

from dataclasses import dataclass
from enum import Enum

from tidemark.model.lsn import INVALID_LSN, Lsn
from tidemark.model.position import NO_SEQUENCE, Sequence


class ReaderKind(Enum):
    """What a reader belongs to."""

    UNSTATED = "unstated"  # an earlier version registered it; the next use states the kind
    PIPELINE = "pipeline"  # `cdcctl spark run`
    QUERY = "query"  # a user's streaming query


@dataclass(frozen=True, slots=True)
class Reader:
    """A registered reader: what its targets have, and what it can request again (docs/design/positions.md)."""

    applied: Sequence
    replayable: Sequence  # values up to here are never requested again
    confirmed_at_us: int  # wall clock, for people only
    is_required: bool = True  # it counts for the confirmed position, and never lapses
    lapsed_at_us: int = 0  # wall clock; 0: not lapsed. The outbox keeps no values for a lapsed reader
    lapsed_lsn: Lsn = INVALID_LSN  # commit LSN of the first value that it had not confirmed when it lapsed
    skipped_from: Sequence = NO_SEQUENCE  # (skipped_from, skipped_to] were gone when the reader was resumed
    skipped_to: Sequence = NO_SEQUENCE
    adoptions: int = 0  # how often it went back to the position of a restored lake; part of its checkpoint's name
    kind: ReaderKind = ReaderKind.UNSTATED
    run: int = 0  # number of the newest run of its query, which alone may confirm; 0: no run has a number
    registered_after: Sequence = NO_SEQUENCE  # values up to here had been trimmed; 0 also if it is not recorded

    @property
    def is_lapsed(self) -> bool:
        """Return whether the reader held too much of the outbox."""
        return self.lapsed_at_us > 0

    @property
    def has_confirmed(self) -> bool:
        """Return whether the reader has confirmed a value since it was registered."""
        return self.applied > self.registered_after

    def start(self, after: Sequence) -> Sequence:
        """Return where a reader that is at `after` continues: behind the values that it skipped."""
        return self.skipped_to if self.skipped_from <= after < self.skipped_to else after

    @property
    def trimmable(self) -> Sequence:
        """The last value that this reader no longer needs; it needs none before it either."""
        return min(self.applied, self.replayable)


READER_NAME_BYTES_MAX = 63


def is_reader_name(name: str) -> bool:
    """Return whether `name` is a valid reader name: 1 to 63 ASCII letters, digits, `-`, `_`, `.`."""
    return 0 < len(name) <= READER_NAME_BYTES_MAX and all(c.isascii() and (c.isalnum() or c in "-_.") for c in name)
