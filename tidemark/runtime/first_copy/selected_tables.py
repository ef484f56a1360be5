"""Tracks which tables are captured completely, by the stream's schema events.

A table that RENAME, SET SCHEMA or ALTER SCHEMA RENAME brings into the selection has rows that were never delivered; so
has a table of a whole database that was copied from a template or renamed into the selection. The transaction that
stores the group, or the consumer's confirmation of it, records this; the next start copies the table. The copy does not
start at once: that would need a restart, which requests WAL from the restart LSN again. The operator of the sidecar
chooses the time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidemark.engine.selection import Selection
from tidemark.io.host.logs import Log
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import ChangeGroup, PartitionChange, PartitionEvent, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, DueNotice

COPIED_KIND = "r"  # pg_class.relkind: relations with rows
PhaseChange = tuple[
    Oid, Oid, CopyPhase | None
]  # database, relation, the copy's phase from now on; None: the table is dropped


class SelectedTables:
    """Finds tables that a group creates, drops or moves into or out of the selection, and records them in the state."""

    def __init__(self, selection: Selection, *, copying: bool, log: Log) -> None:
        """Follow `selection`; `copying`: existing rows are wanted."""
        self._selection = selection
        self._copying = copying
        self._log = log

    def record(self, transaction: StateTransaction, groups: Sequence[ChangeGroup]) -> None:
        """Record in an open transaction what the groups' schema events changed."""
        for database, relation, phase in (change for group in groups for change in self._phase_changes(group)):
            if phase is None:
                transaction.drop_copy(database, relation)
                continue
            known = transaction.copy(database, relation) or CopyProgress(phase, 0)
            if phase is CopyPhase.PARTIAL and known.phase is CopyPhase.REFUSED:
                phase = known.phase  # noqa: PLW2901 - its rows are to be copied once they fit
            transaction.put_copy(database, relation, replace(known, phase=phase, capture=DueNotice.NONE))
            if phase is CopyPhase.WAITING:
                self._log.warning(
                    "a table was added to the selection; its rows are copied at the next start",
                    database_oid=database,
                    relation_oid=relation,
                )

    def _phase_changes(self, group: ChangeGroup) -> Iterator[PhaseChange]:
        for event in group.items:
            if isinstance(event, SchemaEvent):
                described = event.after or event.before
                if described is not None and (described.kind == COPIED_KIND or described.has_partition_rows):
                    yield from ((event.database, described.oid, phase) for phase in self._phases(event))
            elif isinstance(event, PartitionEvent) and event.change is PartitionChange.ATTACH:
                # The partitioned table now has rows that were never delivered under its name.
                yield event.database, event.relation.oid, self._unknown(event.relation)

    def _phases(self, event: SchemaEvent) -> Sequence[CopyPhase | None]:
        """Return the phase that the event moves its table to, or none if it moves no table."""
        if event.after is None:
            return (None,)
        if event.is_of_capture:
            return (CopyPhase.PARTIAL if event.capture is CaptureChange.BEGINS else CopyPhase.LEFT,)
        was, now = self._selects(event.before), self._selects(event.after)
        if event.effect is SchemaEffect.UNSEEN:  # it came with a whole database, and may have rows
            return (self._unknown(event.after),) if now else ()
        if event.before is None:
            whole = self._unknown(event.after) if event.brings_rows else CopyPhase.DONE
            return (whole,) if now else ()
        if was == now:
            return ()
        return (self._unknown(event.after),)

    def _unknown(self, relation: Relation) -> CopyPhase:
        """Return the phase of a table of which not all rows were delivered."""
        if not self._selects(relation):
            return CopyPhase.LEFT
        return CopyPhase.WAITING if self._copying else CopyPhase.PARTIAL

    def _selects(self, relation: Relation | None) -> bool:
        return relation is not None and self._selection.selects(relation)
