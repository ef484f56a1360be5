"""Rows of INSERT ... ON CONFLICT in the current block of records that wait for their confirmation.

The server inserts such a row, then its index entries, and confirms it, or deletes it if another session was first. The
row counts from its confirmation on. `extract` holds it here until then; what the block does not confirm, and what the
loop cannot process, is processed by `Decoder.decode`, in place of the record of the insert.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
"""

# ruff: noqa: PLR0917 - a struct would be an object a call

from __future__ import annotations

from array import array

HELD_MAX = 64  # at the same time; one for each session that inserts
COLUMNS = 9
NONE = -1

# Copies as C integers, which Python code does not see.
SPACE = HELD_MAX
NOT_FOUND = NONE


class SpeculativeRows:
    """The rows, in no order."""

    def __init__(self) -> None:
        columns = [array("q", bytes(8 * HELD_MAX)) for _ in range(COLUMNS)]
        self.xids, self.records, self.files, self.databases, self.tablespaces = columns[:5]
        self.places, self.relations, self.starts, self.lengths = columns[5:]
        self.count = 0

    def has_space(self) -> int:
        """Return whether `hold` can be called."""
        return 1 if self.count < SPACE else 0

    def hold(
        self,
        xid: int,
        record: int,
        spc: int,
        db: int,
        rel: int,
        place: int,
        relation: int,
        start: int,
        length: int,
    ) -> int:
        """Hold the row of a record: its file and place there, its relation version, and its tuple in the block."""
        at = self.count
        self.xids[at] = xid
        self.records[at] = record
        self.tablespaces[at] = spc
        self.databases[at] = db
        self.files[at] = rel
        self.places[at] = place
        self.relations[at] = relation
        self.starts[at] = start
        self.lengths[at] = length
        self.count += 1
        return 0

    def find(self, xid: int, spc: int, db: int, rel: int, place: int) -> int:
        """Return the number of a row; NONE if it is not held."""
        for at in range(self.count):
            if self.xids[at] == xid and self.places[at] == place and self.files[at] == rel:
                return at if self.databases[at] == db and self.tablespaces[at] == spc else NOT_FOUND
        return NOT_FOUND

    def has(self, xid: int) -> int:
        """Return whether a row of a transaction is held."""
        for at in range(self.count):
            if self.xids[at] == xid:
                return 1
        return 0

    def remove(self, at: int) -> int:
        """Remove a row."""
        self.count -= 1
        last = self.count
        self.xids[at] = self.xids[last]
        self.records[at] = self.records[last]
        self.tablespaces[at] = self.tablespaces[last]
        self.databases[at] = self.databases[last]
        self.files[at] = self.files[last]
        self.places[at] = self.places[last]
        self.relations[at] = self.relations[last]
        self.starts[at] = self.starts[last]
        self.lengths[at] = self.lengths[last]
        return 0

    def take(self) -> list[int]:
        """Return the records of all rows, in their order, and hold none."""
        if self.count == 0:
            return []
        records = sorted(self.records[: self.count])
        self.count = 0
        return records
