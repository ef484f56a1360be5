"""Positions in the stream of changes, and the pointer that a restart needs.

A position is (timeline, commit LSN, ordinal): the commit LSN is the *start* of the commit record, the ordinal counts
every item of the transaction in record order, before selection. Positions of one timeline are ordered by
(commit LSN, ordinal). A pointer is a position with its restart LSN: decoding from there misses nothing that commits
after the position. A bare LSN is never stored as a restart point.
"""

from dataclasses import dataclass
from typing import NewType

from tidemark.model.lsn import INVALID_OID, Lsn, Oid, SystemIdentifier, TimelineId, format_lsn

Sequence = NewType("Sequence", int)
"""The number of a value in one outbox; the first is 1, and 0 is before all values."""
NO_SEQUENCE = Sequence(0)


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One database of one cluster; the database 0 means all of them, since pg_database.oid is never 0."""

    system_identifier: SystemIdentifier
    database: Oid = INVALID_OID


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the stream of changes; ordered as Python orders tuples, timeline first."""

    timeline: TimelineId
    commit_lsn: Lsn
    ordinal: int

    def __str__(self) -> str:
        return f"{self.timeline}:{format_lsn(self.commit_lsn)}:{self.ordinal}"


@dataclass(frozen=True, slots=True)
class Pointer:
    """A position together with the LSN from which a restart must decode."""

    position: Position
    restart_lsn: Lsn

    def __post_init__(self) -> None:
        # NB: equal is impossible for a transaction (its commit record is not its first) but usual for a message.
        assert self.restart_lsn >= 0, self


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """A term of delivery: it has one owner and a number within a timeline; also the consumer's fencing token."""

    timeline: TimelineId
    number: int

    def __str__(self) -> str:
        return f"{self.timeline}.{self.number}"
