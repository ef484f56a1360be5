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

if TYPE_CHECKING:
    from tidemark.model.relation import RelFileLocator

    HeldRow = tuple[int, int, RelFileLocator | None, int, bytes]

CATALOG_ROWS_MAX = 1024
CATALOG_COLUMNS = 6
NONE = -1  # in place of a tid: the decoder reads the record

# Copies as C integers, which Python code does not see.
SPACE = CATALOG_ROWS_MAX
WHOLE_RECORD = NONE


class CatalogRows:
    """The rows, in order."""

    def __init__(self) -> None:
        columns = [array("q", bytes(8 * CATALOG_ROWS_MAX)) for _ in range(CATALOG_COLUMNS)]
        self.records, self.xids, self.files, self.tids, self.starts, self.lengths = columns
        self.count = 0

    def has_space(self, count: int) -> int:
        """Return whether this many rows can be held."""
        return 1 if self.count + count <= SPACE else 0

    def hold(self, record: int, xid: int, file: int, tid: int, start: int, length: int) -> int:
        """Hold a row of a record: the number of its file, its tid, its tuple in the block (of no length: deleted)."""
        at = self.count
        self.records[at] = record
        self.xids[at] = xid
        self.files[at] = file
        self.tids[at] = tid
        self.starts[at] = start
        self.lengths[at] = length
        self.count += 1
        return 0

    def hold_record(self, record: int, xid: int) -> int:
        """Hold a record whose rows the decoder reads."""
        return self.hold(record, xid, 0, WHOLE_RECORD, 0, 0)

    def take(self, linear: bytearray, files: list[RelFileLocator | None]) -> list[HeldRow]:
        """Return record, xid, file by its number, tid and tuple of all rows, and hold none."""
        rows = []
        for at in range(self.count):
            start = self.starts[at]
            packed = bytes(linear[start : start + self.lengths[at]])
            rows.append((self.records[at], self.xids[at], files[self.files[at]], self.tids[at], packed))
        self.count = 0
        return rows
