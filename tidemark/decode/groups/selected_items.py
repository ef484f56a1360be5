"""Selects the items of the stream by their tables, and marks events by which a table enters or leaves the selection.

The rows of a relation version are selected the same way; which of them were delivered already is decided by
`delivery_filter`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tidemark.decode.groups.delivery_filter import Copied
from tidemark.decode.groups.left_tables import LeftTables
from tidemark.decode.groups.partitions import PartitionRoutes, RelationItem, RoutedItem, has_rows
from tidemark.decode.transactions.reorder_buffer.itemlog import Item
from tidemark.decode.transactions.schema_changes import CAPTURED_KINDS, UncapturedDrop
from tidemark.decode.transactions.version_cache import VersionCache
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import SchemaEvent, TransactionEnd
from tidemark.model.relation import Relation

IsSelected = Callable[[Relation], bool]


def all_tables(relation: Relation) -> bool:
    """Select every relation whose rows are captured; materialized views are not."""
    return relation.kind in CAPTURED_KINDS


class SelectedItems:
    """The items of selected tables, under the names of the tables to which their rows are routed."""

    def __init__(self, selected: IsSelected, routes: PartitionRoutes, copied: Copied, left: LeftTables | None) -> None:
        """Take the arguments of `GroupBuilder`."""
        self._selected = selected
        self._routes = routes
        self._copied = copied
        self._left = left
        self._selection: VersionCache[Relation, bool] = VersionCache()

    def selects(self, relation: Relation) -> bool:
        """Return whether the rows of a relation version are delivered."""
        found = self._selection.get(relation)
        if found is None:
            found = all_tables(relation) and self._selected(self._routes.target(relation))
            self._selection.keep(relation, found)
        return found

    def delivered(self, item: RelationItem | UncapturedDrop, end: TransactionEnd | None) -> Iterator[RoutedItem]:
        """Yield what is delivered of an item."""
        if not isinstance(item, UncapturedDrop):
            yield from self._routed(item, end)
        # NB: a dropped partition has no event under its own name if the table above has its changes.
        if self._left is not None and (drop := self._left.drop(item)) is not None:
            yield drop

    def _routed(self, item: RelationItem, end: TransactionEnd | None) -> Iterator[RoutedItem]:
        """Yield what is delivered of an item under the names to which it is routed."""
        for routed in self._routes.items(item):
            is_selected = self.selects_item(routed, end)
            drop = None
            if self._left is not None and not (is_selected and _has_rows(routed)):
                drop = self._left.drop(routed)
            if drop is not None:
                yield drop
            elif is_selected:
                marked = self._marked(routed)
                if self._left is not None and isinstance(marked, SchemaEvent):
                    self._left.follow(marked)
                yield marked

    def selects_item(self, item: RoutedItem, end: TransactionEnd | None) -> bool:
        """Return whether an item is of a selected table, and no first copy contains it."""
        named = (item.before, item.after) if isinstance(item, SchemaEvent) else (item.relation,)
        versions = [relation for relation in named if relation is not None]
        if end is not None and self._copied(versions[0].oid, replace(end, database=item.database)):
            return False
        return any(self.selects(relation) for relation in versions)

    def ends_capture(self, item: Item) -> bool:
        """Return whether a selected table leaves the selection; a partition below another table is none."""
        if not isinstance(item, SchemaEvent):
            return False
        if item.capture is CaptureChange.ENDS:
            left = item.before
            return left is not None and self.selects(left) and self._routes.target(left).oid == left.oid
        return self._capture_change(item) is CaptureChange.ENDS

    def changes_types(self, item: Item) -> bool:
        """Return whether a column of a selected table gets another type, or other precision."""
        if not isinstance(item, SchemaEvent) or item.before is None or item.after is None:
            return False
        were, are = (
            {column.number: (column.type and column.type.oid, column.typmod) for column in version.live_columns}
            for version in (item.before, item.after)
        )
        return any(were.get(number, kind) != kind for number, kind in are.items()) and self.selects(item.after)

    def _marked(self, item: RoutedItem) -> RoutedItem:
        """Mark an event by which a table leaves the selection, or comes into it."""
        if not isinstance(item, SchemaEvent):
            return item
        change = self._capture_change(item)
        return item if change is CaptureChange.NONE else replace(item, capture=change)

    def _capture_change(self, event: SchemaEvent) -> CaptureChange:
        if event.before is None or event.after is None:
            return CaptureChange.NONE
        was, now = self.selects(event.before), self.selects(event.after)
        if was and now:  # a table that was a root, or became one, under a selected name
            was, now = (has_rows(self._routes.target(version)) for version in (event.before, event.after))
        if was == now:
            return CaptureChange.NONE
        return CaptureChange.BEGINS if now else CaptureChange.ENDS


def _has_rows(item: RoutedItem) -> bool:
    versions = (item.before, item.after) if isinstance(item, SchemaEvent) else (item.relation,)
    return any(version is not None and has_rows(version) for version in versions)
