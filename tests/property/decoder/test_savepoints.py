"""Any nesting of savepoints emits the rows of the released ones, with and without spilling."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged.forged_records import Wal, packed_row, reported
from tests.support.forged.groups import relation
from tests.support.forged.memory_spill import MemorySpill

ACCOUNT = 16385
TOP = 1000
SILENT = ["row", "savepoint", "row", "savepoint", "savepoint", "row", "release", "rollback", "rollback"]
STEPS = st.lists(st.sampled_from(["row", "row", "row", "savepoint", "release", "rollback"]), max_size=60)


class Level(NamedTuple):
    """A savepoint, or the transaction itself."""

    xid: int
    rows: list[int]
    released: list[int]


class Session:
    """Writes the records that a server would, and keeps the rows that the table would have.

    A row gives an xid to its own savepoint and to all around it, and a savepoint without an xid writes no abort record.
    An abort record never has the top-level xid: it is not in progress (`IsSubxactTopXidLogPending`, xact.c).
    """

    def __init__(self, stream: Wal) -> None:
        self.stream = stream
        self.levels = [Level(TOP, [], [])]
        self.assigned = {TOP}
        self.logged = {TOP}
        self.next_xid = TOP + 1

    def top_in_first_record(self, xid: int) -> int:
        first = xid not in self.logged
        self.logged.add(xid)
        return TOP if first else 0

    def row(self, number: int) -> None:
        level = self.levels[-1]
        self.assigned.update(outer.xid for outer in self.levels)
        self.stream.insert(level.xid, ACCOUNT, packed_row(number), top=self.top_in_first_record(level.xid))
        level.rows.append(number)

    def savepoint(self) -> None:
        self.levels.append(Level(self.next_xid, [], []))
        self.next_xid += 1

    def release(self) -> None:
        if len(self.levels) > 1:
            done = self.levels.pop()
            self.levels[-1].rows.extend(done.rows)
            if done.xid in self.assigned:
                self.levels[-1].released.extend([done.xid, *done.released])

    def rollback(self) -> None:
        if len(self.levels) > 1:
            done = self.levels.pop()
            if done.xid in self.assigned:
                self.stream.abort(done.xid, *done.released)

    def commit(self) -> list[int]:
        while len(self.levels) > 1:
            self.release()
        self.stream.commit(TOP, *self.levels[0].released)
        return self.levels[0].rows


def play(stream: Wal, steps: Sequence[str]) -> list[int]:
    """Feed the records of a session; return the rows that the table would have."""
    session = Session(stream)
    for number, step in enumerate(steps):
        if step == "row":
            session.row(number)
        else:
            {"savepoint": session.savepoint, "release": session.release, "rollback": session.rollback}[step]()
    return session.commit()


@given(STEPS)
@example(SILENT)
@settings(max_examples=examples(200))
def test_a_transaction_contains_the_rows_of_the_savepoints_that_were_not_rolled_back(steps: list[str]) -> None:
    stream = Wal(relation())
    expected = play(stream, steps)
    found = reported(stream.committed[0]) if stream.committed else []
    assert found == [f"i account {number}/-" for number in expected]


@given(STEPS)
@example(SILENT)
@settings(max_examples=examples(200))
def test_spilling_changes_nothing_and_leaves_nothing(steps: list[str]) -> None:
    spill = MemorySpill()
    stream = Wal(relation(), memory_bytes=1, spill=spill)
    expected = play(stream, steps)
    found = [line for transaction in stream.committed for line in reported(transaction)]
    assert found == [f"i account {number}/-" for number in expected]
    assert bool(spill.writes) == ("row" in steps)
    for transaction in stream.committed:
        transaction.release()
    assert not spill.kept
