"""The visibility of first copies, read from a state: the changes in each, and whether a fork removes some of them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.forged import groups
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import FullXid, Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.runtime.first_copy.copies import Copies
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Fingerprint
from tidemark.wire.state.state_keys import FINGERPRINT
from tidemark.wire.state.values import Identity

DONE = CopyProgress(CopyPhase.DONE, 1, snapshot="700:710:703", lx=Lsn(90), seen_lsn=Lsn(101), timeline=TimelineId(1))
TL1, TL2, TL3 = TimelineId(1), TimelineId(2), TimelineId(3)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    identity = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, 4 << 20)
    with StateStore.create(StateFolder(tmp_path / "state"), identity) as made:
        yield made


def copies(store: StateStore, fingerprint: Fingerprint | None = None, **found: CopyProgress) -> Copies:
    with store.transaction(None) as transaction:
        for number, progress in enumerate(found.values()):
            transaction.put_copy(groups.DATABASE, Oid(20000 + number), progress)
        if fingerprint is not None:
            transaction.put(FINGERPRINT, fingerprint)
    return Copies(store.view())


@pytest.mark.feature("P22")
def test_a_copy_contains_the_rows_of_its_own_snapshot_alone(store: StateStore) -> None:
    found = copies(store, copied=DONE, followed=CopyProgress(CopyPhase.DONE, 0))
    ends = {xid: replace(groups.end(100), full_xid=FullXid(xid)) for xid in (699, 702, 703, 709, 710)}
    assert [xid for xid, end in ends.items() if found.have(Oid(20000), end)] == [699, 702, 709]
    assert not any(found.have(Oid(20001), end) for end in ends.values()), "it was followed from its creation on"
    assert not found.have(Oid(20002), ends[699])
    assert not found.have(Oid(20000), replace(ends[699], database=Oid(1)))


@pytest.mark.feature("P22")
def test_what_the_first_list_of_tables_shows_is_over_for_the_tables_that_it_lacks(store: StateStore) -> None:
    listed = Fingerprint(shown={str(groups.DATABASE): "700:705:703", "1": "800@0/100"})
    found = copies(store, listed, copied=DONE, refused=CopyProgress(CopyPhase.REFUSED, 1))
    ends = {xid: replace(groups.end(100), full_xid=FullXid(xid)) for xid in (699, 702, 703, 704, 705)}
    assert [xid for xid, end in ends.items() if found.have(Oid(20002), end)] == [699, 702, 704]
    assert not any(found.have(Oid(20001), end) for end in ends.values()), "it exists, and its changes are delivered"
    assert found.have(Oid(20000), replace(ends[699], full_xid=FullXid(709))), "by its own snapshot"
    assert found.have(Oid(20000), replace(ends[699], database=Oid(1)))
    assert not found.have(Oid(20000), replace(ends[699], database=Oid(1), commit_lsn=Lsn(256), full_xid=FullXid(800)))
    assert not found.have(Oid(20000), replace(ends[699], database=Oid(2)))
    assert list(map(str, found.snapshots)) == ["700:710:703", "700:705:703", "800@0/100"]


def test_a_copy_that_shows_transactions_of_a_dead_branch_is_refused_with_its_position(store: StateStore) -> None:
    found = copies(store, copied=DONE, older=replace(DONE, seen_lsn=Lsn(51)), unnoted=replace(DONE, seen_lsn=Lsn(0)))
    found.check_fork(TL1, Lsn(101), TL2)  # 100 is the last that it may contain
    with pytest.raises(DeadBranchDelivered, match="the first copy of 1 tables contains changes up to 1:0/64:0"):
        found.check_fork(TL1, Lsn(100), TL2)
    with pytest.raises(DeadBranchDelivered, match="the first copy of 2 tables contains changes up to 1:0/64:0"):
        found.check_fork(TL1, Lsn(1), TL2)


def test_copies_on_the_next_timeline_are_not_part_of_the_branch(store: StateStore) -> None:
    found = copies(store, copied=replace(DONE, timeline=TL2))
    found.check_fork(TL1, Lsn(1), TL2)
    with pytest.raises(DeadBranchDelivered):
        found.check_fork(TL1, Lsn(1), TL3)


def test_a_plan_from_catalogs_of_a_dead_branch_is_refused(store: StateStore) -> None:
    found = copies(store, Fingerprint(seen_lsn=Lsn(101), timeline=TL1))
    found.check_fork(TL1, Lsn(101), TL2)
    with pytest.raises(DeadBranchDelivered, match="the first copy was planned with the catalogs of 1:0/64:0"):
        found.check_fork(TL1, Lsn(100), TL2)
    copies(store).check_fork(TL2, Lsn(1), TL3)
