"""The state of each xid in the loop over records (`extract`): to which pending transaction it belongs, if to any.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.decode.datum.lookup import IntegerMap
from tidemark.decode.transactions.pending_children import PendingChildren
from tidemark.model import lsn as lsns
from tidemark.wal.rmgr import xact

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if not cython.compiled:
    from tidemark.wal.byte_readers import read_u32
else:
    from cython.cimports.tidemark.wal.byte_readers import read_u32  # type: ignore[no-redef] # the same ones

if TYPE_CHECKING:
    from tidemark.decode.transactions.pending_rows import PendingRows
    from tidemark.decode.transactions.record_parts import RecordParts

UNKNOWN = 0  # xid state: top-level, unless its first record names a top-level xid
KNOWN = 1  # xid state: its rows are not ordinary, its other records need no processing
ORDINARY = 2  # xid state: its rows are ordinary, and the caller has the transaction
PASSED_OVER = 3  # xid state: its rows are skipped, the caller has the transaction
SEES_OWN = -1  # xid state: this times the top-level xid; the caller has the transaction, which changed a catalog
NONE = -1  # no slot

# Copies as C integers, which Python code does not see.
IS_UNKNOWN = UNKNOWN
IS_ORDINARY = ORDINARY
FIRST_SLOT = PASSED_OVER + 1  # from here on, the transaction's slot plus this
NO_SLOT = NONE
XIDS_MASK = int(lsns.XID_MASK)
XIDS_AHEAD = int(lsns.HALF_OF_XIDS)
NAMES_CHILDREN = xact.HAS_SUBXACTS
NO_BYTES = b""

Buffer = bytes | bytearray


class XidStates:
    """The states, and the current record as far as they depend on it."""

    def __init__(self, parts: RecordParts, pending: PendingRows, complete_from: int) -> None:
        self.pending = pending
        self.parts = parts  # of the current record
        self.linear: Buffer = NO_BYTES  # the current block: an argument of this type would be copied by each call
        self.children = PendingChildren()
        # From xid to UNKNOWN, KNOWN, ORDINARY, PASSED_OVER, SEES_OWN, or a slot of `pending` (the top-level one's).
        self.xids = IntegerMap()
        self.complete_from = complete_from  # xid: older transactions can be partial; negative: all are whole
        self.next_xid = 0  # 64 bits: above every xid that was read
        self.xid = 0  # of the current record

    def forget_xids(self) -> None:
        """Forget all transactions."""
        self.xids = IntegerMap()

    def set_xid_state(self, xid: int, state: int) -> None:
        """Set the state of a transaction or subtransaction."""
        self.xids.put(xid, state)

    def pending_slot(self, xid: int) -> int:
        """Return the slot of the pending transaction to which `xid` belongs; NONE if it is not pending."""
        state = self.xids.get(xid)
        return state - FIRST_SLOT if state >= FIRST_SLOT else NO_SLOT

    def remove_child(self, xid: int) -> int:
        """Remove a pending subtransaction of `xid` and return it; 0 if there is none left."""
        slot = self.pending_slot(xid)
        child = self.children.pop(slot) if slot != NO_SLOT else 0
        if child != 0:
            self.xids.enter(child, IS_ORDINARY)
        return child

    def release(self, xid: int) -> int:
        """Remove a pending transaction: the caller has its rows now."""
        slot = self.pending_slot(xid)
        if slot != NO_SLOT and self.pending.is_top(slot, xid):
            self.set_children_state(slot, IS_ORDINARY)
            self.pending.release(slot)
            self.xids.enter(xid, IS_ORDINARY)
        return 0

    def set_children_state(self, slot: int, state: int) -> int:
        """Set the state of a transaction's pending subtransactions and remove them."""
        child = self.children.pop(slot)
        while child != 0:
            self.xids.enter(child, state)
            child = self.children.pop(slot)
        return 0

    def can_join(self, state: int) -> int:
        """Return whether the record is not the first of a subtransaction, or the subtransaction can become pending."""
        if self.parts.top == 0:
            return 1
        if state != IS_UNKNOWN or self.parts.top == self.xid or not self.children.has_space():
            return 0
        top_state = self.xids.get(self.parts.top)
        if top_state >= FIRST_SLOT:
            return self.pending.is_top(top_state - FIRST_SLOT, self.parts.top)
        return 1 if top_state == IS_UNKNOWN and self.is_complete(self.parts.top) else 0

    def join(self) -> int:
        """Add a subtransaction to its transaction, which must be pending by now."""
        if self.parts.top == 0:
            return 1
        top_state = self.xids.get(self.parts.top)
        if top_state < FIRST_SLOT or not self.can_join(IS_UNKNOWN):
            return 0
        self.advance_xid(self.xid)
        self.children.add(top_state - FIRST_SLOT, self.xid)
        self.xids.enter(self.xid, top_state)
        return 1

    def names_children(self, at: int, size: int, flags: int, state: int) -> int:
        """Return whether a commit names, at its end, exactly the pending subtransactions of the transaction."""
        slot = state - FIRST_SLOT
        if state >= FIRST_SLOT and not self.pending.is_top(slot, self.xid):
            return 0
        known = self.children.count(slot) if state >= FIRST_SLOT else 0
        if not flags & NAMES_CHILDREN:
            return 1 if size == 0 and known == 0 else 0
        if size < 4 or read_u32(self.linear, at) != known or size != 4 + 4 * known:
            return 0
        for number in range(1, known + 1):
            child = read_u32(self.linear, at + 4 * number)
            if child == self.xid or self.xids.get(child) != state:
                return 0
        return 1

    def advance_xid(self, xid: int) -> int:
        """Advance the next xid; return the 64-bit xid (`TransactionTable.full_xid`)."""
        distance = (xid - self.next_xid) & XIDS_MASK
        full = self.next_xid + distance
        if distance >= XIDS_AHEAD:
            full -= XIDS_MASK + 1
        if full >= self.next_xid:
            self.next_xid = full + 1
        return full

    def is_complete(self, xid: int) -> int:
        """Return whether a transaction that begins here is read from its beginning on (`xid_precedes`)."""
        return 1 if self.complete_from < 0 or (xid - self.complete_from) & XIDS_MASK < XIDS_AHEAD else 0
