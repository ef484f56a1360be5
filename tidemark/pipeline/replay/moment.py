"""The moment of a replay: an LSN or a time, with the rules of PostgreSQL's recovery targets.

An LSN includes the transactions whose commit record begins before it, as `recovery_target_lsn` with
`recovery_target_inclusive = off`. A time includes the transactions before the first one, in the order of commit
records, that committed after it, as `recovery_target_time`. Commit records are not in the order of their times, so a
transaction with an earlier time that follows that first one is not included.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.change import NO_COMMIT_TIME
from tidemark.model.commit_time import CommitTime
from tidemark.model.lsn import INVALID_LSN, Lsn, format_lsn
from tidemark.pipeline.lake.positions.positions import Positions


@dataclass(frozen=True, slots=True)
class LsnMoment:
    """A moment by LSN."""

    lsn: Lsn

    def __str__(self) -> str:
        return format_lsn(self.lsn)

    def is_before(self, lsn: Lsn, _time_us: int) -> bool:
        """Return whether a transaction is after the moment."""
        return lsn >= self.lsn

    def shows_copy(self, seen_lsn: Lsn, _seen_time_us: int) -> bool:
        """Return whether a copy, whose snapshot was taken before both, is before the moment."""
        return seen_lsn != INVALID_LSN and seen_lsn <= self.lsn

    @property
    def later_rows(self) -> pc.Expression:
        """Return the condition for rows of a log after the moment."""
        return pc.field("_commit_lsn") >= self.lsn

    def is_reached(self, positions: Positions) -> bool:
        """Return whether the lake contains all transactions before the moment."""
        return positions.applied.position.commit_lsn >= self.lsn


@dataclass(frozen=True, slots=True)
class TimeMoment:
    """A moment by the time of commits, in the clock of the node."""

    time: CommitTime

    def __str__(self) -> str:
        return str(self.time)

    def is_before(self, _lsn: Lsn, time_us: int) -> bool:
        """Return whether a transaction is after the moment; one without a time counts as the one before it."""
        return time_us > self.time.us

    def shows_copy(self, _seen_lsn: Lsn, seen_time_us: int) -> bool:
        """Return whether a copy, whose snapshot was taken before both, is before the moment."""
        return seen_time_us != NO_COMMIT_TIME and seen_time_us <= self.time.us

    @property
    def later_rows(self) -> pc.Expression:
        """Return the condition for rows of a log after the moment."""
        return pc.field("_commit_time") > pa.scalar(self.time.us, pa.timestamp("us", tz="UTC"))

    def is_reached(self, positions: Positions) -> bool:
        """Return whether the lake contains a transaction after the moment: only then has it all before it."""
        return positions.newest_commit_us > self.time.us


@dataclass(frozen=True, slots=True)
class EndOfLake:
    """The moment after everything that the lake contains."""

    later_rows = pc.scalar(value=False)

    def __str__(self) -> str:
        return "the end of the lake"

    def is_before(self, _lsn: Lsn, _time_us: int) -> bool:
        """Return that no transaction is after the moment."""
        return False

    def shows_copy(self, seen_lsn: Lsn, _seen_time_us: int) -> bool:
        """Return whether it is recorded what a copy shows."""
        return seen_lsn != INVALID_LSN

    def is_reached(self, _positions: Positions) -> bool:
        """Return that the lake contains all transactions before the moment."""
        return True


Moment = LsnMoment | TimeMoment | EndOfLake


def moment_of(at: Lsn | CommitTime) -> Moment:
    """Return the moment that an operator names."""
    return TimeMoment(at) if isinstance(at, CommitTime) else LsnMoment(at)
