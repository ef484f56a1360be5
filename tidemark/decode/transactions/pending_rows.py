"""Where the extractor puts rows: those of transactions that it holds until they end, and those of all others.

A transaction that is held has a slot, and nobody else hears of it. When it commits it comes out whole, among all that
do in the same call, as columns with no object a transaction. If it grows too large, or another record of it has to be
looked at, the caller takes it out; from then on it is one of the *others*, whose rows come out call by call.

Rows come in as they stand in WAL. At the end of a call they are arranged: those of the transactions that ended, in the
order of their commits, those of the others, in WAL's order, and what is still held, which moves to the front again.

The module is compiled where a compiler is there (its `.pxd` has the types) and runs interpreted otherwise; both do the
same. NB: no literal exceeds 31 bits: see the `.pxd`.
"""
# ruff: noqa: PLR0917 - columns and their bounds: a struct of them would be an object a call

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tidemark.decode.datum.row_entries import ABSENT, ENTRY_BYTES
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
SLOTS_MAX = 8192  # transactions from the oldest that is held on; a power of two, twice what a block of records begins
SMALL_ROWS = 256  # a transaction with more is better not held from one call to the next
SMALL_BYTES = 64 << 10  # of tuples: nor is one with more
LONG = 1024  # nor one since which so many have begun
NONE = -1  # of a slot, of an LSN: there is none
RUN_COLUMNS = 4
ROW_ENDS = 7  # which of the columns of `ends`; those before it are of `SmallTransactions`
BYTE_ENDS = 8
RESTART_LSNS = 9
END_COLUMNS = 11
SLOT_COLUMNS = 7

# The same as C integers, which Python does not see.
ROOM = ROWS_MAX
IN_RECORD_MAX = RECORD_ROWS_MAX
SLOTS = SLOTS_MAX
ROWS_EACH = SMALL_ROWS
BYTES_EACH = SMALL_BYTES
SINCE = LONG
NOTHING = NONE
OTHERS = NONE  # in place of a slot
GONE = -2  # in place of a slot: a row that was rolled back
ALL_XIDS = (1 << 32) - 1
STEP = ENTRY_BYTES
WORDS = 4
NO_TUPLE = ABSENT
NO_BYTES = b""

Buffer = bytes | bytearray


class PendingRows:
    """Rows that came in with the last call, and those that are held from one call to the next."""

    def __init__(
        self,
        entries: bytearray,
        arranged: bytearray,
        runs: Sequence[array[int]],
        ends: Sequence[array[int]],
        slots: Sequence[array[int]],
    ) -> None:
        """Work in buffers and arrays that the caller reads: with room for ROWS_MAX, and `slots` for SLOTS_MAX.

        `runs` are of the others' rows: xid, rows and bytes of tuples up to the run's end, and how many more these rows
        stand for. `ends` are of the held
        transactions that committed: xid, first LSN, commit LSN, end LSN, time, database, rows, rows and bytes up to its
        end, where a restart behind it begins, slot. `slots` are of those that did not: xid (0: none), first LSN, rows
        and bytes, where these begin, and how many more rows these stand for.
        """
        self.entries = entries
        self.words = memoryview(entries).cast("Q")  # the same, by eight bytes
        self.arranged = arranged
        self.row_slots, self.row_sizes, self.arranged_sizes = (array("q", bytes(8 * ROWS_MAX)) for _ in range(3))
        self.run_xids, self.run_rows, self.run_bytes, self.run_more = runs
        self.end_xids, self.end_firsts, self.end_lsns, self.end_ends, self.end_times, self.end_databases = ends[:6]
        self.end_counts, self.end_rows, self.end_bytes, self.end_restarts, self.end_slots = ends[6:]
        self.slot_xids, self.slot_firsts, self.slot_rows, self.slot_bytes, self.slot_row_at, self.slot_byte_at = slots[
            :6
        ]
        self.slot_more = slots[6]
        self.slot_latest = array("q", bytes(8 * SLOTS_MAX))  # row of each, if nobody wants it
        self.linear: Buffer = NO_BYTES  # the block at hand: an argument of this kind would be copied by each call
        self.tuples = bytearray(1)
        self.arranged_tuples = bytearray(1)
        self.row_count = 0  # held, between calls
        self.tuple_count = 0  # bytes of their tuples
        self.run_count = 0
        self.end_count = 0
        self.other_rows = 0
        self.other_bytes = 0
        self.other_more = 0
        self.others_at = 0  # where their rows begin among those that were arranged
        self.others_byte_at = 0
        self.pending_count = 0
        self.is_sorted = True  # the rows of each transaction that is held lie together
        self.has_gaps = False  # rows that are held no longer, or were rolled back, lie among the others
        self.is_crowded = False  # something is better held no longer
        self.others_lsn = NOTHING  # the least first LSN of the others that are open
        self.head = 0  # slots from here on may be in use; a slot's place in the arrays is its remainder by SLOTS_MAX
        self.tail = 0  # those from here on are free
        self.oldest = 0  # between both
        self.is_arranged = False  # otherwise the others' rows are the entries, and nothing is held

    def begin(self, linear: Buffer, tuples: bytearray, arranged_tuples: bytearray, others_lsn: int) -> int:
        """Begin a call: forget what the last one has taken out."""
        self.linear = linear
        self.tuples = tuples
        self.arranged_tuples = arranged_tuples
        self.others_lsn = others_lsn
        self.other_rows = self.other_bytes = self.other_more = self.run_count = self.end_count = 0
        return 0

    def has_room(self) -> int:
        """Tell if a record can be taken."""
        return 1 if self.row_count + IN_RECORD_MAX <= ROOM and self.tail - self.head < SLOTS else 0

    def hold(self, xid: int, lsn: int) -> int:
        """Hold a transaction whose first row comes now; return its slot."""
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
        """Put a row behind those taken so far."""
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
        """Say that nobody wants the row that was put last."""
        row = self.row_count - 1
        one = 1
        self.words[row * WORDS + 2] += one << 32
        if slot != OTHERS:
            self.slot_latest[slot] = row
        return 0

    def count(self, slot: int, xid: int) -> int:
        """Let the latest row of a transaction stand for one more that nobody wants; 0 if it is none of these."""
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
        """Put a tuple behind those taken so far; they are parts of the block, so there is room."""
        if cython.compiled:
            if length > 0:
                memcpy(cython.address(self.tuples[self.tuple_count]), cython.address(self.linear[at]), length)
        else:
            self.tuples[self.tuple_count : self.tuple_count + length] = self.linear[at : at + length]
        self.tuple_count += length
        return 0

    def commit(self, slot: int, lsn: int, end_lsn: int, time: int, database: int) -> int:
        """Put a held transaction behind those that have committed so far, if it has rows."""
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
        """Tell if `xid` is the transaction in `slot`, and no subtransaction of it."""
        return 1 if self.slot_xids[slot] & ALL_XIDS == xid else 0

    def drop(self, slot: int, xid: int) -> int:
        """Forget what a subtransaction did that is rolled back: the last rows of its transaction."""
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
        """Hold a transaction no longer, and forget its rows."""
        self.slot_xids[slot] = 0
        self.slot_row_at[slot] = NOTHING
        self.pending_count -= 1
        self.has_gaps = True
        return 0

    def oldest_lsn(self) -> int:
        """Return the least first LSN of what is held."""
        while self.oldest < self.tail and self.slot_xids[self.oldest & (SLOTS - 1)] == 0:
            self.oldest += 1
        return self.slot_firsts[self.oldest & (SLOTS - 1)] if self.oldest < self.tail else NOTHING

    def first_lsn(self) -> int:
        """Return the same, to those who have the interpreter; NONE if nothing is held."""
        return self.oldest_lsn()

    def finish(self) -> int:
        """End a call: sort the rows by what became of their transactions.

        As long as rows are only added to what is held they lie as they came: a call may end at any record.
        """
        self.is_arranged = self.other_rows != self.row_count and (
            self.end_count > 0 or self.other_rows > 0 or self.has_gaps
        )
        if self.is_arranged:
            return self.arrange()
        self.others_at = self.others_byte_at = 0
        if self.other_rows == self.row_count:
            self.row_count = self.tuple_count = 0
            if self.pending_count == 0:  # NB: what is held may have no rows: all were rolled back
                self.head = self.oldest = self.tail
                self.is_crowded = False
            self.has_gaps = False
            self.is_sorted = True
        return 0

    def settle(self) -> None:
        """Sort what is held, so that the rows of each transaction lie together."""
        if not self.is_sorted:
            self.other_rows = self.other_bytes = self.other_more = self.run_count = self.end_count = 0
            self.arrange()

    def arrange(self) -> int:
        """Find out where each transaction's rows go, and move them."""
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
        """Copy each row to where its transaction's next one goes."""
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
        """Copy a row, whose tuples are `size` bytes at `at`."""
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
        """Begin the next call with rows that are held."""
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
        self.is_crowded = self.tail - self.head > SINCE
        for number in range(self.head, self.tail):
            slot = number & (SLOTS - 1)
            if self.slot_xids[slot] != 0:
                self.is_crowded |= self.slot_rows[slot] > ROWS_EACH or self.slot_bytes[slot] > BYTES_EACH
                # What `place` has counted up to their ends.
                self.slot_row_at[slot] -= row + self.slot_rows[slot]
                self.slot_byte_at[slot] -= byte + self.slot_bytes[slot]
                for at in range(self.slot_row_at[slot], self.slot_row_at[slot] + self.slot_rows[slot]):
                    self.row_slots[at] = slot
                self.slot_latest[slot] = self.slot_row_at[slot] + self.slot_rows[slot] - 1
        return 0
