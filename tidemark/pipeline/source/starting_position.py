"""The option `startingPosition`: where a new reader begins in the outbox."""

import re
from dataclasses import dataclass
from typing import Self

from tidemark.io.readers.outbox import OutboxTrimmed
from tidemark.model.commit_time import CommitTime, parse_commit_time
from tidemark.model.lsn import Lsn, format_lsn, parse_lsn
from tidemark.model.position import Sequence
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.wire.state.outbox_ledger import OutboxLedger

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
        ledger = outbox.ledger()
        if self.text == EARLIEST:
            return ledger.trimmed
        if self.text == LATEST:
            return ledger.head
        before = ledger.trimmed
        for end in outbox.group_ends(before):
            if isinstance(self.reached, CommitTime) and not end.commit_time_us:
                continue  # of a copy, or of a transaction that ends in a later group: as late as the next group
            if self._is_reached(end.pointer.position.commit_lsn, end.commit_time_us):
                break
            before = end.sequence
        if before == ledger.trimmed > 0:
            self._check_complete(ledger)
        return before

    def _check_complete(self, ledger: OutboxLedger) -> None:
        """Raise `OutboxTrimmed` unless all values that were trimmed are before this position."""
        newest = f"value {ledger.trimmed}, the newest that was removed,"
        is_time = isinstance(self.reached, CommitTime)
        hint = f"use startingPosition {EARLIEST} or {LATEST}, or a later one"
        if not (ledger.trimmed_time_us if is_time else ledger.trimmed_lsn):
            kind = "time" if is_time else "LSN"
            raise OutboxTrimmed(
                f"it is unknown whether the outbox has all changes since {self.text}: "
                f"the {kind} of {newest} is not known",
                hint=hint,
            )
        if self._is_reached(ledger.trimmed_lsn, ledger.trimmed_time_us):
            at = f" at {CommitTime(ledger.trimmed_time_us)}" if is_time else ""
            raise OutboxTrimmed(
                f"the outbox no longer has all changes since {self.text}: "
                f"{newest} has the LSN {format_lsn(ledger.trimmed_lsn)}{at}",
                hint=hint,
            )

    def _is_reached(self, lsn: Lsn, commit_time_us: int) -> bool:
        if isinstance(self.reached, CommitTime):
            return commit_time_us >= self.reached.us
        return self.reached is not None and lsn >= self.reached


FROM_EARLIEST = StartingPosition(EARLIEST)
