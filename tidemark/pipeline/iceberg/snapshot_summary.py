"""The position of a table in the summaries of its snapshots, and the snapshots of other writers.

Each snapshot of Tidemark records the position up to which the table contains all changes; the properties of the table
repeat it, in the same commit. Iceberg itself checks nothing of that: the position is read from the snapshot on which
the next one is made.
"""

from collections.abc import Iterator, Mapping
from typing import NoReturn

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from tidemark.model.errors import ConsumerFailed, Disposition
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import NOTHING, POSITION, Applied
from tidemark.pipeline.lake.positions.table_position import TableId

APP = "tidemark.app"
_ROLL_BACK = (
    "roll the table back to the last snapshot of Tidemark: table.manage_snapshots().rollback_to_snapshot({}).commit() "
    'in pyiceberg (docs/spark.md, "Change logs as Iceberg tables"); the outbox keeps the changes that follow. A new '
    "copy (cdcctl table recopy) does not mend the log"
)
_NUMBERS = ("sequence", "timeline", "lsn", "ordinal", "generation", "copy")


class IcebergTableChanged(ConsumerFailed):
    """Another writer changed the rows of a table, or the table is not the one that was written."""

    disposition = Disposition.HALT
    hint = "write to a new lake and copy the tables again"
    of: TableId | None = None  # the table, in the capture's terms; None: a log of messages, or not known


def summary_of(app: str, applied: Applied) -> dict[str, str]:
    """Return the properties of a snapshot after which a table contains all changes up to `applied`."""
    at = applied.position
    numbers = (applied.sequence, at.timeline, at.commit_lsn, at.ordinal, applied.generation, applied.copy_sequence)
    named = {f"tidemark.{name}": str(number) for name, number in zip(_NUMBERS, numbers, strict=True)}
    return {APP: app, POSITION: str(at), **named}


def applied_of(summary: Mapping[str, str]) -> Applied:
    """Return the position in the output of `summary_of`; `NOTHING` for a table to which nothing was written."""
    if POSITION not in summary:
        return NOTHING
    sequence, timeline, lsn, ordinal, generation, copy = (int(summary[f"tidemark.{name}"]) for name in _NUMBERS)
    position = Position(TimelineId(timeline), Lsn(lsn), ordinal)
    return Applied(OutboxSequence(sequence), position, generation, OutboxSequence(copy))


def is_own(snapshot: Snapshot, app: str) -> bool:
    """Return whether a snapshot was made for `app`."""
    return snapshot.summary is not None and snapshot.summary.additional_properties.get(APP) == app


def read_applied(table: Table, app: str, recorded: Position | None) -> Applied:
    """Return the position of a table, whose changes up to `recorded` were recorded as written; None: it is new.

    Raise `IcebergTableChanged` if another writer changed rows since the last snapshot of Tidemark, or if the table was
    rolled back or replaced by a copy. Maintenance (`replace`) changes no rows, and may let our snapshots expire.
    """
    known = applied_of(table.properties) if table.properties.get(APP) == app else NOTHING
    applied = known if table.current_snapshot() is not None else NOTHING
    for snapshot in lineage(table):
        if is_own(snapshot, app):
            assert snapshot.summary is not None
            applied = applied_of(snapshot.summary.additional_properties)
            break
        if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
            _raise_changed(table, snapshot, app)
    if applied != known or (recorded is not None and applied.position < recorded):
        raise IcebergTableChanged(
            f"{'.'.join(table.name())} contains the changes up to {applied.position} and not those up to "
            f"{recorded or known.position}, which were written: it was rolled back, recreated or restored from a copy"
        )
    return applied


def _raise_changed(table: Table, snapshot: Snapshot, app: str) -> NoReturn:
    what = snapshot.summary.operation.value if snapshot.summary is not None else "an unknown operation"
    own = next((one.snapshot_id for one in lineage(table) if is_own(one, app)), None)
    raise IcebergTableChanged(
        f"{'.'.join(table.name())} was changed by another writer: snapshot {snapshot.snapshot_id} ({what})",
        hint=None if own is None else _ROLL_BACK.format(own),
    )


def lineage(table: Table) -> Iterator[Snapshot]:
    """Yield the snapshots of a table from the present one back to the first that has not expired."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
