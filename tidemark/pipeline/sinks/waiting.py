"""Changes that a property of a table prevents from being written: stored beside the table until the property is undone.

    <log or replica>-waiting    number | sequence | kind | size | payload

A stopped table loses nothing, and delays neither the outbox nor other tables: its items are stored in the encoding of
the outbox and applied in order later. The waiting table checks its own position, so a repeat is harmless.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.dataset as ds

from tidemark.model.change import ChangeBatch, CopyBoundary, GroupItem
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.tables.table_properties import KEEP_HOURS
from tidemark.pipeline.lake.tables.table_upkeep import compact, forget_files
from tidemark.pipeline.lake.tables.writable_table import writable_table
from tidemark.pipeline.sinks.steps import after, last_position
from tidemark.wire.items import decode_item, encode_item
from tidemark.wire.values import ValueKind

FOLDER = "waiting"
PORTION_BYTES = 64 << 20
COMPACT_EVERY = 100  # commits; each adds a file and makes opening the table slower
ITEMS_MAX = 1 << 32  # of one commit; an item's number combines its commit's version and its index
SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("sequence", pa.int64()),
        pa.field("kind", pa.int32()),
        pa.field("size", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)
StoredItem = tuple[OutboxSequence, GroupItem]


class WaitingItems:
    """The items that wait for one log or replica."""

    def __init__(self, uri: str, app: str) -> None:
        self._table = writable_table(f"{uri}-{FOLDER}", f"{app}-{FOLDER}")

    @property
    def written(self) -> tuple[str, int]:
        """Return the URI and the version of the Delta table."""
        return self._table.uri, self._table.version

    def keep(self, items: Sequence[StoredItem]) -> None:
        """Store the items of `items`, in stream order, that are not stored yet."""
        table, applied = self._table, self._table.applied
        rows: list[tuple[int, int, int, int, bytes]] = []
        first = table.version + 1 << 32
        for sequence, item in items:
            late = _behind(item, applied)
            if late is None:
                continue
            kind, payload = encode_item(late)
            content = bytes(payload)
            rows.append((first + len(rows), sequence, kind.value, len(content), content))
            generation = late.generation if isinstance(late, CopyBoundary) else applied.generation
            applied = Applied(sequence, last_position(late), generation)
        if not rows:
            return
        if not table.exists:
            table.create(SCHEMA, table.applied)
        columns = zip(*rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
        table.append(pa.table(arrays, schema=SCHEMA), applied)
        if table.has_passed(COMPACT_EVERY):
            compact(table, KEEP_HOURS)

    def portions(self, bytes_max: int = PORTION_BYTES) -> Iterator[list[StoredItem]]:
        """Yield the waiting items in order, at most `bytes_max` at a time, but at least one item."""
        if not self._table.exists:
            return
        sizes = self._table.scan(["number", "size"]).read_all().sort_by("number")
        first, total = None, 0
        numbers = sizes.column("number").to_pylist()
        for at, size in enumerate(sizes.column("size").to_pylist()):
            if first is not None and total + size > bytes_max:
                yield self._items(first, numbers[at - 1])
                first, total = None, 0
            first = numbers[at] if first is None else first
            total += size
        if first is not None:
            yield self._items(first, numbers[-1])

    def clear(self) -> None:
        """Delete all waiting items."""
        if self._table.exists:
            self._table.overwrite(SCHEMA.empty_table(), self._table.applied)
            forget_files(self._table)

    def _items(self, first: int, last: int) -> list[StoredItem]:
        wanted = (ds.field("number") >= first) & (ds.field("number") <= last)
        rows = self._table.delta.to_pyarrow_dataset().to_table(filter=wanted).sort_by("number")
        columns = (rows.column(name).to_pylist() for name in ("sequence", "kind", "payload"))
        return [
            (OutboxSequence(number), decode_item(ValueKind(kind), payload))
            for number, kind, payload in zip(*columns, strict=True)
        ]


def _behind(item: GroupItem, applied: Applied) -> GroupItem | None:
    """Return the part of `item` after `applied`; a restarted copy may have the position of the previous one."""
    if isinstance(item, ChangeBatch):
        rows = after(item.rows, applied.position)
        return ChangeBatch(item.database, item.relation, rows) if rows.num_rows else None
    is_new_copy = isinstance(item, CopyBoundary) and item.begin and item.generation > applied.generation
    return item if is_new_copy or item.position > applied.position else None
