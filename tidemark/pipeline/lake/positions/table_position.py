"""The position of one table in a lake: what its log and its replica contain, and in which state they are.

The positions table has a row for each (`position_rows`).
"""

from dataclasses import dataclass
from enum import Enum

from tidemark.model.change import NO_COMMIT_TIME
from tidemark.model.lsn import Oid
from tidemark.model.position import Position, Sequence
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.lake.faults import UNTOUCHED, FaultKind, LakeEntry, LogBreak


class TableState(Enum):
    """The state of a table's replica."""

    LIVE = "live"
    COPYING = "copying"  # the first copy has not ended
    BLOCKED = "blocked"  # a change did not identify its row: log only, no replica
    DROPPED = "dropped"  # at the source; log and replica are kept
    STALE = "stale"  # blocked, with an earlier replica that is kept unchanged
    STOPPED = "stopped"  # a property restricts writes to log or replica
    DIVERGED = "diverged"  # another writer changed log or replica, it is damaged, or it was paused for too long
    PAUSED = "paused"  # writes to log or replica failed


@dataclass(frozen=True, slots=True)
class TablePosition:
    """The position of one table."""

    database: Oid
    relation: Oid
    namespace: str
    name: str
    folder: str
    state: TableState
    sequence: Sequence
    position: Position
    generation: int = 0
    log: LakeEntry = UNTOUCHED
    replica: LakeEntry = UNTOUCHED
    breaks: tuple[LogBreak, ...] = ()
    pinned: Relation | None = None  # the version whose columns log and replica keep, with schema_policy = "ignore"
    dropped_us: int = NO_COMMIT_TIME  # the commit time of its DROP; NO_COMMIT_TIME: it exists, or that is not known
    settings: str = ""  # with which the pipeline writes the table (`LakeTableConfig.contents`); "": not recorded

    @property
    def qualified_name(self) -> str:
        """Return the table's name in messages and commands."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def is_at_rest(self) -> bool:
        """Return whether the table was dropped, and log and replica contain everything: its row does not change."""
        faults = (self.log.fault, self.replica.fault)
        is_complete = all(fault is None or fault.kind is FaultKind.EXCLUDED for fault in faults)
        return self.state is TableState.DROPPED and is_complete

    @property
    def log_version(self) -> int:
        """Return the version of the log; -1 if it does not exist."""
        return self.log.recorded.version

    @property
    def replica_version(self) -> int:
        """Return the version of the replica; -1 if it does not exist."""
        return self.replica.recorded.version


TableId = tuple[Oid, Oid]
"""Database and relation."""


def applied_of(known: TablePosition | None) -> Applied:
    """Return what the positions table records of a table as applied."""
    return Applied(known.sequence, known.position, known.generation) if known else NOTHING
