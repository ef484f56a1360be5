"""The position of a table in the summaries of its snapshots, and the snapshots of other writers.

Each snapshot of Tidemark records the position up to which the table contains all changes. Iceberg itself checks
nothing of that: the position is read from the snapshot on which the next one is made.
"""

from collections.abc import Iterator, Mapping

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
    hint = "roll the table back to its last snapshot of Tidemark, or write to a new lake and copy the tables again"


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


def read_applied(table: Table, app: str, recorded: int | None) -> Applied:
    """Return the position of a table, checked against the snapshot that was recorded last.

    Raise `IcebergTableChanged` if another writer changed rows since, or if the recorded snapshot is no longer part of
    the table. Maintenance (`replace`) changes no rows.
    """
    applied: Applied | None = None
    for snapshot in _lineage(table):
        if applied is None:
            if is_own(snapshot, app):
                assert snapshot.summary is not None
                applied = applied_of(snapshot.summary.additional_properties)
            elif snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
                _raise_changed(table, snapshot)
        if applied is not None and recorded in (None, snapshot.snapshot_id):
            return applied
    if recorded is not None:
        raise IcebergTableChanged(
            f"{'.'.join(table.name())} does not contain the snapshot {recorded}, which was written last: it was rolled "
            "back, recreated or restored from a copy"
        )
    return NOTHING


def _raise_changed(table: Table, snapshot: Snapshot) -> None:
    what = snapshot.summary.operation.value if snapshot.summary is not None else "an unknown operation"
    raise IcebergTableChanged(
        f"{'.'.join(table.name())} was changed by another writer: snapshot {snapshot.snapshot_id} ({what})"
    )


def _lineage(table: Table) -> Iterator[Snapshot]:
    """Yield the snapshots of a table from the present one back to the first that has not expired."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
