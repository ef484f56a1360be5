"""The first copies of the tables: their progress, the requested copies, and the selection that lists the tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from tidemark.model.lsn import INVALID_LSN, NO_TIMELINE, Lsn, TimelineId
from tidemark.model.position import Position
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.values import NO_SCHEMA_VERSION


class CopyPhase(Enum):
    """The progress of a table's first copy."""

    WAITING = "waiting"  # selected, not started
    COPYING = "copying"  # if it is killed, it starts again as the next generation
    DONE = "done"  # captured whole: copied, or captured since its creation
    LEFT = "left"  # not selected any more: copied again if it is selected again
    PARTIAL = "partial"  # selected late and not copied: only its changes since then are captured
    REFUSED = "refused"  # its existing rows do not fit into `copy.spool_bytes`: only its changes are captured


class DueNotice(Enum):
    """What the stream has yet to report of the capture of a table."""

    NONE = "none"
    ENDS = "ends"
    BEGINS = "begins"
    ENDS_AND_BEGINS = "ends_and_begins"  # changes between were not delivered

    @property
    def after_leave(self) -> "DueNotice":
        """Return what is to be reported of a table that has left the selection, if this was due before."""
        return _AFTER_LEAVE.get(self, self)

    @property
    def after_return(self) -> "DueNotice":
        """Return what is to be reported of a table that has returned without a copy, if this was due before."""
        return _AFTER_RETURN.get(self, self)


_AFTER_LEAVE = {DueNotice.BEGINS: DueNotice.NONE, DueNotice.ENDS_AND_BEGINS: DueNotice.ENDS}
_AFTER_RETURN = {DueNotice.NONE: DueNotice.BEGINS, DueNotice.ENDS: DueNotice.ENDS_AND_BEGINS}


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The first copy of one table; its snapshot decides which streamed changes are delivered."""

    phase: CopyPhase
    generation: int
    snapshot: str = ""  # text form of a `Visibility`
    lx: Lsn = INVALID_LSN
    row_count: int = 0
    after_lsn: Lsn = INVALID_LSN  # the copy starts once everything up to here is delivered as changes
    seen_lsn: Lsn = INVALID_LSN  # everything that snapshot or catalogs showed is before it; 0: not recorded, use `lx`
    timeline: TimelineId = NO_TIMELINE  # of `seen_lsn`
    refused_name: str = ""  # of the table, with its database, when its copy was refused last; for people
    capture: DueNotice = DueNotice.NONE
    left_as: SchemaVersion = NO_SCHEMA_VERSION  # of a table that has left the selection: as it was delivered last

    def is_due(self, delivered_lsn: Lsn) -> bool:
        """Return whether the table must be copied once all commits up to `delivered_lsn` are delivered."""
        return self.is_open and self.after_lsn <= delivered_lsn

    def may_show_from(self, fork_lsn: Lsn) -> bool:
        """Return whether the snapshot may show data written at or after a fork.

        NB: `lx` is determined once for many tables, so a snapshot may be hours younger.
        """
        return self.lx >= fork_lsn or self.seen_lsn > fork_lsn

    @property
    def shown_to(self) -> Position | None:
        """Return the last position that the copy may contain; None if it was not recorded."""
        return _shown_to(self.timeline, self.seen_lsn)

    def without_snapshot(self) -> "CopyProgress":
        """Return it without its snapshot: then it hides no streamed change."""
        return replace(self, snapshot="", seen_lsn=INVALID_LSN, timeline=NO_TIMELINE)

    @property
    def is_open(self) -> bool:
        """Return whether the table must still be copied."""
        return self.phase in (CopyPhase.WAITING, CopyPhase.COPYING)

    @property
    def begins(self) -> bool:
        """Return whether this is the begin of a generation, before its rows."""
        return self.phase is CopyPhase.COPYING and self.row_count == 0


@dataclass(frozen=True, slots=True)
class Recopy:
    """A table that an operator wants copied again (`cdcctl table recopy`); kept until the copy is done."""

    name: str  # at the time of the request, for people
    requested_at_us: int  # wall clock
    after_lsn: Lsn  # the table is not copied before everything up to here is delivered
    generation: int  # the latest one at the time of the request; a later one fulfils it
    is_queued: bool = False  # `CopyProgress` lists the table as one to be copied
    phase_before: CopyPhase | None = None  # of `CopyProgress` when it was queued; None: the copy was due anyway
    put_off: int = 0  # how often the copy was queued but did not start, because older transactions were open
    failed: str = ""  # why the table cannot be copied; the request has ended and is kept for display


@dataclass(frozen=True, slots=True)
class Recopies:
    """The requested copies, by `DATABASE/RELATION` (OIDs)."""

    tables: Mapping[str, Recopy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The configured selection of the delivered changes, and how far the catalogs were read that listed its tables."""

    selection: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seen_lsn: Lsn = INVALID_LSN  # everything that the catalogs showed is before it; 0: not recorded
    timeline: TimelineId = NO_TIMELINE  # of `seen_lsn`
    shown: Mapping[str, str] = field(default_factory=dict)  # snapshots of the first list, by the databases' OIDs

    @property
    def shown_to(self) -> Position | None:
        """Return the last position that the catalogs may have shown; None if it was not recorded."""
        return _shown_to(self.timeline, self.seen_lsn)


def _shown_to(timeline: TimelineId, seen_lsn: Lsn) -> Position | None:
    return Position(timeline, Lsn(seen_lsn - 1), 0) if timeline and seen_lsn else None
