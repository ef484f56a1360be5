"""Reads of several values of the state in one transaction: the frequent ones (`StateMarks`), or all (`StateView`)."""

from dataclasses import dataclass, replace

from tidemark.io.state.reader_holds import required_readers
from tidemark.model.incarnation import Extent
from tidemark.model.lsn import Oid
from tidemark.model.mode import Role, Stage
from tidemark.model.position import Pointer, Position
from tidemark.wire.state.copy_progress import CopyProgress, Fingerprint, Recopies
from tidemark.wire.state.event_logs import LossLog, RewindLog, SwitchLog
from tidemark.wire.state.history_index import HistoryIndex, JournalMark
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.readers import Reader
from tidemark.wire.state.values import Beginning, Followed, HandOver, Identity, Overtaken, Term, Watermark


@dataclass(frozen=True, slots=True)
class StateMarks:
    """The positions and the stage, read in one transaction: the values that are read frequently."""

    stage: Stage
    term: Term | None
    delivered: Watermark | None
    confirmed: Watermark | None
    ledger: OutboxLedger
    readers: dict[str, Reader]
    damaged_readers: frozenset[str]
    followed: Followed | None
    overtaken: Overtaken | None

    @property
    def start(self) -> Pointer | None:
        """Where a restart continues: the delivered pointer, or the followed one of a follower."""
        if self.stage is Stage.FOLLOWER and self.followed is not None:
            return self.followed.pointer
        return self.delivered.pointer if self.delivered else None

    @property
    def extent(self) -> Extent:
        """The extent of this state, for comparison with a copy of it."""
        epoch = self.term.epoch if self.term is not None else None
        return Extent(epoch, self.delivered.pointer.position if self.delivered is not None else None)

    def is_fenced_by_own(self, role: Role) -> bool:
        """Return whether another process of the role owns the epoch and delivers; otherwise the epoch has ended.

        Between two checks of a process, the other daemon may have taken over delivery and returned it.
        """
        owner = self.term.owner if self.term is not None else None
        return self.stage.deliverer is role and owner is not None and owner.role == role.value

    @property
    def horizon(self) -> Watermark | None:
        """The confirmed watermark; without required readers, the delivered one (docs/design/positions.md).

        A follower's readers have nothing to confirm: its delivered pointer is what the deliverer's readers have
        confirmed. After a rewind the restart LSN may be lower than that of the confirmed dead branch.
        """
        if not required_readers(self.readers) or self.stage is Stage.FOLLOWER:
            return self.delivered
        if self.confirmed is None or self.delivered is None:
            return self.confirmed
        pointer = self.confirmed.pointer
        restart_lsn = min(pointer.restart_lsn, self.delivered.pointer.restart_lsn)
        return replace(self.confirmed, pointer=replace(pointer, restart_lsn=restart_lsn))


@dataclass(frozen=True, slots=True)
class StateView(StateMarks):
    """All small values, read in one transaction; their size grows with the number of tables."""

    identity: Identity
    beginning: Beginning | None
    history: HistoryIndex
    journal: JournalMark
    copies: dict[tuple[Oid, Oid], CopyProgress]
    recopies: Recopies
    fingerprint: Fingerprint | None
    hand_over: HandOver
    switches: SwitchLog
    losses: LossLog
    rewinds: RewindLog

    @property
    def planned_to(self) -> Position | None:
        """Return the last position at which the found set of tables to copy may be valid; None: not recorded."""
        return self.fingerprint.shown_to if self.fingerprint is not None else None
