"""The extractor's buffers: rows of pending transactions until they end, and rows of all other transactions.

A pending transaction has a slot, and no other module has it. When it commits it is returned whole, together with all
others that commit in the same call, as columns without an object for each. If it grows too large, or the decoder must
process one of its records, the caller removes it. It is then one of the *others*, whose rows every call returns.

Rows are added in WAL order. At the end of a call they are arranged: first the rows of ended transactions in commit
order, then the others' rows in WAL order, then the pending rows, which are moved to the front again.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
NB: use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: PLR0917 - columns and their bounds: a struct of them would be an object a call

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tidemark.decode.datum.row_entries import ABSENT, ENTRY_BYTES
from tidemark.model.lsn import XID_MASK
from tidemark.wal.rmgr.heap2 import TUPLES_MAX

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if TYPE_CHECKING:
    from collections.abc import Sequence

if cython.compiled:
    from cython.cimports.libc.string import memcpy

ROWS_MAX = 16384  # at once
RECORD_ROWS_MAX = TUPLES_MAX  # rows of one record
SLOTS_MAX = 8192  # from the oldest pending transaction on; a power of two, twice what a block of records can begin
SMALL_ROWS = 256  # a transaction with more rows should not stay pending
SMALL_BYTES = 64 << 10  # a transaction with more bytes of tuples should not stay pending
LONG = 1024  # nor one after which this many transactions have begun
NONE = -1  # no slot or no LSN
JOINED = -1  # in place of a tuple's offset: it is the row in `joined`
RUN_COLUMNS = 4
ROW_ENDS = 7  # index in `ends`; the columns before it are those of `SmallTransactions`
BYTE_ENDS = 8
RESTART_LSNS = 9
END_COLUMNS = 11
SLOT_COLUMNS = 7

# Copies as C integers, which Python code does not see.
ENTRIES_MAX = ROWS_MAX
IN_RECORD_MAX = RECORD_ROWS_MAX
SLOTS = SLOTS_MAX
ROWS_EACH = SMALL_ROWS
BYTES_EACH = SMALL_BYTES
SINCE = LONG
NOTHING = NONE
OTHERS = NONE  # in place of a slot: the row belongs to another transaction
GONE = -2  # in place of a slot: the row was rolled back
ALL_XIDS = int(XID_MASK)
STEP = ENTRY_BYTES
WORDS = 4
NO_TUPLE = ABSENT
IN_JOINED = JOINED
NO_BYTES = b""

Buffer = bytes | bytearray


class PendingRows:
    """The rows of the last call, and the pending rows."""

    def __init__(
        self,
        entries: bytearray,
        arranged: bytearray,
        runs: Sequence[array[int]],
        ends: Sequence[array[int]],
        slots: Sequence[array[int]],
    ) -> None:
        """Use buffers and arrays that the caller reads: with space for ROWS_MAX, and `slots` for SLOTS_MAX.

        `runs` are of the others' rows: xid, rows and bytes of tuples up to the run's end, and additional rows for which
        these entries stand. `ends` are of the pending transactions that committed: xid, first LSN, commit LSN, end
        LSN, time, database, rows, rows and bytes up to its end, restart LSN after it, slot. `slots` are of those that
        did not: xid (0: none), first LSN, rows and bytes, starts of both, additional rows for which entries stand.
        """
        self.entries = entries
        self.words = memoryview(entries).cast("Q")  # the same as 8-byte words
        self.arranged = arranged
        self.row_slots, self.row_sizes, self.arranged_sizes = (array("q", bytes(8 * ROWS_MAX)) for _ in range(3))
        self.run_xids, self.run_rows, self.run_bytes, self.run_more = runs
        self.end_xids, self.end_firsts, self.end_lsns, self.end_ends, self.end_times, self.end_databases = ends[:6]
        self.end_counts, self.end_rows, self.end_bytes, self.end_restarts, self.end_slots = ends[6:]
        self.slot_xids, self.slot_firsts, self.slot_rows, self.slot_bytes, self.slot_row_at, self.slot_byte_at = slots[
            :6
        ]
        self.slot_more = slots[6]
        self.slot_latest = array("q", bytes(8 * SLOTS_MAX))  # for each slot, its latest row if it is unselected
        self.linear: Buffer = NO_BYTES  # the current block: an argument of this type would be copied by each call
        self.joined = bytearray(1)  # a row with the values that it points to
        self.tuples = bytearray(1)
        self.arranged_tuples = bytearray(1)
        self.row_count = 0  # pending rows, between calls
        self.tuple_count = 0  # bytes of their tuples
        self.run_count = 0
        self.end_count = 0
        self.other_rows = 0
        self.other_bytes = 0
        self.other_more = 0
        self.others_at = 0  # start of their rows among the arranged rows
        self.others_byte_at = 0
        self.pending_count = 0
        self.is_sorted = True  # the rows of each pending transaction are contiguous
        self.has_gaps = False  # rows that are no longer pending, or were rolled back, remain among the others
        self.needs_moves = False  # some transaction should not stay pending
        self.others_lsn = NOTHING  # the least first LSN of the others that are open
        self.head = 0  # slots from here on may be in use; the index in the arrays is the slot modulo SLOTS_MAX
        self.tail = 0  # slots from here on are free
        self.oldest = 0  # between both
        self.is_arranged = False  # if false, the entries are the others' rows in order, and none are pending

    def begin(self, linear: Buffer, tuples: bytearray, arranged_tuples: bytearray, others_lsn: int) -> int:
        """Begin a call: drop what the last one returned."""
        self.linear = linear
        self.tuples = tuples
        self.arranged_tuples = arranged_tuples
        self.others_lsn = others_lsn
        self.other_rows = self.other_bytes = self.other_more = self.run_count = self.end_count = 0
        return 0

    def has_space(self) -> int:
        """Return whether there is space for another record."""
        return 1 if self.row_count + IN_RECORD_MAX <= ENTRIES_MAX and self.tail - self.head < SLOTS else 0

    def hold(self, xid: int, lsn: int) -> int:
        """Add a pending transaction, whose first row comes next; return its slot."""
        slot = self.tail & (SLOTS - 1)
        self.tail += 1
        self.pending_count += 1
        self.slot_xids[slot] = xid
        self.slot_firsts[slot] = lsn
        self.slot_rows[slot] = 0
        self.slot_bytes[slot] = 0
        self.slot_row_at[slot] = 0
        self.slot_more[slot] = 0
        self.slot_latest[slot] = NOTHING
        return slot

    def add(
        self,
        slot: int,
        xid: int,
        lsn: int,
        op: int,
        before_kind: int,
        origin: int,
        relation: int,
        new_at: int,
        new_length: int,
        old_at: int,
        old_length: int,
    ) -> int:
        """Append a row."""
        at = self.row_count * WORDS
        begin = self.tuple_count
        low = origin
        high = relation
        self.words[at] = op | before_kind << 8 | low << 16 | high << 32
        high = new_length
        self.words[at + 1] = xid | high << 32
        self.words[at + 2] = old_length
        self.words[at + 3] = lsn
        if old_length != NO_TUPLE:
            self.copy(old_at, old_length)
        if new_length != NO_TUPLE:
            if new_at == IN_JOINED:
                self.copy_joined(new_length)
            else:
                self.copy(new_at, new_length)
        size = self.tuple_count - begin
        self.row_slots[self.row_count] = slot
        self.row_sizes[self.row_count] = size
        self.row_count += 1
        if slot != OTHERS:
            self.slot_rows[slot] += 1
            self.slot_bytes[slot] += size
            self.is_sorted = False
            self.slot_latest[slot] = NOTHING
            return 0
        run = self.run_count - 1
        if run < 0 or self.run_xids[run] != xid:
            run = self.run_count
            self.run_xids[run] = xid
            self.run_count += 1
        self.other_rows += 1
        self.other_bytes += size
        self.run_rows[run] = self.other_rows
        self.run_bytes[run] = self.other_bytes
        self.run_more[run] = self.other_more
        return 0

    def begin_count(self, slot: int) -> int:
        """Mark the last row as unselected."""
        row = self.row_count - 1
        one = 1
        self.words[row * WORDS + 2] += one << 32
        if slot != OTHERS:
            self.slot_latest[slot] = row
        return 0

    def count(self, slot: int, xid: int) -> int:
        """Count one more unselected row in the latest entry of a transaction; return 0 if that entry does not match."""
        row = self.row_count - 1
        if slot != OTHERS:
            row = self.slot_latest[slot]
        if row < 0 or self.row_slots[row] != slot or self.words[row * WORDS + 1] & ALL_XIDS != xid:
            return 0
        rows = self.words[row * WORDS + 2] >> 32
        if rows in (0, ALL_XIDS):
            return 0
        one = 1
        self.words[row * WORDS + 2] += one << 32
        if slot != OTHERS:
            self.slot_more[slot] += 1
        else:
            self.other_more += 1
            self.run_more[self.run_count - 1] = self.other_more
        return 1

    def copy(self, at: int, length: int) -> int:
        """Append a tuple; tuples are parts of the block, so there is space."""
        if cython.compiled:
            if length > 0:
                memcpy(cython.address(self.tuples[self.tuple_count]), cython.address(self.linear[at]), length)
        else:
            self.tuples[self.tuple_count : self.tuple_count + length] = self.linear[at : at + length]
        self.tuple_count += length
        return 0

    def copy_joined(self, length: int) -> int:
        """Append the row in `joined`; the caller has asked whether there is space."""
        if cython.compiled:
            memcpy(cython.address(self.tuples[self.tuple_count]), cython.address(self.joined[0]), length)
        else:
            self.tuples[self.tuple_count : self.tuple_count + length] = self.joined[:length]
        self.tuple_count += length
        return 0

    def has_bytes(self, size: int) -> int:
        """Return whether there is space for so many bytes of tuples."""
        return 1 if size <= len(self.tuples) - self.tuple_count else 0

    def commit(self, slot: int, lsn: int, end_lsn: int, time: int, database: int) -> int:
        """Append a pending transaction to those that committed in this call, if it has rows."""
        if self.slot_rows[slot] == 0:
            return self.release(slot)
        end = self.end_count
        self.end_xids[end] = self.slot_xids[slot]
        self.end_firsts[end] = self.slot_firsts[slot]
        self.end_lsns[end] = lsn
        self.end_ends[end] = end_lsn
        self.end_times[end] = time
        self.end_databases[end] = database
        self.end_counts[end] = self.slot_rows[slot] + self.slot_more[slot]
        self.end_slots[end] = slot
        self.slot_xids[slot] = 0
        self.pending_count -= 1
        restart = self.oldest_lsn()
        if restart == NOTHING or (self.others_lsn != NOTHING and self.others_lsn < restart):
            restart = self.others_lsn
        self.end_restarts[end] = end_lsn if restart == NOTHING else restart
        self.end_count += 1
        return 0

    def is_top(self, slot: int, xid: int) -> int:
        """Return whether `xid` is the transaction in `slot`, and not a subtransaction."""
        return 1 if self.slot_xids[slot] & ALL_XIDS == xid else 0

    def drop(self, slot: int, xid: int) -> int:
        """Drop the rows of a subtransaction that is rolled back: the last rows of its transaction."""
        row = self.row_count - 1
        while row >= 0 and self.slot_rows[slot] > 0:
            if self.row_slots[row] == slot:
                owner = self.words[row * WORDS + 1] & ALL_XIDS
                if owner != xid:
                    break
                rows = self.words[row * WORDS + 2] >> 32
                self.slot_more[slot] -= rows - 1 if rows > 0 else 0
                self.row_slots[row] = GONE
                self.slot_rows[slot] -= 1
                self.slot_bytes[slot] -= self.row_sizes[row]
                self.has_gaps = True
                self.is_sorted = False
            row -= 1
        return 0

    def release(self, slot: int) -> int:
        """Remove a pending transaction and its rows."""
        self.slot_xids[slot] = 0
        self.slot_row_at[slot] = NOTHING
        self.pending_count -= 1
        self.has_gaps = True
        return 0

    def oldest_lsn(self) -> int:
        """Return the least first LSN of pending transactions."""
        while self.oldest < self.tail and self.slot_xids[self.oldest & (SLOTS - 1)] == 0:
            self.oldest += 1
        return self.slot_firsts[self.oldest & (SLOTS - 1)] if self.oldest < self.tail else NOTHING

    def first_lsn(self) -> int:
        """Return the same to Python code; NONE if no transaction is pending."""
        return self.oldest_lsn()

    def finish(self) -> int:
        """End a call: sort the rows by the state of their transactions.

        If rows were only added to pending transactions, they stay in place: a call may end at any record.
        """
        self.is_arranged = self.other_rows != self.row_count and (
            self.end_count > 0 or self.other_rows > 0 or self.has_gaps
        )
        if self.is_arranged:
            return self.arrange()
        self.others_at = self.others_byte_at = 0
        if self.other_rows == self.row_count:
            self.row_count = self.tuple_count = 0
            if self.pending_count == 0:  # NB: pending transactions may have no rows: all were rolled back
                self.head = self.oldest = self.tail
                self.needs_moves = False
            self.has_gaps = False
            self.is_sorted = True
        return 0

    def sort_rows(self) -> None:
        """Sort the pending rows so that the rows of each transaction are contiguous."""
        if not self.is_sorted:
            self.other_rows = self.other_bytes = self.other_more = self.run_count = self.end_count = 0
            self.arrange()

    def arrange(self) -> int:
        """Compute the target of each transaction's rows, and move them."""
        row = 0
        byte = 0
        for end in range(self.end_count):
            slot = self.end_slots[end]
            self.slot_row_at[slot] = row
            self.slot_byte_at[slot] = byte
            row += self.slot_rows[slot]
            byte += self.slot_bytes[slot]
            self.end_rows[end] = row
            self.end_bytes[end] = byte
        self.others_at = row
        self.others_byte_at = byte
        row += self.other_rows
        byte += self.other_bytes
        pending_at = row
        pending_byte_at = byte
        while self.head < self.tail and self.slot_xids[self.head & (SLOTS - 1)] == 0:
            self.head += 1
        self.oldest = max(self.oldest, self.head)
        for number in range(self.head, self.tail):
            slot = number & (SLOTS - 1)
            if self.slot_xids[slot] != 0:
                self.slot_row_at[slot] = row
                self.slot_byte_at[slot] = byte
                row += self.slot_rows[slot]
                byte += self.slot_bytes[slot]
        self.place()
        self.keep(pending_at, row - pending_at, pending_byte_at, byte - pending_byte_at)
        return 0

    def place(self) -> int:
        """Copy each row to the next place of its transaction."""
        at = 0
        other = self.others_at
        other_byte = self.others_byte_at
        for row in range(self.row_count):
            slot = self.row_slots[row]
            size = self.row_sizes[row]
            if slot == OTHERS:
                self.move(row, at, size, other, other_byte)
                other += 1
                other_byte += size
            elif slot != GONE and self.slot_row_at[slot] != NOTHING:
                self.move(row, at, size, self.slot_row_at[slot], self.slot_byte_at[slot])
                self.slot_row_at[slot] += 1
                self.slot_byte_at[slot] += size
            at += size
        return 0

    def move(self, row: int, at: int, size: int, to: int, to_byte: int) -> int:
        """Copy a row whose tuples are `size` bytes at `at`."""
        if cython.compiled:
            memcpy(cython.address(self.arranged[to * STEP]), cython.address(self.entries[row * STEP]), STEP)
            if size > 0:
                memcpy(cython.address(self.arranged_tuples[to_byte]), cython.address(self.tuples[at]), size)
        else:
            self.arranged[to * STEP : to * STEP + STEP] = self.entries[row * STEP : row * STEP + STEP]
            self.arranged_tuples[to_byte : to_byte + size] = self.tuples[at : at + size]
        self.arranged_sizes[to] = size
        return 0

    def keep(self, row: int, rows: int, byte: int, size: int) -> int:
        """Begin the next call with the pending rows."""
        if cython.compiled:
            if rows > 0:
                memcpy(cython.address(self.entries[0]), cython.address(self.arranged[row * STEP]), rows * STEP)
            if size > 0:
                memcpy(cython.address(self.tuples[0]), cython.address(self.arranged_tuples[byte]), size)
        else:
            self.entries[: rows * STEP] = self.arranged[row * STEP : (row + rows) * STEP]
            self.tuples[:size] = self.arranged_tuples[byte : byte + size]
        self.row_count = rows
        self.tuple_count = size
        self.has_gaps = False
        self.is_sorted = True
        for at in range(rows):
            self.row_sizes[at] = self.arranged_sizes[row + at]
        self.needs_moves = self.tail - self.head > SINCE
        for number in range(self.head, self.tail):
            slot = number & (SLOTS - 1)
            if self.slot_xids[slot] != 0:
                self.needs_moves |= self.slot_rows[slot] > ROWS_EACH or self.slot_bytes[slot] > BYTES_EACH
                # Sizes that `place` has advanced to the ends.
                self.slot_row_at[slot] -= row + self.slot_rows[slot]
                self.slot_byte_at[slot] -= byte + self.slot_bytes[slot]
                for at in range(self.slot_row_at[slot], self.slot_row_at[slot] + self.slot_rows[slot]):
                    self.row_slots[at] = slot
                self.slot_latest[slot] = self.slot_row_at[slot] + self.slot_rows[slot] - 1
        return 0
