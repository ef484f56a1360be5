"""A batch of outbox values for the lake, divided by table."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile

from tidemark.decode.groups.left_tables import left_version
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import NO_COMMIT_TIME, CopyBoundary, LogicalMessage, SchemaChange, SchemaEvent
from tidemark.model.lsn import INVALID_OID, Oid
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.relation import PARTITIONED, Relation
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.sinks.steps import Delivered, TableItem, last_position
from tidemark.pipeline.sinks.waiting import StoredItem
from tidemark.wire.items import relation_of

LakeItem = tuple[OutboxSequence, TableItem | LogicalMessage]
"""An item and the sequence of its outbox value."""


@dataclass(frozen=True, slots=True, eq=False)
class LakeBatch:
    """Whole groups of the outbox, in order."""

    outbox: str
    end: OutboxSequence
    position: Position  # of the last group
    items: Sequence[LakeItem]
    commit_time_us: int = NO_COMMIT_TIME  # the latest of a transaction in it


def batch_applied(batch: LakeBatch) -> Applied:
    """Return what a lake contains after `batch`."""
    return Applied(batch.end, batch.position)


@dataclass(slots=True, eq=False)
class SplitBatch:
    """The items of a batch by table, and the messages by database; an entry without items is only checked."""

    tables: dict[TableId, list[Delivered]] = field(default_factory=dict)
    messages: dict[Oid, list[tuple[OutboxSequence, LogicalMessage]]] = field(default_factory=dict)

    def add(self, of: TableId) -> None:
        """Add a table, or a database's messages, without items."""
        if of[1] == INVALID_OID:
            self.messages.setdefault(of[0], [])
        else:
            self.tables.setdefault(of, [])


def split_items(items: Sequence[LakeItem]) -> SplitBatch:
    """Divide items by table; those of a partitioned table whose rows come from its partitions are left out."""
    split = SplitBatch()
    for sequence, item in items:
        if isinstance(item, LogicalMessage):
            split.messages.setdefault(item.database, []).append((sequence, item))
            continue
        delivered = _as_left(item)
        relation = relation_of(delivered)
        assert relation is not None, item
        if relation.kind == PARTITIONED and not relation.has_partition_rows:
            continue  # its rows come from its partitions
        split.tables.setdefault((item.database, relation.oid), []).append(Delivered(sequence, delivered))
    return split


def _as_left(item: TableItem) -> TableItem:
    """Return an item; an event by which a table leaves the selection has the version that was delivered last."""
    if not isinstance(item, SchemaEvent) or item.capture is not CaptureChange.ENDS or item.after is None:
        return item
    return replace(item, after=left_version(item))


def without_removed(split: SplitBatch, known: Container[TableId], removed_to: Position | None) -> SplitBatch:
    """Leave out changes of removed tables: an outbox that begins again earlier delivers them again.

    `removed_to`: the position of the lake when a table was removed last. A table that the lake does not know, and that
    has earlier changes, was removed, unless a copy of it begins.
    """
    if removed_to is None:
        return split
    tables = {of: items if of in known else _after_removal(items, removed_to) for of, items in split.tables.items()}
    return SplitBatch({of: items for of, items in tables.items() if items}, split.messages)


def _after_removal(items: list[Delivered], removed_to: Position) -> list[Delivered]:
    def is_new(item: TableItem) -> bool:
        return last_position(item) > removed_to or (isinstance(item, CopyBoundary) and item.begin)

    return list(dropwhile(lambda delivered: not is_new(delivered.item), items))


def without_notices(split: SplitBatch, known: Container[TableId]) -> SplitBatch:
    """Leave out the events that only report the capture of a table: no log and no replica changes with them.

    A table of which nothing else is known is left out with them; so is one that is only dropped, since it was removed
    from the lake, or had no changes.
    """
    tables = {
        of: [one for one in items if not (isinstance(one.item, SchemaEvent) and one.item.is_of_capture)]
        for of, items in split.tables.items()
    }
    tables = {of: items for of, items in tables.items() if of in known or not all(map(_is_drop, items))}
    return SplitBatch(tables, split.messages)


def _is_drop(delivered: Delivered) -> bool:
    return isinstance(delivered.item, SchemaEvent) and delivered.item.change is SchemaChange.DROP


def first_relation(items: Sequence[Delivered]) -> Relation:
    """Return the description of a table before its first item."""
    first = items[0].item
    relation = first.before or first.after if isinstance(first, SchemaEvent) else first.relation
    assert relation is not None, first
    return relation


def latest_relation(items: Sequence[Delivered]) -> Relation:
    """Return the description of a table after its last item."""
    relation = relation_of(items[-1].item)
    assert relation is not None, items[-1]
    return relation


def delivered_items(items: Sequence[StoredItem]) -> list[Delivered]:
    """Return items as a log or replica applies them."""
    return [Delivered(sequence, item) for sequence, item in items if not isinstance(item, LogicalMessage)]


def stored_items(items: Sequence[Delivered]) -> list[StoredItem]:
    """Return items as they wait beside a stopped table."""
    return [(delivered.sequence, delivered.item) for delivered in items]
