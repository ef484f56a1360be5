"""The rows of pending transactions, compared with a list for each, and all other rows, compared with one list.

The interpreted kernel: compiled, its methods are C functions, which only `extract` can call.
"""

import random
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.oracles.twins import interpreted
from tidemark.decode.datum.row_entries import ENTRY_BYTES
from tidemark.decode.transactions.pending_rows import (
    END_COLUMNS,
    LONG,
    NONE,
    RECORD_ROWS_MAX,
    ROWS_MAX,
    RUN_COLUMNS,
    SLOT_COLUMNS,
    SLOTS_MAX,
    SMALL_BYTES,
    SMALL_ROWS,
)

PendingRows = interpreted("tidemark.decode.transactions.pending_rows").PendingRows

NO_TUPLE = (1 << 32) - 1
COUNT_MAX = (1 << 32) - 1
EPOCH = 3 << 32  # of the xids of transactions; rows have the low half
BLOCK = bytes(range(256))
BYTES_MAX = 1 << 18
TOPS, CHILDREN, OTHER_XIDS = (700, 701, 702), (800, 801), (900, 901)


@dataclass(eq=False, slots=True)
class ListedRow:
    """One entry, and its tuples."""

    xid: int
    lsn: int
    new: bytes | None
    old: bytes | None
    count: int = 0  # number of unselected rows in this entry; 0: it is selected

    @property
    def tuples(self) -> bytes:
        return (self.old or b"") + (self.new or b"")

    @property
    def entry(self) -> bytes:
        new, old = (NO_TUPLE if part is None else len(part) for part in (self.new, self.old))
        return struct.pack("<BBHIIIIIQ", 2, 1, 5, 9, self.xid, new, old, self.count, self.lsn)


def entries(rows: list[ListedRow]) -> bytes:
    return b"".join(row.entry for row in rows)


def tuples(rows: list[ListedRow]) -> bytes:
    return b"".join(row.tuples for row in rows)


def more(rows: list[ListedRow]) -> int:
    """Return the number of rows that entries represent, beyond one each."""
    return sum(max(row.count - 1, 0) for row in rows)


@dataclass
class PendingSlot:
    """A pending transaction."""

    top: int
    first_lsn: int
    slot: int
    rows: list[ListedRow] = field(default_factory=list)
    latest: ListedRow | None = None  # the entry in which another unselected row may be counted


@dataclass
class End:
    """A pending transaction that has committed."""

    pending: PendingSlot
    lsn: int
    restart_lsn: int


class Kernel:
    """The kernel with the buffers of its caller."""

    def __init__(self) -> None:
        # Content of earlier calls in them is undefined.
        left = ListedRow(TOPS[0], 0, None, None, 1).entry
        self.entries, self.arranged = (bytearray(left * ROWS_MAX) for _ in range(2))
        self.tuples, self.arranged_tuples = bytearray(BYTES_MAX), bytearray(BYTES_MAX)
        self.runs, self.ends = (
            [array("q", [OTHER_XIDS[0]]) * ROWS_MAX for _ in range(n)] for n in (RUN_COLUMNS, END_COLUMNS)
        )
        self.slots = [array("q", bytes(8 * SLOTS_MAX)) for _ in range(SLOT_COLUMNS)]
        self.pending = PendingRows(self.entries, self.arranged, self.runs, self.ends, self.slots)

    def begin(self, others_lsn: int = NONE, block: bytes = BLOCK) -> None:
        self.pending.begin(block, self.tuples, self.arranged_tuples, others_lsn)

    def add(self, slot: int, row: ListedRow) -> None:
        new, old = (NO_TUPLE if part is None else len(part) for part in (row.new, row.old))
        at = [self.pending.linear.index(part) if part else 0 for part in (row.new, row.old)]
        self.pending.add(slot, row.xid, row.lsn, 2, 1, 5, 9, at[0], new, at[1], old)
        if row.count:
            self.pending.begin_count(slot)

    def rows_at(self, slot: int) -> tuple[bytes, bytes]:
        """Return entries and tuples of pending rows, once they are settled."""
        row, byte = self.slots[4][slot], self.slots[5][slot]
        part = self.entries[row * ENTRY_BYTES : (row + self.slots[2][slot]) * ENTRY_BYTES]
        return bytes(part), bytes(self.tuples[byte : byte + self.slots[3][slot]])


class RowsAndLists:
    """The kernel, and lists of the same rows."""

    def __init__(self, first_slot: int) -> None:
        self.kernel = Kernel()
        self.kernel.pending.head = self.kernel.pending.tail = self.kernel.pending.oldest = first_slot
        self.pending: dict[int, PendingSlot] = {}  # by xid, in the order of their first rows
        self.others: list[ListedRow] = []
        self.last: ListedRow | None = None  # of all rows of this call
        self.ends: list[End] = []
        self.others_lsn = NONE
        self.lsn = 1000
        self.kernel.begin()

    def put(self, top: int, xid: int, *, new: int | None, old: int | None, selected: bool) -> None:
        """Add a row of a transaction, or of one of the others (`top` 0); count an unselected one where possible."""
        self.lsn += 8
        pending = self.pending.get(top)
        slot = NONE if pending is None else pending.slot
        if top and pending is None:
            slot = self.kernel.pending.hold(EPOCH + top, self.lsn)
            pending = self.pending[top] = PendingSlot(top, self.lsn, slot)
        latest = self.last if pending is None else pending.latest
        if not selected and self._count(latest, pending, slot, xid):
            return
        row = ListedRow(
            xid, self.lsn, _part(new) if selected else None, _part(old) if selected else None, 0 if selected else 1
        )
        self.kernel.add(slot, row)
        self.last = row
        if pending is None:
            self.others.append(row)
        else:
            pending.rows.append(row)
            pending.latest = None if selected else row

    def _count(self, latest: ListedRow | None, pending: PendingSlot | None, slot: int, xid: int) -> bool:
        rows = self.others if pending is None else pending.rows
        can_count = latest is not None and latest in rows and latest.xid == xid and latest.count > 0
        assert self.kernel.pending.count(slot, xid) == can_count
        if can_count:
            assert latest is not None
            latest.count += 1
        return can_count

    def commit(self, top: int) -> None:
        pending = self.pending.pop(top, None)
        if pending is None:
            return
        self.lsn += 8
        self.kernel.pending.commit(pending.slot, self.lsn, self.lsn + 4, self.lsn * 7, 5)
        if pending.rows:
            firsts = [one.first_lsn for one in self.pending.values()] + [self.others_lsn] * (self.others_lsn != NONE)
            self.ends.append(End(pending, self.lsn, min(firsts, default=self.lsn + 4)))

    def release(self, top: int) -> None:
        pending = self.pending.pop(top, None)
        if pending is not None:
            self.kernel.pending.release(pending.slot)

    def roll_back(self, top: int, xid: int) -> None:
        pending = self.pending.get(top)
        if pending is not None:
            self.kernel.pending.drop(pending.slot, xid)
            while pending.rows and pending.rows[-1].xid == xid:
                pending.rows.pop()

    def finish(self, others_lsn: int, *, settle: bool, take: int) -> None:
        """End the call; compare, as the caller reads it; remove a transaction, and begin the next call."""
        kernel = self.kernel.pending
        kernel.finish()
        if kernel.is_arranged:
            self._kept()
        if settle:
            kernel.sort_rows()
        self._compare_ends()
        self._compare_others()
        if settle or kernel.is_sorted:
            self._compare_pending()
        sizes = [len(buffer) for buffer in (self.kernel.tuples, self.kernel.arranged_tuples, self.kernel.arranged)]
        assert sizes == [BYTES_MAX, BYTES_MAX, ROWS_MAX * ENTRY_BYTES], "all is written in place"
        firsts = [pending.first_lsn for pending in self.pending.values()]
        assert kernel.first_lsn() == min(firsts, default=NONE)
        assert kernel.pending_count == len(firsts)
        assert not kernel.needs_moves
        for pending in self.pending.values():
            columns = [self.kernel.slots[number][pending.slot] for number in (0, 1, 2, 3, 6)]
            expected = [
                EPOCH + pending.top,
                pending.first_lsn,
                len(pending.rows),
                len(tuples(pending.rows)),
                more(pending.rows),
            ]
            assert columns == expected
            assert kernel.is_top(pending.slot, pending.top)
            assert not kernel.is_top(pending.slot, pending.top + 1)
        if settle:
            self._kept()
        self.release(take)
        self.others, self.ends, self.last, self.others_lsn = [], [], None, others_lsn
        self.kernel.begin(others_lsn)

    def _kept(self) -> None:
        """PendingSlot rows were moved to the front: the latest row of each may represent more."""
        for pending in self.pending.values():
            pending.latest = pending.rows[-1] if pending.rows else None

    def _compare_ends(self) -> None:
        kernel, ends = self.kernel, self.kernel.ends
        assert kernel.pending.end_count == len(self.ends)
        for number, end in enumerate(self.ends):
            before = [row for other in self.ends[:number] for row in other.pending.rows]
            rows = [*before, *end.pending.rows]
            assert [column[number] for column in ends[:10]] == [
                EPOCH + end.pending.top,
                end.pending.first_lsn,
                end.lsn,
                end.lsn + 4,
                end.lsn * 7,
                5,
                len(end.pending.rows) + more(end.pending.rows),
                len(rows),
                len(tuples(rows)),
                end.restart_lsn,
            ]
            assert kernel.arranged[: len(rows) * ENTRY_BYTES] == entries(rows)
            assert kernel.arranged_tuples[: len(tuples(rows))] == tuples(rows)

    def _compare_others(self) -> None:
        kernel, pending, rows = self.kernel, self.kernel.pending, self.others
        runs = [list(run) for _, run in groupby(rows, key=lambda row: row.xid)]
        assert pending.run_count == len(runs)
        assert [list(column[: len(runs)]) for column in kernel.runs] == [
            [run[0].xid for run in runs],
            list(accumulate(len(run) for run in runs)),
            list(accumulate(len(tuples(run)) for run in runs)),
            list(accumulate(more(run) for run in runs)),
        ]
        found, bytes_ = (
            (kernel.arranged, kernel.arranged_tuples) if pending.is_arranged else (kernel.entries, kernel.tuples)
        )
        begin = pending.others_at * ENTRY_BYTES
        assert found[begin : begin + len(entries(rows))] == entries(rows)
        assert bytes_[pending.others_byte_at : pending.others_byte_at + len(tuples(rows))] == tuples(rows)

    def _compare_pending(self) -> None:
        for pending in self.pending.values():
            assert self.kernel.rows_at(pending.slot) == (entries(pending.rows), tuples(pending.rows))


def _part(length: int | None) -> bytes | None:
    return None if length is None else BLOCK[40 + length : 40 + 2 * length]


def _length(chance: random.Random) -> int | None:
    return chance.choice([None, 0, 1, 2, 5, 20])


def _step(beside: RowsAndLists, chance: random.Random) -> None:
    """Do one action of a record, or end the call."""
    top, xid = chance.choice(TOPS), chance.choice(CHILDREN)
    match chance.choices(("row", "other", "commit", "release", "roll back", "finish"), (55, 15, 8, 4, 8, 10))[0]:
        case "row":
            xid = chance.choice([top, *CHILDREN])
            beside.put(top, xid, new=_length(chance), old=_length(chance), selected=chance.random() < 0.6)
        case "other":
            xid = chance.choice([*OTHER_XIDS, *(gone for gone in TOPS if gone not in beside.pending)])
            beside.put(0, xid, new=_length(chance), old=_length(chance), selected=chance.random() < 0.6)
        case "commit":
            beside.commit(top)
        case "release":
            beside.release(top)
        case "roll back":
            beside.roll_back(top, xid)
        case "finish":
            take = chance.choice([0, 0, *TOPS])
            beside.finish(chance.choice([NONE, 500, 1 << 20]), settle=chance.random() < 0.3, take=take)


@given(st.integers(0, 1 << 32))
def test_pending_rows_are_a_list_for_each_transaction_and_one_for_all_others(seed: int) -> None:
    chance = random.Random(seed)
    beside = RowsAndLists(first_slot=chance.choice([0, SLOTS_MAX - 1]))
    for _ in range(chance.choice([10, 80])):
        _step(beside, chance)
    beside.finish(NONE, settle=True, take=0)


@pytest.fixture
def kernel() -> Kernel:
    made = Kernel()
    made.begin()
    return made


def selected(lsn: int = 8, length: int = 1) -> ListedRow:
    return ListedRow(TOPS[0], lsn, BLOCK[:length], None)


def each_slot(kernel: Kernel, count: int, lsn: int = 1000) -> Iterator[int]:
    return (kernel.pending.hold(EPOCH + 1 + number, lsn + number) for number in range(count))


def test_a_record_is_added_while_all_of_its_rows_fit(kernel: Kernel) -> None:
    slot = kernel.pending.hold(EPOCH + TOPS[0], 8)
    for _ in range(ROWS_MAX - RECORD_ROWS_MAX):
        assert kernel.pending.has_space()
        kernel.add(slot, selected(length=0))
    assert kernel.pending.has_space()
    kernel.add(slot, selected(length=0))
    assert not kernel.pending.has_space()


def test_a_record_is_added_while_a_slot_is_free_and_slots_are_reused(kernel: Kernel) -> None:
    gone = 10
    for slot in each_slot(kernel, gone):
        kernel.add(slot, selected())
        kernel.pending.release(slot)
    slots = list(each_slot(kernel, SLOTS_MAX - gone, 2000))
    assert slots == list(range(gone, SLOTS_MAX))
    assert not kernel.pending.has_space()
    kernel.pending.finish()
    kernel.begin()
    assert kernel.pending.has_space()
    assert list(each_slot(kernel, gone - 1, 20_000)) == list(range(gone - 1))
    assert kernel.pending.has_space()
    assert list(each_slot(kernel, 1, 30_000)) == [gone - 1]
    assert not kernel.pending.has_space()
    assert kernel.pending.first_lsn() == 2000, "the one that was held first, though slots before it are in use again"


@pytest.mark.parametrize(("rows", "needs_moves"), [(SMALL_ROWS, False), (SMALL_ROWS + 1, True)])
def test_a_transaction_of_many_rows_needs_a_move(kernel: Kernel, rows: int, needs_moves: bool) -> None:  # noqa: FBT001
    for slot in each_slot(kernel, 2):
        for _ in range(rows if slot == 0 else 1):
            kernel.add(slot, selected(length=0))
    kernel.pending.sort_rows()
    assert kernel.pending.needs_moves is needs_moves


@pytest.mark.parametrize(("length", "needs_moves"), [(SMALL_BYTES, False), (SMALL_BYTES + 1, True)])
def test_a_transaction_of_many_bytes_needs_a_move(kernel: Kernel, length: int, needs_moves: bool) -> None:  # noqa: FBT001
    kernel.begin(block=bytes(length))
    for slot in each_slot(kernel, 2):
        kernel.add(slot, ListedRow(TOPS[0], 8, bytes(length if slot == 0 else 1), None))
    kernel.pending.sort_rows()
    assert kernel.pending.needs_moves is needs_moves


def test_a_large_transaction_that_has_ended_crowds_nothing(kernel: Kernel) -> None:
    first, large = each_slot(kernel, 2)
    kernel.add(first, selected())
    for _ in range(SMALL_ROWS + 1):
        kernel.add(large, selected(length=0))
    kernel.pending.commit(large, 8, 16, 0, 5)
    kernel.pending.finish()
    assert kernel.pending.end_count == 1
    assert not kernel.pending.needs_moves


def test_a_transaction_whose_rows_were_all_rolled_back_stays_pending(kernel: Kernel) -> None:
    (slot,) = each_slot(kernel, 1)
    kernel.add(slot, selected())
    kernel.pending.drop(slot, TOPS[0])
    for _ in range(3):
        kernel.pending.finish()
        assert kernel.pending.first_lsn() == 1000
        kernel.begin()
    kernel.pending.commit(slot, 8, 16, 0, 5)
    kernel.pending.finish()
    assert (kernel.pending.end_count, kernel.pending.first_lsn()) == (0, NONE)


def test_an_unselected_row_is_not_counted_with_one_that_was_rolled_back_or_removed(kernel: Kernel) -> None:
    unselected = ListedRow(TOPS[0], 8, None, None, 1)
    (slot,) = each_slot(kernel, 1)
    kernel.add(slot, unselected)
    kernel.pending.drop(slot, TOPS[0])
    assert not kernel.pending.count(slot, TOPS[0])
    kernel.add(slot, unselected)
    kernel.pending.finish()
    kernel.pending.sort_rows()
    kernel.pending.release(slot)
    kernel.begin()
    assert not kernel.pending.count(NONE, TOPS[0]), "it is one of the others from now on"


@pytest.mark.parametrize(("count", "needs_moves"), [(LONG, False), (LONG + 1, True)])
def test_after_many_later_transactions_a_pending_one_is_moved(
    kernel: Kernel,
    count: int,
    needs_moves: bool,  # noqa: FBT001
) -> None:
    slots = list(each_slot(kernel, count))
    kernel.add(slots[0], selected())
    kernel.pending.drop(slots[0], TOPS[0])
    kernel.pending.sort_rows()
    assert kernel.pending.needs_moves is needs_moves
    kernel.begin()
    for slot in slots:
        kernel.pending.release(slot)
    kernel.pending.finish()
    assert not kernel.pending.needs_moves
    assert kernel.pending.head == kernel.pending.tail


@pytest.mark.parametrize("slot", [0, NONE])
def test_an_entry_with_the_maximum_count_is_followed_by_another(kernel: Kernel, slot: int) -> None:
    if slot != NONE:
        kernel.pending.hold(EPOCH + TOPS[0], 8)
    kernel.add(slot, ListedRow(TOPS[0], 8, None, None, 1))
    kernel.pending.words[2] = NO_TUPLE | COUNT_MAX - 1 << 32
    assert kernel.pending.count(slot, TOPS[0])
    assert not kernel.pending.count(slot, TOPS[0])
    assert kernel.pending.words[2] == NO_TUPLE | COUNT_MAX << 32
