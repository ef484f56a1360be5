"""The extent of the outbox: sequences and bytes."""

from dataclasses import dataclass, field

from tidemark.model.lsn import INVALID_LSN, Lsn
from tidemark.model.position import NO_SEQUENCE, Sequence


@dataclass(frozen=True, slots=True)
class ByteMark:
    """How many bytes had been written to the outbox, since it exists, at a group end."""

    sequence: Sequence
    written_bytes: int


@dataclass(frozen=True, slots=True)
class OutboxLedger:
    """The extent of the outbox: sequences trimmed+1..head, and their bytes."""

    head: Sequence = NO_SEQUENCE
    trimmed: Sequence = NO_SEQUENCE
    byte_count: int = 0
    # Not compared: a ledger that is counted again has neither marks nor what was trimmed.
    written_bytes: int = field(default=0, compare=False)  # at the head, since the outbox exists
    marks: tuple[ByteMark, ...] = field(default=(), compare=False)  # ascending, after `trimmed`
    trimmed_lsn: Lsn = field(default=INVALID_LSN, compare=False)  # of value `trimmed`; invalid: it is not known
    trimmed_time_us: int = field(default=0, compare=False)  # its commit time; 0: it has none, or it is not known

    def bytes_between(self, after: Sequence, upto: Sequence) -> int:
        """Return how many bytes the values of (after, upto] have at least: exact to the distance of two marks."""
        ends = ByteMark(self.trimmed, self.written_bytes - self.byte_count), ByteMark(self.head, self.written_bytes)
        known = [ends[0], *self.marks, ends[1]]
        least = max((mark.written_bytes for mark in known if mark.sequence <= upto), default=0)
        most = min((mark.written_bytes for mark in known if mark.sequence >= after), default=least)
        return max(0, least - most)
