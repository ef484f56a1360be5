"""Tracks which tables are captured completely, by the stream's schema events.

A table that RENAME, SET SCHEMA or ALTER SCHEMA RENAME brings into the selection has rows that were never delivered; so
has a table of a whole database that was copied from a template or renamed into the selection. The transaction that
stores the group, or the consumer's confirmation of it, records this; the next start copies the table. The copy does not
start at once: that would need a restart, which requests WAL from the restart LSN again. The operator of the sidecar
chooses the time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from tidemark.decode.groups.left_tables import left_version
from tidemark.decode.groups.partitions import has_rows
from tidemark.engine.selection import Selection
from tidemark.io.host.logs import Log
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import ChangeGroup, PartitionChange, PartitionEvent, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.relation import Relation
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, DueNotice
from tidemark.wire.values import NO_SCHEMA_VERSION


class PhaseChange(NamedTuple):
    """What an event does to the copy of a table."""

    database: Oid
    relation: Oid
    phase: CopyPhase | None  # from now on; None: the table is dropped
    commit_lsn: Lsn
    left_as: Relation | None = None  # the version that was delivered last, if the table has left the selection


class SelectedTables:
    """Finds tables that a group creates, drops or moves into or out of the selection, and records them in the state."""

    def __init__(self, selection: Selection, *, copying: bool, log: Log) -> None:
        """Follow `selection`; `copying`: existing rows are wanted."""
        self._selection = selection
        self._copying = copying
        self._log = log

    def record(self, transaction: StateTransaction, groups: Sequence[ChangeGroup]) -> None:
        """Record in an open transaction what the groups' schema events changed."""
        changes = chain.from_iterable(map(self._phase_changes, groups))
        for database, relation, phase, lsn, left_as in changes:
            if phase is None:
                transaction.drop_copy(database, relation, requested_to=lsn)
                transaction.drop_versions(database, relation)
                continue
            known = transaction.copy(database, relation) or CopyProgress(phase, 0)
            if phase is CopyPhase.PARTIAL and known.phase is CopyPhase.REFUSED:
                phase = known.phase  # noqa: PLW2901 - its rows are to be copied once they fit
            version = NO_SCHEMA_VERSION if left_as is None else transaction.kept_version(database, left_as)
            moved = replace(known, phase=phase, capture=DueNotice.NONE, left_as=version)
            transaction.put_copy(database, relation, moved)
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
                versions = [version for version in (event.before, event.after) if version is not None]
                if described is not None and (event.after is None or any(map(has_rows, versions))):
                    phases = self._phases(event)
                    at_lsn = event.position.commit_lsn
                    for phase in phases:
                        left_as = left_version(event) if phase is CopyPhase.LEFT else None
                        yield PhaseChange(event.database, described.oid, phase, at_lsn, left_as)
            elif isinstance(event, PartitionEvent) and event.change is PartitionChange.ATTACH:
                # The partitioned table now has rows that were never delivered under its name.
                relation, at_lsn = event.relation, event.position.commit_lsn
                yield PhaseChange(event.database, relation.oid, self._unknown(relation), at_lsn)

    def _phases(self, event: SchemaEvent) -> Sequence[CopyPhase | None]:
        """Return the phase that the event moves its table to, or none if it moves no table."""
        if event.after is None:
            return _after_drop(event)
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
        return relation is not None and has_rows(relation) and self._selection.selects(relation)


def _after_drop(event: SchemaEvent) -> Sequence[CopyPhase | None]:
    """Return the phase of a table after its DROP, or after the rename by which its database leaves the selection."""
    if event.capture is not CaptureChange.ENDS:
        return (None,)
    return (CopyPhase.LEFT,) if event.before is not None and has_rows(event.before) else ()
