"""The tables that have left the selection: the last event of each is its DROP.

Without it the log and the replica of a dropped table, and the progress of its copy in the state, would never be
removed. Nothing else of such a table is delivered, so the event describes it as it was delivered last.
"""

from collections.abc import Mapping
from dataclasses import replace

from tidemark.decode.groups.partitions import RoutedItem, has_rows
from tidemark.decode.transactions.schema_changes import UncapturedDrop
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation


def left_version(event: SchemaEvent) -> Relation:
    """Return the version that describes a table after the event by which it leaves the selection.

    The database of the table may have left, or a partitioned table may have no rows of its own from then on: then the
    version before describes the delivered ones.
    """
    before, after = event.before, event.after
    if after is None or (before is not None and before.has_partition_rows and not after.has_partition_rows):
        assert before is not None, "the table was delivered"
        return before
    return after


class LeftTables:
    """Follows a stream of events."""

    def __init__(self, tables: Mapping[tuple[Oid, Oid], Relation]) -> None:
        """`tables`: those that left before the stream, by database and OID, as they were delivered last."""
        self._tables = dict(tables)

    def follow(self, event: SchemaEvent) -> None:
        """Record a delivered event."""
        table = event.after or event.before
        assert table is not None, "an event describes a table"
        if event.capture is CaptureChange.ENDS:
            version, key = left_version(event), (event.database, table.oid)
            if has_rows(version) or key not in self._tables:  # the database of one that is no root any more may leave
                self._tables[key] = version
        elif event.after is None or has_rows(event.after):  # one that is no root any more may be described further
            self._tables.pop((event.database, table.oid), None)

    def drop(self, item: RoutedItem | UncapturedDrop) -> SchemaEvent | None:
        """Return the DROP to be delivered if `item`, of an unselected table, is the DROP of one of these."""
        if not self._tables:
            return None
        if isinstance(item, UncapturedDrop):
            delivered = self._tables.pop((item.database, item.relation), None)
            return _drop_of(item, delivered) if delivered is not None else None
        if not isinstance(item, SchemaEvent) or item.change is not SchemaChange.DROP:
            return None
        if item.still_exists or item.capture is CaptureChange.ENDS:  # unlogged, attached, or with its database
            return None
        assert item.before is not None, "a DROP describes what is dropped"
        delivered = self._tables.pop((item.database, item.before.oid), None)
        return replace(item, before=delivered) if delivered is not None else None


def _drop_of(item: UncapturedDrop, delivered: Relation) -> SchemaEvent:
    return SchemaEvent(
        position=item.position,
        lsn=item.lsn,
        database=item.database,
        xid=item.xid,
        change=SchemaChange.DROP,
        effect=SchemaEffect.METADATA,
        before=delivered,
        after=None,
        commit_time_us=item.commit_time_us,
    )
