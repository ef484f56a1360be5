"""A catalog heap compared with a model that keeps everything: the visibility of each row, at any moment."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.forged.catalog_rows import enum_row, heap
from tidemark.decode.catalog.heap import CatalogSnapshot, make_tid
from tidemark.decode.catalog.layout import PG_ENUM
from tidemark.decode.catalog.packed_rows import Tid
from tidemark.decode.catalog.transactions import Marks
from tidemark.model.lsn import Xid

SLOTS = (0, 1, 2)
KEYS = (1, 2, 3)
_SEQUENCE = iter(range(1, 1 << 30))


class VersionedRow:
    """A row of the model: the outcome of each transaction that changed it is looked up, never settled."""

    def __init__(self, tid: Tid, key: int, packed: bytes, inserter: Xid) -> None:
        self.tid = tid
        self.key = key
        self.packed = packed
        self.inserter = inserter
        self.deleter: Xid | None = None


class CatalogHeapBesideAModel(RuleBasedStateMachine):
    """Transactions with subtransactions insert, delete, commit and roll back; both sides are read for every key."""

    def __init__(self) -> None:
        super().__init__()
        self.heap = heap(PG_ENUM)
        self.marks = Marks(seeding_from=None)
        self.top_of: dict[Xid, Xid] = {}
        self.model: list[VersionedRow] = []
        self.ended: dict[Xid, bool] = {}
        self.levels: dict[int, list[Xid]] = {slot: [self._fresh()] for slot in SLOTS}

    def _fresh(self) -> Xid:
        return Xid(next(_SEQUENCE))

    def _xid(self, slot: int) -> Xid:
        return self.levels[slot][-1]

    def _top(self, xid: Xid) -> Xid:
        return self.top_of.get(xid, xid)

    def _committed(self, xid: Xid) -> bool:
        return self.ended.get(xid, False)

    def _sees(self, row: VersionedRow, top: Xid | None) -> bool:
        def counts(xid: Xid) -> bool:
            if xid in self.ended:
                return self.ended[xid]
            return top is not None and self._top(xid) == top

        return counts(row.inserter) and not (row.deleter is not None and counts(row.deleter))

    @rule(slot=st.sampled_from(SLOTS), key=st.sampled_from(KEYS))
    def insert(self, slot: int, key: int) -> None:
        number = next(_SEQUENCE)
        tid, packed, xid = make_tid(number >> 4, number & 15 | 1 << 8), enum_row(number, key), self._xid(slot)
        self.heap.insert(tid, packed, xid)
        self.marks.add(xid, self.heap, tid)
        self.model.append(VersionedRow(tid, key, packed, xid))

    @rule(slot=st.sampled_from(SLOTS), choice=st.integers(0, 1 << 16))
    def delete(self, slot: int, choice: int) -> None:
        top = self.levels[slot][0]
        free = [
            row
            for row in self.model
            if self._sees(row, top) and (row.deleter is None or self.ended.get(row.deleter) is False)
        ]
        if free:
            row, xid = free[choice % len(free)], self._xid(slot)
            row.deleter = xid
            self.heap.deleter[row.tid] = xid
            self.marks.add(xid, self.heap, row.tid)

    @rule(slot=st.sampled_from(SLOTS))
    def savepoint(self, slot: int) -> None:
        child = self._fresh()
        self.top_of[child] = self.levels[slot][0]
        self.levels[slot].append(child)

    @precondition(lambda self: any(len(levels) > 1 for levels in self.levels.values()))
    @rule(slot=st.sampled_from(SLOTS))
    def roll_back_to_savepoint(self, slot: int) -> None:
        if len(self.levels[slot]) > 1:
            self._end([self.levels[slot].pop()], committed=False)

    @rule(slot=st.sampled_from(SLOTS), committed=st.booleans())
    def end(self, *, slot: int, committed: bool) -> None:
        xids = self.levels[slot]
        self.levels[slot] = [self._fresh()]
        self._end(xids, committed=committed)

    def _end(self, xids: list[Xid], *, committed: bool) -> None:
        for xid in xids:
            self.ended[xid] = committed
            if committed:
                self.marks.commit(xid)
            else:
                self.marks.abort(xid)

    @rule()
    def write_a_base(self) -> None:
        self.heap.rows.pack()

    @invariant()
    def everybody_sees_the_same_rows(self) -> None:
        for top in (None, *(levels[0] for levels in self.levels.values())):
            snapshot = CatalogSnapshot(top, self.top_of)
            for key in KEYS:
                found = sorted(self.heap.find("enumtypid", key, snapshot))
                rows = [row.packed for row in self.model if row.key == key and self._sees(row, top)]
                assert found == sorted(rows)

    @invariant()
    def nothing_is_kept_that_nobody_can_see(self) -> None:
        alive = {
            row.tid
            for row in self.model
            if self.ended.get(row.inserter) is not False and not (row.deleter and self._committed(row.deleter))
        }
        assert self.heap.rows.keys() == alive


CatalogHeapBesideAModel.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40)
test_a_catalog_heap_shows_every_transaction_what_it_may_see = CatalogHeapBesideAModel.TestCase
