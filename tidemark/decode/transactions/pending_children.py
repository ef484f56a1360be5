"""The subtransactions of pending transactions (`pending_rows`).

Each slot has a list, in cells that all lists share. A subtransaction that is rolled back is removed; a released one
stays: the commit record must name exactly the subtransactions that are here then.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
"""

from __future__ import annotations

from array import array

from tidemark.decode.transactions.pending_rows import SLOTS_MAX

CHILDREN_MAX = 8192  # of all pending transactions; a transaction without space for another is no longer pending
NONE = -1  # no cell

# Copies as C integers, which Python code does not see.
NOTHING = NONE


class PendingChildren:
    """Subtransactions by their transaction's slot."""

    def __init__(self) -> None:
        self.xids = array("q", bytes(8 * CHILDREN_MAX))
        self.following = array("q", range(1, CHILDREN_MAX + 1))  # next cell in the list or among the free cells
        self.following[CHILDREN_MAX - 1] = NONE
        self.latest = array("q", [NONE]) * SLOTS_MAX  # by slot
        self.counts = array("q", bytes(8 * SLOTS_MAX))  # by slot
        self.free = 0

    def has_space(self) -> int:
        """Return whether there is space for one more."""
        return 1 if self.free != NOTHING else 0

    def add(self, slot: int, xid: int) -> int:
        """Add `xid` to the transaction in `slot`; there must be space."""
        cell = self.free
        self.free = self.following[cell]
        self.xids[cell] = xid
        self.following[cell] = self.latest[slot]
        self.latest[slot] = cell
        self.counts[slot] += 1
        return 0

    def count(self, slot: int) -> int:
        """Return the number of subtransactions in `slot`."""
        return self.counts[slot]

    def remove(self, slot: int, xid: int) -> int:
        """Remove a subtransaction, searching from the latest on."""
        before = NOTHING
        cell = self.latest[slot]
        while cell != NOTHING and self.xids[cell] != xid:
            before = cell
            cell = self.following[cell]
        if cell == NOTHING:
            return 0
        if before == NOTHING:
            self.latest[slot] = self.following[cell]
        else:
            self.following[before] = self.following[cell]
        return self.release(slot, cell)

    def pop(self, slot: int) -> int:
        """Remove and return the latest; 0 if there is none."""
        cell = self.latest[slot]
        if cell == NOTHING:
            return 0
        self.latest[slot] = self.following[cell]
        self.release(slot, cell)
        return self.xids[cell]

    def release(self, slot: int, cell: int) -> int:
        """Add an unlinked cell to the free cells."""
        self.following[cell] = self.free
        self.free = cell
        self.counts[slot] -= 1
        return 0
