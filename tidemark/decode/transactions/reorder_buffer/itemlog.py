"""The items of one open transaction other than rows: schema changes, TRUNCATEs, messages, each before a row of its log.

The contents of messages can be of any size and are spilled like rows, many in one part. The remainder of each item
stays in memory: about `ITEM_OVERHEAD_BYTES`.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from tidemark.decode.transactions.ports import SpillPort
from tidemark.decode.transactions.reorder_buffer.rowlog import CHUNK_BYTES
from tidemark.decode.transactions.schema_changes import SchemaItem
from tidemark.model.change import LogicalMessage, Truncation
from tidemark.model.lsn import Xid

Item = SchemaItem | Truncation | LogicalMessage
ITEM_OVERHEAD_BYTES = 500  # approximate memory of an item, without a message's content


class _SpilledContent(NamedTuple):
    """The location of a message's content: bytes of a part on disk."""

    handle: int
    start: int
    stop: int


class _PendingItem(NamedTuple):
    """An item before row number `row`."""

    row: int
    xid: Xid
    item: Item
    location: _SpilledContent | None = None

    @property
    def content_bytes(self) -> int:
        """Bytes of content in memory."""
        return len(self.item.content) if isinstance(self.item, LogicalMessage) else 0


class ItemLog:
    """The items of a transaction and its subtransactions other than rows, in order."""

    __slots__ = ("_content_bytes", "_handles", "_pending")

    def __init__(self) -> None:
        self._pending: list[_PendingItem] = []
        self._handles: list[int] = []  # of the parts on disk
        self._content_bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def content_bytes(self) -> int:
        """Bytes of contents in memory, which `spill` can move."""
        return self._content_bytes

    @property
    def byte_count(self) -> int:
        """Approximate bytes in memory."""
        return self._content_bytes + len(self._pending) * ITEM_OVERHEAD_BYTES

    def append(self, row: int, xid: Xid, item: Item) -> None:
        """Append an item before row number `row`."""
        pending = _PendingItem(row, xid, item)
        self._pending.append(pending)
        self._content_bytes += pending.content_bytes

    def drop(self, xids: AbstractSet[Xid]) -> None:
        """Drop the items of subtransactions whose abort record comes next: they are the tail, as with rows."""
        while self._pending and self._pending[-1].xid in xids:
            self._content_bytes -= self._pending.pop().content_bytes

    def exclude(self, xids: AbstractSet[Xid]) -> None:
        """Drop the items of aborted subtransactions anywhere in the log."""
        self._pending = [pending for pending in self._pending if pending.xid not in xids]
        self._content_bytes = sum(pending.content_bytes for pending in self._pending)

    def spill(self, port: SpillPort) -> int:
        """Move all contents to `port`; return their bytes."""
        spilled = self._content_bytes
        begin = waiting = 0
        for index, pending in enumerate(self._pending):
            waiting += pending.content_bytes
            if waiting >= CHUNK_BYTES:
                self._spill_part(port, begin, index + 1)
                begin, waiting = index + 1, 0
        if waiting:
            self._spill_part(port, begin, len(self._pending))
        self._content_bytes = 0
        return spilled

    def _spill_part(self, port: SpillPort, begin: int, end: int) -> None:
        """Move the contents of some items to one part."""
        found = [
            (index, pending, pending.item)
            for index, pending in enumerate(self._pending[begin:end], begin)
            if isinstance(pending.item, LogicalMessage) and pending.content_bytes
        ]
        handle = port.write(b"".join(message.content for _, _, message in found))
        self._handles.append(handle)
        at = 0
        for index, pending, message in found:
            location = _SpilledContent(handle, at, at + pending.content_bytes)
            self._pending[index] = pending._replace(item=replace(message, content=b""), location=location)
            at = location.stop

    def read(self, port: SpillPort | None) -> Iterator[tuple[int, Item]]:
        """Yield the items, each with the number of the row that follows it."""
        part, content = 0, b""
        for pending in self._pending:
            if pending.location is None:
                yield pending.row, pending.item
                continue
            assert port is not None, "spilled without a port"
            assert isinstance(pending.item, LogicalMessage), "others have no content"
            if pending.location.handle != part:
                part, content = pending.location.handle, port.read(pending.location.handle)
            yield pending.row, replace(pending.item, content=content[pending.location.start : pending.location.stop])

    def release(self, port: SpillPort | None) -> None:
        """Drop everything, on disk as well."""
        for handle in self._handles:
            assert port is not None, "spilled without a port"
            port.release(handle)
        self._handles = []
        self._pending = []
        self._content_bytes = 0
