"""The rows of one open transaction in record order: entries and an arena, without an object for each row.

A log is a list of *chunks* of bounded size (the format is in `row_entries`), so that a large transaction can be spilled
chunk by chunk (`spill`) and read back in the same way when it is delivered.

A subtransaction's abort removes its rows. The parent writes nothing between a subtransaction's first row and its abort
record, so those rows are the tail of the log and are cut off; rows that were spilled already stay on disk and are
skipped when they are read back.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import compress
from struct import Struct
from typing import NamedTuple

from tidemark.decode.arrow.batch_costs import batch_bytes
from tidemark.decode.datum.row_entries import (
    ABSENT,
    ENTRY,
    ENTRY_BYTES,
    RELATION_AT,
    ROWS_AT,
    XID_AT,
    row_count,
    tuple_bytes,
)
from tidemark.decode.transactions.ports import SpillPort
from tidemark.model.errors import StateError
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation

CHUNK_BYTES = 4 << 20  # a chunk is closed above this size: spilling writes and reads whole chunks
RUN_BYTES = 128 << 10  # a run of at least this size becomes a separate chunk: appending would copy the existing rows
_SPILLED = Struct("<QQQ")  # bytes of entries, bytes of tuples, and `more`
_XID = Struct("<I")


class RelationVersions:
    """The relation versions that entries name by number: recent ones, with their databases."""

    __slots__ = ("_numbers", "all_batch_bytes", "batch_bytes", "databases", "relations")

    def __init__(self) -> None:
        self.relations: list[Relation] = []
        self.databases: list[Oid] = []
        self.batch_bytes = array("q")  # size of one batch of each version, without rows
        self.all_batch_bytes = 0
        self._numbers: dict[tuple[Oid, Relation], int] = {}

    def __len__(self) -> int:
        return len(self.relations)

    def number(self, database: Oid, relation: Relation) -> int:
        """Return the number of a version; assign one if it has none."""
        number = self._numbers.get((database, relation))
        if number is None:
            number = self._numbers[database, relation] = len(self.relations)
            self.relations.append(relation)
            self.databases.append(database)
            self.batch_bytes.append(batch_bytes(relation))
            self.all_batch_bytes += self.batch_bytes[number]
        return number


class Row(NamedTuple):
    """One row as an object."""

    op: int  # the letter of an Op
    before_kind: int
    relation: int  # number in RelationVersions
    xid: int  # of the subtransaction
    lsn: int
    new: bytes | None  # packed tuples
    old: bytes | None
    origin: int


class RowChunk:
    """Some rows: entries, and their tuples in the same order."""

    __slots__ = ("entries", "more", "tuples")

    def __init__(self, entries: bytes | memoryview = b"", tuples: bytes | memoryview = b"", more: int = 0) -> None:
        """Copy these entries and tuples; they stand for `more` rows than there are entries."""
        self.entries = bytearray(entries)
        self.tuples = bytearray(tuples)
        self.more = more

    def __len__(self) -> int:
        return len(self.entries) // ENTRY_BYTES

    def row_count(self, start: int, stop: int) -> int:
        """Return the number of rows for which the entries `start` to `stop` stand."""
        return row_count(self.entries, start, stop) if self.more else stop - start

    def rows_of(self) -> Mapping[int, int]:
        """Return the number of rows of each subtransaction."""
        xids = self.xids()
        rows = Counter(xids)
        if self.more:
            counts = memoryview(self.entries).cast("I")[ROWS_AT // 4 :: ENTRY_BYTES // 4].tolist()
            for xid, count in compress(zip(xids, counts, strict=True), counts):  # few entries stand for several rows
                rows[xid] += count - 1
        return rows

    @property
    def byte_count(self) -> int:
        """Memory used, approximately."""
        return len(self.entries) + len(self.tuples)

    def xid(self, row: int) -> int:
        """Return the subtransaction of `row`."""
        xid: int = _XID.unpack_from(self.entries, row * ENTRY_BYTES + XID_AT)[0]
        return xid

    def xids(self) -> list[int]:
        """Return the subtransactions of all rows."""
        return memoryview(self.entries).cast("I")[XID_AT // 4 :: ENTRY_BYTES // 4].tolist()

    def numbers(self, start: int, stop: int) -> list[int]:
        """Return the relation versions of rows `start` to `stop`."""
        words = memoryview(self.entries)[start * ENTRY_BYTES : stop * ENTRY_BYTES].cast("I")
        return words[RELATION_AT // 4 :: ENTRY_BYTES // 4].tolist()

    def rows(self, start: int, stop: int, at: int) -> Iterator[Row]:
        """Yield the rows `start` to `stop`; `at` is the offset of the first one's tuples."""
        tuples = self.tuples
        for entry in range(start * ENTRY_BYTES, stop * ENTRY_BYTES, ENTRY_BYTES):
            op, before_kind, origin, relation, xid, new_length, old_length, lsn = ENTRY.unpack_from(self.entries, entry)
            new = old = None
            if old_length != ABSENT:
                old = bytes(tuples[at : at + old_length])
                at += old_length
            if new_length != ABSENT:
                new = bytes(tuples[at : at + new_length])
                at += new_length
            yield Row(op, before_kind, relation, xid, lsn, new, old, origin)

    def truncate(self, keep: int) -> None:
        """Drop the entries from `keep` on."""
        if self.more:
            self.more -= self.row_count(keep, len(self)) - (len(self) - keep)
        gone = tuple_bytes(self.entries, keep, len(self))
        del self.tuples[len(self.tuples) - gone :]
        del self.entries[keep * ENTRY_BYTES :]

    def dump(self) -> tuple[bytes, bytearray, bytearray]:
        """Return the chunk as parts for the spill; only the same process reads them back."""
        return _SPILLED.pack(len(self.entries), len(self.tuples), self.more), self.entries, self.tuples

    @classmethod
    def load(cls, content: bytes) -> "RowChunk":
        """Return the chunk from the parts of `dump`."""
        entries, tuples, more = _SPILLED.unpack_from(content) if len(content) >= _SPILLED.size else (0, 0, 0)
        if len(content) != _SPILLED.size + entries + tuples:
            raise StateError("a spilled part of a transaction has another length than was written")
        view = memoryview(content)
        return cls(view[_SPILLED.size : _SPILLED.size + entries], view[_SPILLED.size + entries :], more)


@dataclass(frozen=True, slots=True)
class _Spilled:
    """A chunk on disk."""

    handle: int
    entry_count: int
    more: int
    rows_of: Mapping[int, int]  # by subtransaction


class RowLog:
    """All rows of a transaction and its subtransactions."""

    __slots__ = ("_chunks", "_closed_bytes", "_dropped", "_last", "_row_base", "spilled_bytes", "versions")

    def __init__(self, versions: RelationVersions) -> None:
        self.versions = versions
        self.spilled_bytes = 0
        self._last = RowChunk()
        self._chunks: list[RowChunk | _Spilled] = []  # all but the last one
        self._row_base = 0  # rows in them
        self._closed_bytes = 0  # of those that are in memory
        self._dropped: set[int] = set()  # aborted subtransactions whose rows are still in the log

    @property
    def byte_count(self) -> int:
        """Bytes in memory."""
        return self._closed_bytes + self._last.byte_count

    @property
    def entry_count(self) -> int:
        """Entries logged, including those on disk that will be skipped."""
        return self._row_base + len(self._last)

    @property
    def surviving_count(self) -> int:
        """Rows that will be delivered."""
        gone = more = 0
        for chunk in (*self._chunks, self._last):
            more += chunk.more
            if self._dropped:
                rows_of = chunk.rows_of if isinstance(chunk, _Spilled) else chunk.rows_of()
                gone += sum(rows_of.get(xid, 0) for xid in self._dropped)
        return self.entry_count + more - gone

    def append(
        self,
        op: int,
        relation: int,
        lsn: int,
        xid: int,
        *,
        new: bytes | None,
        old: bytes | None,
        before_kind: int,
        origin: int = 0,
    ) -> None:
        """Append one row; `op` is the letter's byte, `relation` a number of `versions`, tuples are packed."""
        last = self._last
        new_length = old_length = ABSENT
        if old is not None:
            old_length = len(old)
            last.tuples += old
        if new is not None:
            new_length = len(new)
            last.tuples += new
        last.entries += ENTRY.pack(op, before_kind, origin, relation, xid, new_length, old_length, lsn)
        if last.byte_count >= CHUNK_BYTES:
            self._close_chunk()

    def extend(self, entries: memoryview, tuples: memoryview, more: int) -> None:
        """Append a run of rows, with `more` rows than it has entries."""
        last = self._last
        if len(entries) + len(tuples) >= RUN_BYTES:
            if len(last):
                self._close_chunk()
            self._last = RowChunk(entries, tuples, more)
            self._close_chunk()
            return
        last.more += more
        last.entries += entries
        last.tuples += tuples
        if last.byte_count >= CHUNK_BYTES:
            self._close_chunk()

    def _close_chunk(self) -> None:
        self._chunks.append(self._last)
        self._row_base += len(self._last)
        self._closed_bytes += self._last.byte_count
        self._last = RowChunk()

    def exclude(self, xids: AbstractSet[int]) -> None:
        """Skip the rows of aborted subtransactions anywhere in the log."""
        self._dropped |= xids

    def drop(self, xids: AbstractSet[int]) -> None:
        """Drop the rows of subtransactions whose abort record comes next: the tail."""
        while True:
            keep = len(self._last)
            while keep and self._last.xid(keep - 1) in xids:
                keep -= 1
            self._last.truncate(keep)
            before = self._chunks[-1] if self._chunks else None
            if keep or not isinstance(before, RowChunk):
                break
            self._chunks.pop()
            self._row_base -= len(before)
            self._closed_bytes -= before.byte_count
            self._last = before
        for chunk in self._chunks:
            if isinstance(chunk, _Spilled):
                self._dropped |= xids & chunk.rows_of.keys()

    def spill(self, port: SpillPort) -> None:
        """Move all rows to `port`."""
        if len(self._last):
            self._close_chunk()
        for index, chunk in enumerate(self._chunks):
            if isinstance(chunk, RowChunk):
                parts = chunk.dump()
                self._chunks[index] = _Spilled(port.write(*parts), len(chunk), chunk.more, chunk.rows_of())
                self.spilled_bytes += sum(map(len, parts))
        self._closed_bytes = 0

    def chunks(self, port: SpillPort | None) -> Iterator[tuple[int, RowChunk]]:
        """Yield the remaining chunks, each with the number of rows logged before it."""
        base = 0
        for chunk in (*self._chunks, self._last):
            if isinstance(chunk, RowChunk):
                yield base, chunk
                base += len(chunk)
            else:
                assert port is not None, "spilled without a port"
                yield base, RowChunk.load(port.read(chunk.handle))
                base += chunk.entry_count

    def surviving(self, chunk: RowChunk, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges within rows `start` to `stop` of `chunk` that no aborted subtransaction wrote."""
        if not self._dropped:
            yield start, stop
            return
        begin = start
        for row in range(start, stop):
            if chunk.xid(row) in self._dropped:
                if row > begin:
                    yield begin, row
                begin = row + 1
        if stop > begin:
            yield begin, stop

    def release(self, port: SpillPort | None) -> None:
        """Drop everything, on disk as well."""
        for chunk in self._chunks:
            if isinstance(chunk, _Spilled):
                assert port is not None, "spilled without a port"
                port.release(chunk.handle)
        self._chunks = []
        self._last = RowChunk()
        self._closed_bytes = self._row_base = 0
