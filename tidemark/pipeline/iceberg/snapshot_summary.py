"""The position of a table in the summaries of its snapshots, and the snapshots of other writers.

Each snapshot of Tidemark records the position up to which the table contains all changes; the properties of the table
repeat it, in the same commit. Iceberg itself checks nothing of that: the position is read from the snapshot on which
the next one is made.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from tidemark.model.errors import ConsumerFailed, Disposition
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import NOTHING, POSITION, Applied

APP = "tidemark.app"
_NUMBERS = ("sequence", "timeline", "lsn", "ordinal", "generation", "copy")


class IcebergTableChanged(ConsumerFailed):
    """Another writer changed the rows of a table, or the table is not the one that was written."""

    disposition = Disposition.HALT
    hint = "roll the table back to the last snapshot of Tidemark, or write to a new lake and copy the tables again"


def summary_of(app: str, applied: Applied) -> dict[str, str]:
    """Return the properties of a snapshot after which a table contains all changes up to `applied`."""
    at = applied.position
    numbers = (applied.sequence, at.timeline, at.commit_lsn, at.ordinal, applied.generation, applied.copy_sequence)
    named = {f"tidemark.{name}": str(number) for name, number in zip(_NUMBERS, numbers, strict=True)}
    return {APP: app, POSITION: str(at), **named}


def applied_of(summary: Mapping[str, str]) -> Applied:
    """Return the position in a summary that `summary_of` made."""
    sequence, timeline, lsn, ordinal, generation, copy = (int(summary[f"tidemark.{name}"]) for name in _NUMBERS)
    position = Position(TimelineId(timeline), Lsn(lsn), ordinal)
    return Applied(OutboxSequence(sequence), position, generation, OutboxSequence(copy))


def is_own(snapshot: Snapshot, app: str) -> bool:
    """Return whether a snapshot was made for `app`."""
    return snapshot.summary is not None and snapshot.summary.additional_properties.get(APP) == app


@dataclass(frozen=True, slots=True)
class RecordedSnapshot:
    """The snapshot of a table at the last write of the lake's positions, and the position of its last change."""

    id: int
    position: Position


def read_applied(table: Table, app: str, recorded: RecordedSnapshot | None) -> Applied:
    """Return the position of a table, checked against the snapshot that was recorded last.

    Raise `IcebergTableChanged` if another writer changed rows since, or if the recorded snapshot is no longer part of
    the table. Maintenance (`replace`) changes no rows, and may let earlier snapshots expire: the table's properties
    repeat the position.
    """
    applied: Applied | None = None
    is_known = recorded is None
    parent: int | None = None
    for snapshot in lineage(table):
        parent = snapshot.parent_snapshot_id
        if applied is None:
            if is_own(snapshot, app):
                assert snapshot.summary is not None
                applied = applied_of(snapshot.summary.additional_properties)
            elif snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
                _raise_changed(table, snapshot)
        is_known = is_known or (recorded is not None and snapshot.snapshot_id == recorded.id)
        if applied is not None and is_known:
            return applied
    has_expired = parent is not None
    if applied is None:
        if table.current_snapshot() is None and recorded is None:
            return NOTHING
        if not has_expired or table.properties.get(APP) != app:
            _raise_lost(table, recorded)
        applied = applied_of(table.properties)
    if recorded is not None and not is_known and not (has_expired and applied.position >= recorded.position):
        _raise_lost(table, recorded)
    return applied


def _raise_lost(table: Table, recorded: RecordedSnapshot | None) -> NoReturn:
    which = f"the snapshot {recorded.id}, which was written last" if recorded is not None else "a snapshot of Tidemark"
    raise IcebergTableChanged(
        f"{'.'.join(table.name())} does not contain {which}: it was rolled back, recreated or restored from a copy"
    )


def _raise_changed(table: Table, snapshot: Snapshot) -> NoReturn:
    what = snapshot.summary.operation.value if snapshot.summary is not None else "an unknown operation"
    raise IcebergTableChanged(
        f"{'.'.join(table.name())} was changed by another writer: snapshot {snapshot.snapshot_id} ({what})"
    )


def lineage(table: Table) -> Iterator[Snapshot]:
    """Yield the snapshots of a table from the present one back to the first that has not expired."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
