"""The option `startingPosition`: where a new reader begins in the outbox."""

import re
from dataclasses import dataclass
from typing import Self

from tidemark.io.readers.outbox import OutboxTrimmed
from tidemark.model.commit_time import CommitTime, parse_commit_time
from tidemark.model.lsn import Lsn, format_lsn, parse_lsn
from tidemark.model.position import Sequence
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.wire.values import ValueHeader

EARLIEST = "earliest"
LATEST = "latest"
_LSN = re.compile(r"[0-9A-Fa-f]+/[0-9A-Fa-f]+")


@dataclass(frozen=True, slots=True)
class StartingPosition:
    """`earliest`, `latest`, or the first group of the outbox that reaches an LSN or a commit time."""

    text: str
    reached: Lsn | CommitTime | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the option; raise `InvalidLsn` or `InvalidTime` if it is none of the four forms."""
        if text in (EARLIEST, LATEST):
            return cls(text)
        return cls(text, parse_lsn(text) if _LSN.fullmatch(text) else parse_commit_time(text))

    def find(self, outbox: OutboxPort) -> Sequence:
        """Return the sequence after which to read; raise `OutboxTrimmed` if earlier values may belong to the range."""
        trimmed, head = outbox.ledger().trimmed, outbox.head()
        if self.text == EARLIEST:
            return trimmed
        if self.text == LATEST:
            return head
        before = trimmed
        for end in outbox.group_ends(trimmed):
            if isinstance(self.reached, CommitTime) and not end.commit_time_us:
                continue  # of a copy, or of a transaction that ends in a later group: as late as the next group
            if self._is_reached(end):
                if before == trimmed > 0:
                    raise OutboxTrimmed(
                        f"the outbox begins at {format_lsn(end.pointer.position.commit_lsn)}, after value {trimmed}: "
                        f"it is unknown whether it contains all changes since {self.text}",
                        hint=f"use startingPosition {EARLIEST}, or a later one",
                    )
                return before
            before = end.sequence
        if before == trimmed > 0:
            return head  # NB: a copy whose begin was trimmed may follow
        return before if isinstance(self.reached, CommitTime) else head

    def _is_reached(self, end: ValueHeader) -> bool:
        if isinstance(self.reached, CommitTime):
            return end.commit_time_us >= self.reached.us
        return self.reached is not None and end.pointer.position.commit_lsn >= self.reached


FROM_EARLIEST = StartingPosition(EARLIEST)
