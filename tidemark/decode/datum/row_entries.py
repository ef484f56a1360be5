"""Rows as entries of fixed size beside an arena of their tuples, and the loops over them.

An entry has a row's metadata; the tuples are end to end in another buffer, in the order of the entries, a row's old
tuple before its new one. So two buffers contain any number of rows, and two slices copy a run of rows.

    0 u8 op, the letter           4 u32 index of the relation version     12 u32 length of the new tuple     24 u64 LSN
    1 u8 BeforeKind               8 u32 xid of the subtransaction         16 u32 length of the old tuple
    2 u16 replication origin                                              20 u32 rows, if they are unselected

Adjacent unselected rows of one subtransaction share one entry with the first row's metadata; of the others only the
ordinals remain. 0 rows: the entry is one selected row.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
NB: assign a byte to a variable before shifting it, and use no literal over 31 bits: see the `.pxd`.
"""
# ruff: noqa: PLR0917 - columns and their bounds: a struct of them would be an object a call

from __future__ import annotations

from array import array
from struct import Struct
from typing import Protocol

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

ENTRY = Struct("<BBHIIIIxxxxQ")
ENTRY_BYTES = 32
ORIGIN_AT = 2
RELATION_AT = 4
XID_AT = 8
NEW_AT = 12
OLD_AT = 16
ROWS_AT = 20
LSN_AT = 24
ABSENT = 0xFFFFFFFF  # length of an absent tuple
ALL_KNOWN = -1  # in place of a version's number

# Copies as C integers, which Python code does not see: in 4-byte words, of which the first has op, kind and origin.
STEP = ENTRY_BYTES // 4
TO_RELATION = RELATION_AT // 4
TO_NEW = NEW_AT // 4
TO_OLD = OLD_AT // 4
TO_ROWS = ROWS_AT // 4
TO_LSN = LSN_AT // 4
NO_TUPLE = ABSENT
LOW_BITS = (1 << 32) - 1
BYTE = 0xFF
INVALID = -1  # also an invalid offset or length
SELECTED, LEFT_OUT = 1, 2  # of a version; 0: unknown
SELECTED_VERSION = SELECTED
NONE_UNKNOWN = ALL_KNOWN

Buffer = bytes | bytearray


class SortedColumns(Protocol):
    """The columns into which rows are sorted (`RowSpans`)."""

    op: bytearray
    before_kind: bytearray
    timeline: array[int]
    commit_lsn: array[int]
    ordinal: array[int]
    origin: array[int]
    lsn: array[int]
    xid: array[int]
    commit_time_us: array[int]
    new_at: array[int]
    new_length: array[int]
    old_at: array[int]
    old_length: array[int]


def tuple_bytes(entries: Buffer, start: int, stop: int) -> int:
    """Return the size of the tuples of entries `start` to `stop`."""
    words = memoryview(entries).cast("I")
    total = 0
    with cython.nogil:
        for row in range(start, stop):
            length = words[row * STEP + TO_NEW]
            if length != NO_TUPLE:
                total += length
            length = words[row * STEP + TO_OLD]
            if length != NO_TUPLE:
                total += length
    return total


def row_count(entries: Buffer, start: int, stop: int) -> int:
    """Return the number of rows for which the entries `start` to `stop` stand."""
    words = memoryview(entries).cast("I")
    total = 0
    with cython.nogil:
        for row in range(start, stop):
            rows = words[row * STEP + TO_ROWS]
            total += 1 if rows == 0 else rows
    return total


def rows_within(entries: Buffer, start: int, stop: int, space: int) -> int:
    """Return how many entries from `start` on fit, including the one that exceeds `space` bytes of tuples."""
    words = memoryview(entries).cast("I")
    row = start
    with cython.nogil:
        while row < stop and space > 0:
            length = words[row * STEP + TO_NEW]
            if length != NO_TUPLE:
                space -= length
            length = words[row * STEP + TO_OLD]
            if length != NO_TUPLE:
                space -= length
            row += 1
    return row - start


def add_costs(
    entries: Buffer, start: int, stop: int, costs: array[int], marked: bytearray, total: array[int], most: int
) -> int:
    """Mark the relation versions of the entries from `start` on, and add the costs of newly marked ones to the total.

    Return where it stopped: after the entry with which the total reaches `most`, or at `stop`.
    """
    words = memoryview(entries).cast("I")
    cost_sum = total[0]
    row = start
    with cython.nogil:
        while row < stop and cost_sum < most:
            relation = words[row * STEP + TO_RELATION]
            if marked[relation] == 0:
                marked[relation] = 1
                cost_sum += costs[relation]
            row += 1
    total[0] = cost_sum
    return row


def tally(entries: Buffer, rows: array[int]) -> int:
    """Add to `rows` how many entries each relation version has; return the number of entries."""
    words = memoryview(entries).cast("I")
    count = len(words) // STEP
    with cython.nogil:
        for row in range(count):
            rows[words[row * STEP + TO_RELATION]] += 1
    return count


def arrange(
    entries: Buffer,
    tuple_bytes: int,
    run_rows: array[int],
    run_ordinals: array[int],
    run_timelines: array[int],
    run_commit_lsns: array[int],
    run_times: array[int],
    run_xids: array[int],
    next_row: array[int],
    op: bytearray,
    before_kind: bytearray,
    origin: array[int],
    lsn: array[int],
    ordinal: array[int],
    timeline: array[int],
    commit_lsn: array[int],
    time: array[int],
    xid: array[int],
    new_at: array[int],
    new_length: array[int],
    old_at: array[int],
    old_length: array[int],
) -> int:
    """Sort entries by relation version, stably, into columns; return how many were moved.

    The tuples stay in place: the columns have their offsets. `run_rows` has the entries up to each run's end,
    `run_ordinals` the ordinals of its first row, and the other `run_` columns its transaction's attributes. `next_row`
    has, for each version, the index of its next row, negative for a version that is left out; it is advanced. INVALID:
    there are fewer than `tuple_bytes`, or entries after the last run.
    """
    words = memoryview(entries).cast("I")
    count = len(words) // STEP
    at = 0
    run = 0
    row = 0
    moved = 0
    with cython.nogil:
        for run in range(len(run_rows)):
            ordinal_of_first = run_ordinals[run] - row
            its_timeline = run_timelines[run]
            its_commit_lsn = run_commit_lsns[run]
            its_time = run_times[run]
            its_xid = run_xids[run] & LOW_BITS
            stop = run_rows[run]
            while row < stop:
                entry = row * STEP
                relation = words[entry + TO_RELATION]
                new = words[entry + TO_NEW]
                old = words[entry + TO_OLD]
                new_size = 0 if new == NO_TUPLE else new
                old_size = 0 if old == NO_TUPLE else old
                to = next_row[relation]
                if to >= 0:
                    low = words[entry]
                    op[to] = low & BYTE
                    before_kind[to] = low >> 8 & BYTE
                    origin[to] = low >> 16
                    low = words[entry + TO_LSN]
                    high = words[entry + TO_LSN + 1]
                    lsn[to] = low | high << 32
                    ordinal[to] = ordinal_of_first + row
                    timeline[to] = its_timeline
                    commit_lsn[to] = its_commit_lsn
                    time[to] = its_time
                    xid[to] = its_xid
                    old_at[to] = INVALID if old == NO_TUPLE else at
                    old_length[to] = INVALID if old == NO_TUPLE else old_size
                    new_at[to] = INVALID if new == NO_TUPLE else at + old_size
                    new_length[to] = INVALID if new == NO_TUPLE else new_size
                    next_row[relation] = to + 1
                    moved += 1
                at += old_size + new_size
                row += 1
                rows = words[entry + TO_ROWS]
                if rows != 0:
                    ordinal_of_first += rows - 1
    return moved if row == count and at <= tuple_bytes else INVALID


class RowSorter:
    """Sorts the entries of a group into columns, as `arrange` does.

    It holds the columns and a number for each version: taking them at each call would cost more than a few rows.
    """

    def __init__(self, columns: SortedColumns) -> None:
        """Sort into `columns`, until others are held."""
        self.selection = bytearray(1)  # by version
        self.next_row = array("q", [0])
        self.hold(columns)

    def hold(self, columns: SortedColumns) -> None:
        """Sort into these columns, whose length can no longer change."""
        self.op = columns.op
        self.before_kind = columns.before_kind
        self.origin = columns.origin
        self.lsn = columns.lsn
        self.ordinal = columns.ordinal
        self.timeline = columns.timeline
        self.commit_lsn = columns.commit_lsn
        self.time = columns.commit_time_us
        self.xid = columns.xid
        self.new_at = columns.new_at
        self.new_length = columns.new_length
        self.old_at = columns.old_at
        self.old_length = columns.old_length

    def forget(self) -> None:
        """Forget which versions are selected: they have other numbers now."""
        self.selection = bytearray(1)

    def select(self, number: int, is_selected: int) -> None:
        """Record whether the rows of a version are selected."""
        self.selection[number] = SELECTED if is_selected else LEFT_OUT

    def count(self, entries: Buffer, versions: int) -> int:
        """Count the rows of each of so many versions; return one without a selection, or ALL_KNOWN."""
        if versions > len(self.selection):
            self.selection = bytearray(self.selection) + bytes(versions - len(self.selection))
        if versions != len(self.next_row):
            self.next_row = array("q", bytes(8 * versions))
        for number in range(versions):
            self.next_row[number] = 0
        tally(entries, self.next_row)
        for number in range(versions):
            if self.next_row[number] != 0 and self.selection[number] == 0:
                return number
        return NONE_UNKNOWN

    def sort(
        self,
        entries: Buffer,
        tuple_bytes: int,
        runs: int,
        run_rows: array[int],
        run_ordinals: array[int],
        run_timelines: array[int],
        run_commit_lsns: array[int],
        run_times: array[int],
        run_xids: array[int],
    ) -> list[tuple[int, int, int]] | None:
        """Sort the counted entries; return number, first row and end of each selected version. None: see `arrange`."""
        ranges = []
        rows = 0
        for number in range(len(self.next_row)):
            count = self.next_row[number]
            self.next_row[number] = INVALID
            if count != 0 and self.selection[number] == SELECTED_VERSION:
                self.next_row[number] = rows
                ranges.append((number, rows, rows + count))
                rows += count
        moved = arrange(
            entries,
            tuple_bytes,
            run_rows[:runs],
            run_ordinals,
            run_timelines,
            run_commit_lsns,
            run_times,
            run_xids,
            self.next_row,
            self.op,
            self.before_kind,
            self.origin,
            self.lsn,
            self.ordinal,
            self.timeline,
            self.commit_lsn,
            self.time,
            self.xid,
            self.new_at,
            self.new_length,
            self.old_at,
            self.old_length,
        )
        return ranges if moved == rows else None


def has_selected(entries: Buffer, start: int, stop: int) -> int:
    """Return whether one of the entries `start` to `stop` is a selected row."""
    words = memoryview(entries).cast("I")
    with cython.nogil:
        for row in range(start, stop):
            if words[row * STEP + TO_ROWS] == 0:
                return 1
    return 0


def put_runs(
    row_ends: array[int],
    commit_lsns: array[int],
    times: array[int],
    xids: array[int],
    start: int,
    stop: int,
    more_rows: int,
    timeline: int,
    to: int,
    run_rows: array[int],
    run_ordinals: array[int],
    run_timelines: array[int],
    run_commit_lsns: array[int],
    run_times: array[int],
    run_xids: array[int],
) -> int:
    """Append whole transactions, `start` to `stop`, to the runs from `to` on; return how many there are.

    `more_rows` is added to their `row_ends`.
    """
    with cython.nogil:
        for at in range(start, stop):
            run_rows[to] = row_ends[at] + more_rows
            run_ordinals[to] = 0
            run_timelines[to] = timeline
            run_commit_lsns[to] = commit_lsns[at]
            run_times[to] = times[at]
            run_xids[to] = xids[at]
            to += 1
    return stop - start
