"""Snapshots compared with transactions that begin and end one by one, and their state at the snapshot."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.model.lsn import INVALID_LSN, FullXid, Lsn
from tidemark.model.snapshot import BadSnapshot, ReplayedSnapshot, Snapshot, parse_snapshot, parse_visibility

FIRST_XID = FullXid(700)
BYTES_PER_COMMIT = 8


@dataclass
class Transactions:
    """A plain model of a server: xids are assigned in order, and end in any order."""

    steps: list[int]
    running: list[FullXid] = field(default_factory=list)
    ended: dict[FullXid, Lsn] = field(default_factory=dict)  # and the LSN of each commit record
    next_xid: FullXid = FIRST_XID
    lsn: Lsn = INVALID_LSN

    def __post_init__(self) -> None:
        for step in self.steps:
            self.step(step)

    def step(self, choice: int) -> None:
        """Begin a transaction (0), or end the one of that number."""
        if choice == 0 or choice > len(self.running):
            self.running.append(self.next_xid)
            self.next_xid = FullXid(self.next_xid + 1)
        else:
            self.ended[self.running.pop(choice - 1)] = self.lsn
            self.lsn = Lsn(self.lsn + BYTES_PER_COMMIT)

    def snapshot(self) -> Snapshot:
        """Return the result of GetSnapshotData(): xmax follows the latest ended xid, xmin is the oldest running one."""
        xmax = FullXid(max(self.ended, default=FIRST_XID - 1) + 1)
        running = frozenset(xid for xid in self.running if xid < xmax)
        return Snapshot(min(running, default=xmax), xmax, running)

    def replayed(self) -> ReplayedSnapshot:
        """Return the snapshot of a standby that has replayed all of this."""
        return ReplayedSnapshot(self.snapshot().xmin, self.lsn)


STEPS = st.lists(st.integers(0, 4), max_size=30)


@pytest.mark.feature("P22")
@given(before=STEPS, after=STEPS)
def test_a_snapshot_shows_exactly_the_transactions_that_had_ended(before: list[int], after: list[int]) -> None:
    transactions = Transactions(before)
    had_ended = set(transactions.ended)
    snapshots = (transactions.snapshot(), transactions.replayed())
    for step in [*after, *([1] * (len(before) + len(after)))]:
        transactions.step(step)
    for xid, commit_lsn in transactions.ended.items():
        for snapshot in snapshots:
            assert snapshot.shows(xid, commit_lsn) == (xid in had_ended), (str(snapshot), xid)


@given(before=STEPS, after=STEPS)
def test_nothing_is_visible_from_the_end_of_a_snapshot_on(before: list[int], after: list[int]) -> None:
    transactions = Transactions(before)
    had_ended = set(transactions.ended)
    snapshots = (transactions.snapshot(), transactions.replayed())
    for step in [*after, *([1] * (len(before) + len(after)))]:
        transactions.step(step)
    for snapshot in snapshots:
        for xid, commit_lsn in transactions.ended.items():
            if snapshot.shows_none_from(xid, commit_lsn):
                later = {at for at, lsn in transactions.ended.items() if at >= xid and lsn >= commit_lsn}
                assert not later & had_ended, (str(snapshot), xid)
    first_unseen = FullXid(max((*had_ended, *snapshots[0].running), default=FIRST_XID - 1) + 1)
    assert snapshots[0].shows_none_from(first_unseen, Lsn(0))
    assert snapshots[1].shows_none_from(first_unseen, snapshots[1].replayed_lsn)


@given(STEPS)
def test_a_snapshot_is_read_as_it_is_written(steps: list[int]) -> None:
    transactions = Transactions(steps)
    assert parse_snapshot(str(transactions.snapshot())) == transactions.snapshot()
    for snapshot in (transactions.snapshot(), transactions.replayed()):
        assert parse_visibility(str(snapshot)) == snapshot


@pytest.mark.parametrize("text", ["", "1:2", "5:3:", "1:3:7", "a:b:", "1:2:3:4", "5:7:4", "5:7:7", "a:7:", "5:7:a"])
def test_text_that_is_not_a_snapshot_is_refused(text: str) -> None:
    with pytest.raises(BadSnapshot):
        parse_snapshot(text)


@pytest.mark.parametrize("text", ["@", "1@", "a@0/1", "1@x", "@0/1", "1:2"])
def test_text_that_is_not_a_standbys_snapshot_is_refused(text: str) -> None:
    with pytest.raises(BadSnapshot):
        parse_visibility(text)


def test_a_standbys_snapshot_shows_what_is_older_than_all_that_ran_and_what_had_committed() -> None:
    snapshot = parse_visibility("10@0/20")
    assert str(snapshot) == "10@0/20"
    assert parse_visibility("10:20:10,14") == parse_snapshot("10:20:10,14")
    shown = [(xid, lsn) for xid in (9, 10, 30) for lsn in (0x18, 0x20, 0x28) if snapshot.shows(FullXid(xid), Lsn(lsn))]
    assert shown == [(9, 0x18), (9, 0x20), (9, 0x28), (10, 0x18), (30, 0x18)]
    none = [
        (xid, lsn)
        for xid in (9, 10, 30)
        for lsn in (0x18, 0x20, 0x28)
        if snapshot.shows_none_from(FullXid(xid), Lsn(lsn))
    ]
    assert none == [(10, 0x20), (10, 0x28), (30, 0x20), (30, 0x28)]
