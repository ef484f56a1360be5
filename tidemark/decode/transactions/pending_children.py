"""Which subtransactions belong to the transactions that are held (`pending`), until those end or are held no longer.

A list a slot, in cells that all lists share. A subtransaction that is rolled back goes, one that is released stays:
what the commit record has to name is what is here then.

The module is compiled where a compiler is there (its `.pxd` has the types) and runs interpreted otherwise; both do the
same.
"""

from __future__ import annotations

from array import array

from tidemark.decode.transactions.pending_rows import SLOTS_MAX

CHILDREN_MAX = 8192  # of all that are held; a transaction that finds no room for one is held no longer
NONE = -1  # of a cell: there is none

# The same as C integers, which Python does not see.
NOTHING = NONE


class PendingChildren:
    """Subtransactions by the slot of their transaction."""

    def __init__(self) -> None:
        self.xids = array("q", bytes(8 * CHILDREN_MAX))
        self.following = array("q", range(1, CHILDREN_MAX + 1))  # cell behind each, in its list or among the free
        self.following[CHILDREN_MAX - 1] = NONE
        self.latest = array("q", [NONE]) * SLOTS_MAX  # by slot
        self.counts = array("q", bytes(8 * SLOTS_MAX))  # by slot
        self.free = 0

    def has_room(self) -> int:
        """Tell if there is room for one more."""
        return 1 if self.free != NOTHING else 0

    def add(self, slot: int, xid: int) -> int:
        """Note that `xid` belongs to the transaction in `slot`; there has to be room."""
        cell = self.free
        self.free = self.following[cell]
        self.xids[cell] = xid
        self.following[cell] = self.latest[slot]
        self.latest[slot] = cell
        self.counts[slot] += 1
        return 0

    def count(self, slot: int) -> int:
        """Return how many there are in `slot`."""
        return self.counts[slot]

    def remove(self, slot: int, xid: int) -> int:
        """Forget one; it is likely to be among the latest."""
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

    def take(self, slot: int) -> int:
        """Forget the latest, and return it; 0 if there is none."""
        cell = self.latest[slot]
        if cell == NOTHING:
            return 0
        self.latest[slot] = self.following[cell]
        self.release(slot, cell)
        return self.xids[cell]

    def release(self, slot: int, cell: int) -> int:
        """Put a cell that is in no list any more among the free."""
        self.following[cell] = self.free
        self.free = cell
        self.counts[slot] -= 1
        return 0
