"""Records on tracked catalogs that wait in the current block for the decoder.

Only the transaction that writes a catalog sees the changes before its commit. `extract` therefore holds such records
while it reads others, until one needs the decoder, which first processes the held ones in their order. Of the usual
kinds, an insert, a multi-insert and a delete without a page image, it finds the rows.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
"""

# ruff: noqa: PLR0917 - a struct would be an object a call

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tidemark.wal import rmgr as managers
from tidemark.wal.rmgr import heap, heap2

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u16
else:
    from cython.cimports.tidemark.wal.byte_readers import read_u16  # type: ignore[no-redef] # the same one

if TYPE_CHECKING:
    from tidemark.decode.transactions.record_parts import RecordParts
    from tidemark.model.relation import RelFileLocator

    HeldRow = tuple[int, int, RelFileLocator | None, int, bytes]

CATALOG_ROWS_MAX = 1024
CATALOG_COLUMNS = 6
NONE = -1  # in place of a tid: the decoder reads the record

# Copies as C integers, which Python code does not see.
SPACE = CATALOG_ROWS_MAX
WHOLE_RECORD = NONE
RM_HEAP2 = managers.RM_HEAP2
RM_HEAP = managers.RM_HEAP
OPCODE = heap.OPCODE_MASK
HEAP_INSERT, HEAP_DELETE = heap.INSERT, heap.DELETE
HEAP2_MULTI_INSERT = heap2.MULTI_INSERT
INIT_PAGE = heap.INIT_PAGE
TUPLE_HEADER = heap.TUPLE_HEADER_BYTES
PACKED_HEADER = heap.PACKED_HEADER_BYTES


class CatalogRows:
    """The rows, in order."""

    def __init__(self, parts: RecordParts) -> None:
        self.parts = parts  # of the current record
        columns = [array("q", bytes(8 * CATALOG_ROWS_MAX)) for _ in range(CATALOG_COLUMNS)]
        self.records, self.xids, self.files, self.tids, self.starts, self.lengths = columns
        self.count = 0

    def take(self, linear: bytearray, files: list[RelFileLocator | None]) -> list[HeldRow]:
        """Return record, xid, file by its number, tid and tuple of all rows, and hold none."""
        rows = []
        for at in range(self.count):
            start = self.starts[at]
            packed = bytes(linear[start : start + self.lengths[at]])
            rows.append((self.records[at], self.xids[at], files[self.files[at]], self.tids[at], packed))
        self.count = 0
        return rows

    def hold_record(self, record: int, xid: int, file: int, rmgr: int, info: int) -> int:
        """Hold the current record, number `record` of its block; return 0 if there is no space.

        `file` is the number of the catalog's file.
        """
        opcode = info & OPCODE
        if self.parts.blocks == 1 and self.parts.image_length == 0:
            main_length = self.parts.main_length
            length = self.parts.data_length
            if rmgr == RM_HEAP and opcode == HEAP_INSERT and main_length >= 3 and length >= PACKED_HEADER:
                return self.hold_row(record, xid, file, self.parts.main_at, self.parts.data_at, length)
            if rmgr == RM_HEAP and opcode == HEAP_DELETE and main_length >= 8:
                return self.hold_row(record, xid, file, self.parts.main_at + 4, 0, 0)
            if rmgr == RM_HEAP2 and opcode == HEAP2_MULTI_INSERT and main_length >= 4:
                return self.hold_inserts(record, xid, file, info)
        return self.hold(record, xid, 0, WHOLE_RECORD, 0, 0)

    def hold_row(self, record: int, xid: int, file: int, offset_at: int, at: int, length: int) -> int:
        """Hold a row whose line pointer is at `offset_at`."""
        tid = self.parts.block << 16 | read_u16(self.parts.linear, offset_at)
        return self.hold(record, xid, file, tid, at, length)

    def hold_inserts(self, record: int, xid: int, file: int, info: int) -> int:
        """Hold the rows of a multi-insert, or the whole record if the lengths in it do not fit."""
        count = read_u16(self.parts.linear, self.parts.main_at + 2)
        before = self.count
        if before + count > SPACE:
            return 0
        has_offsets = info & INIT_PAGE == 0
        if has_offsets and self.parts.main_length < 4 + 2 * count:
            return self.hold(record, xid, 0, WHOLE_RECORD, 0, 0)
        at = self.parts.data_at
        stop = self.parts.data_at + self.parts.data_length
        for item in range(count):
            at += (at - self.parts.data_at) & 1
            if at + 2 + PACKED_HEADER > stop:
                break
            length = PACKED_HEADER + read_u16(self.parts.linear, at)
            at += 2
            if at + length > stop or self.parts.linear[at + 4] < TUPLE_HEADER:
                break
            offset = item + 1
            if has_offsets:
                offset = read_u16(self.parts.linear, self.parts.main_at + 4 + 2 * item)
            self.hold(record, xid, file, self.parts.block << 16 | offset, at, length)
            at += length
        if self.count == before + count and at == stop:
            return 1
        self.count = before
        return self.hold(record, xid, 0, WHOLE_RECORD, 0, 0)

    def hold(self, record: int, xid: int, file: int, tid: int, start: int, length: int) -> int:
        """Hold a row: its tid, and its tuple in the block (of no length: deleted); return 0 if there is no space."""
        at = self.count
        if at == SPACE:
            return 0
        self.records[at] = record
        self.xids[at] = xid
        self.files[at] = file
        self.tids[at] = tid
        self.starts[at] = start
        self.lengths[at] = length
        self.count += 1
        return 1
