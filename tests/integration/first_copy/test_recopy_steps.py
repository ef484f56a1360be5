"""Requested copies as the state has them: when they are due, and how they are put off, fail and are cancelled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.engine.progress import Progress
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer, Position
from tidemark.runtime.first_copy.recopying import (
    DOUBLED_MAX,
    OLDER_WAIT_S,
    PUT_OFF_S,
    Due,
    Recopying,
    cancel_recopies,
    fail,
    not_begun,
    older_wait_s,
    put_off,
    request_recopies,
)
from tidemark.wire.recopies import RecopyStep, Wanted, recopies_by_table, step_of
from tidemark.wire.state import DELIVERED, CopyPhase, CopyProgress, Identity, Owner, Watermark

SEGMENT_BYTES = 1 << 20
IDENTITY = Identity("main", SystemIdentifier(1), "outbox", 15, SEGMENT_BYTES, 1 << 20)
TABLE = (Oid(1), Oid(2))
WHOLE = CopyProgress(CopyPhase.DONE, 1, "1:1:", row_count=10)
REACHED = Lsn(1000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Make a state in which a table is whole, and all up to `REACHED` is delivered."""
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as made:
        pointer = Pointer(Position(TimelineId(1), REACHED, 0), REACHED)
        with made.transaction(None) as moving:
            moving.put(DELIVERED, Watermark(pointer, NO_SEQUENCE))
            moving.put_copy(*TABLE, WHOLE)
        yield made


def taken(store: StateStore) -> Epoch:
    return store.take_epoch(Owner("sidecar", "host", "boot", 1, 1))


def request(store: StateStore, after_lsn: Lsn = REACHED) -> None:
    request_recopies(store, [Wanted(TABLE, "db.public.account")], after_lsn, 0)


def step(store: StateStore) -> RecopyStep:
    return step_of(recopies_by_table(store.recopies())[TABLE], store.copy(*TABLE))


def progress(store: StateStore, lag_bytes: int) -> Progress:
    delivered = store.marks().start
    return Progress(Lsn(REACHED), REACHED, REACHED, Lsn(REACHED + lag_bytes), delivered)


@pytest.mark.feature("I30")
def test_a_request_says_how_far_the_stream_is_behind_as_long_as_that_is_more_than_a_segment(store: StateStore) -> None:
    recopying, epoch = Recopying(store), taken(store)
    request(store)
    assert recopying.step(progress(store, SEGMENT_BYTES), epoch, 0.0) is Due.NOW
    assert recopying.step(progress(store, SEGMENT_BYTES + 1), epoch, 0.0) is Due.LATER
    assert f"{SEGMENT_BYTES + 1} bytes behind" in recopying.waits_for
    request_recopies(store, [Wanted((Oid(1), Oid(3)), "db.public.other")], Lsn(REACHED + 1), 0)
    cancel_recopies(store, [TABLE], is_copying=True)
    assert recopying.step(progress(store, SEGMENT_BYTES + 1), epoch, 0.0) is Due.NOTHING


@pytest.mark.feature("I30")
def test_a_copy_that_is_put_off_is_as_it_was_and_is_tried_again_later(store: StateStore) -> None:
    recopying, epoch = Recopying(store), taken(store)
    request(store)
    assert recopying.queue(epoch, 100.0) == 1
    assert (step(store), not_begun(store)) == (RecopyStep.QUEUED, frozenset({TABLE}))
    put_off(store, epoch, [TABLE])
    assert (step(store), store.copy(*TABLE), not_begun(store)) == (RecopyStep.REQUESTED, WHOLE, frozenset())
    assert recopying.step(progress(store, 0), epoch, 100.0 + PUT_OFF_S - 1) is Due.LATER
    assert "tried again" in recopying.waits_for
    assert recopying.step(progress(store, 0), epoch, 100.0 + PUT_OFF_S) is Due.NOW


@pytest.mark.feature("I30")
def test_each_time_that_a_copy_is_put_off_doubles_its_wait_and_the_pause_up_to_a_bound(store: StateStore) -> None:
    recopying, epoch = Recopying(store), taken(store)
    request(store)
    for times in range(DOUBLED_MAX + 3):
        recopying.queue(epoch, 0.0)
        assert older_wait_s(store) == OLDER_WAIT_S * 2 ** min(times, DOUBLED_MAX)
        put_off(store, epoch, [TABLE])
        pause_s = PUT_OFF_S * 2 ** min(times, DOUBLED_MAX)
        assert recopying.step(progress(store, 0), epoch, pause_s - 1) is Due.LATER
        assert recopying.step(progress(store, 0), epoch, pause_s) is Due.NOW


@pytest.mark.feature("I30")
def test_a_request_that_failed_is_kept_to_be_shown_until_it_is_made_again_or_cancelled(store: StateStore) -> None:
    recopying, epoch = Recopying(store), taken(store)
    for ends in ("again", "cancelled"):
        request(store)
        recopying.queue(epoch, 0.0)
        fail(store, epoch, {TABLE: "no SELECT"})
        assert recopying.step(progress(store, 0), epoch, 0.0) is Due.NOTHING
        assert recopying.queue(epoch, 0.0) == 0
        assert (step(store), store.copy(*TABLE)) == (RecopyStep.FAILED, WHOLE)
        if ends == "again":
            request(store)
            assert step(store) is RecopyStep.REQUESTED
    assert cancel_recopies(store, [TABLE], is_copying=True) == {}
    assert store.recopies().tables == {}


@pytest.mark.feature("I30")
def test_a_copy_that_has_begun_or_is_about_to_is_not_taken_back(store: StateStore) -> None:
    recopying, epoch = Recopying(store), taken(store)
    request(store)
    recopying.queue(epoch, 0.0)
    assert cancel_recopies(store, [TABLE], is_copying=True) == {TABLE: RecopyStep.QUEUED}
    with store.transaction(epoch) as moving:
        moving.put_copy(*TABLE, CopyProgress(CopyPhase.COPYING, 2))
    put_off(store, epoch, [TABLE])
    fail(store, epoch, {TABLE: "no SELECT"})
    for is_copying in (True, False):
        assert cancel_recopies(store, [TABLE], is_copying=is_copying) == {TABLE: RecopyStep.COPYING}
    assert (step(store), not_begun(store)) == (RecopyStep.COPYING, frozenset())


@pytest.mark.feature("I30")
def test_a_queued_copy_is_cancelled_where_no_sidecar_runs_unless_it_is_due_in_any_case(store: StateStore) -> None:
    recopying, epoch = Recopying(store), taken(store)
    request(store)
    recopying.queue(epoch, 0.0)
    assert cancel_recopies(store, [TABLE], is_copying=False) == {}
    assert store.copy(*TABLE) == WHOLE
    waiting = CopyProgress(CopyPhase.WAITING, 1)
    with store.transaction(epoch) as moving:
        moving.put_copy(*TABLE, waiting)
    request(store)
    recopying.queue(epoch, 0.0)
    assert not_begun(store) == frozenset()
    assert cancel_recopies(store, [TABLE], is_copying=False) == {}
    assert store.copy(*TABLE) == waiting
