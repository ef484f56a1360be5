"""Requested copies in the state: when they are due, and how they are deferred, fail and are cancelled."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from tests.support.servers.postgres import Cluster
from tidemark.engine.progress import Progress
from tidemark.io.host.log_output import get_log
from tidemark.io.node.node_errors import AuthenticationFailed
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import FullXid, Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer, Position
from tidemark.runtime.context import Stopped
from tidemark.runtime.first_copy.copy_settings import CopySettings
from tidemark.runtime.first_copy.first_copy import FirstCopy
from tidemark.runtime.first_copy.recopying import (
    DOUBLED_MAX,
    OLDER_WAIT_S,
    PAUSE_S,
    Due,
    Recopying,
    cancel_recopies,
    fail,
    not_begun,
    older_wait_s,
    postpone,
    refuse,
    request_recopies,
)
from tidemark.runtime.seed.copy_plan import selection_reported
from tidemark.wire.keys import named
from tidemark.wire.recopies import RecopyStep, RequestedTable, recopies_by_table, step_of
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, DueNotice, Fingerprint, Recopy
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import DELIVERED, FINGERPRINT, RECOPIES
from tidemark.wire.state.values import Beginning, Identity, Watermark

SEGMENT_BYTES = 1 << 20
IDENTITY = Identity("main", SystemIdentifier(1), "outbox", 15, SEGMENT_BYTES, 1 << 20)
TABLE = (Oid(1), Oid(2))
WHOLE = CopyProgress(CopyPhase.DONE, 1, "1:1:", row_count=10)
REACHED = Lsn(1000)
REFUSED = CopyProgress(CopyPhase.REFUSED, 1, refused_name="db.public.account")
REPORTED = replace(REFUSED, capture=DueNotice.BEGINS)
AWAY = "host=127.0.0.1 port=1"  # no server listens there


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Create a state in which a table is complete, and everything up to `REACHED` is delivered."""
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as made:
        pointer = Pointer(Position(TimelineId(1), REACHED, 0), REACHED)
        with made.transaction(None) as transaction:
            transaction.put(DELIVERED, Watermark(pointer, NO_SEQUENCE))
            transaction.put_copy(*TABLE, WHOLE)
        yield made


def taken(store: StateStore) -> Epoch:
    return store.begin_epoch(Owner("sidecar", "host", "boot", 1, 1))


def request(store: StateStore, after_lsn: Lsn = REACHED) -> None:
    request_recopies(store, [RequestedTable(TABLE, "db.public.account")], after_lsn, 0)


def step(store: StateStore) -> RecopyStep:
    return step_of(recopies_by_table(store.recopies())[TABLE], store.copy(*TABLE))


def progress(store: StateStore, lag_bytes: int) -> Progress:
    delivered = store.marks().start
    return Progress(Lsn(REACHED), REACHED, REACHED, Lsn(REACHED + lag_bytes), delivered)


@pytest.mark.feature("I30")
def test_a_request_reports_how_far_the_stream_is_behind_as_long_as_that_is_more_than_a_segment(
    store: StateStore,
) -> None:
    recopying, epoch = Recopying(store), taken(store)
    request(store)
    assert recopying.step(progress(store, SEGMENT_BYTES), epoch, 0.0) is Due.NOW
    assert recopying.step(progress(store, SEGMENT_BYTES + 1), epoch, 0.0) is Due.LATER
    assert f"{SEGMENT_BYTES + 1} bytes behind" in recopying.waits_for
    request_recopies(store, [RequestedTable((Oid(1), Oid(3)), "db.public.other")], Lsn(REACHED + 1), 0)
    cancel_recopies(store, [TABLE], is_copying=True)
    assert recopying.step(progress(store, SEGMENT_BYTES + 1), epoch, 0.0) is Due.NOTHING


@pytest.mark.feature("I30")
def test_a_copy_that_is_postponed_is_unchanged_and_is_tried_again_later(store: StateStore) -> None:
    recopying, epoch = Recopying(store), taken(store)
    request(store)
    assert recopying.queue(epoch, 100.0) == 1
    assert (step(store), not_begun(store)) == (RecopyStep.QUEUED, frozenset({TABLE}))
    postpone(store, epoch, [TABLE])
    assert (step(store), store.copy(*TABLE), not_begun(store)) == (RecopyStep.REQUESTED, WHOLE, frozenset())
    assert recopying.step(progress(store, 0), epoch, 100.0 + PAUSE_S - 1) is Due.LATER
    assert "retried" in recopying.waits_for
    assert recopying.step(progress(store, 0), epoch, 100.0 + PAUSE_S) is Due.NOW


@pytest.mark.feature("I30")
def test_each_postponement_of_a_copy_doubles_its_wait_and_the_pause_up_to_a_bound(store: StateStore) -> None:
    recopying, epoch = Recopying(store), taken(store)
    request(store)
    for times in range(DOUBLED_MAX + 3):
        recopying.queue(epoch, 0.0)
        assert older_wait_s(store) == OLDER_WAIT_S * 2 ** min(times, DOUBLED_MAX)
        postpone(store, epoch, [TABLE])
        pause_s = PAUSE_S * 2 ** min(times, DOUBLED_MAX)
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
def test_a_copy_that_has_begun_or_is_about_to_is_not_withdrawn(store: StateStore) -> None:
    recopying, epoch = Recopying(store), taken(store)
    request(store)
    recopying.queue(epoch, 0.0)
    assert cancel_recopies(store, [TABLE], is_copying=True) == {TABLE: RecopyStep.QUEUED}
    with store.transaction(epoch) as transaction:
        transaction.put_copy(*TABLE, CopyProgress(CopyPhase.COPYING, 2))
    postpone(store, epoch, [TABLE])
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
    with store.transaction(epoch) as transaction:
        transaction.put_copy(*TABLE, waiting)
    request(store)
    recopying.queue(epoch, 0.0)
    assert not_begun(store) == frozenset()
    assert cancel_recopies(store, [TABLE], is_copying=False) == {}
    assert store.copy(*TABLE) == waiting


def first_copy(store: StateStore, dsn: str) -> FirstCopy:
    """Return the first copy of a stopping capture, with an unchanged configuration."""
    config = load_config(None, {"TIDEMARK_CAPTURE__DSN": dsn})
    timeline = TimelineId(1)
    with store.transaction(None) as transaction:
        transaction.put(FINGERPRINT, Fingerprint(selection_reported(config.select, config.copy), REACHED, timeline))
    stopping = Event()
    stopping.set()
    beginning = Beginning(timeline, REACHED, FullXid(1), {Oid(1): "db"}, types=config.types.mapping())
    epoch = taken(store)
    Recopying(store).queue(epoch, 0.0)
    return FirstCopy(
        CopySettings.of(config),
        store,
        epoch,
        beginning,
        no_delivery,
        fills_outbox=True,
        databases={},
        at_start=dict,
        metrics=Metrics("main"),
        log=get_log("test"),
        stopping=stopping,
    )


def no_delivery(group: ChangeGroup, copy: tuple[Oid, Oid, CopyProgress]) -> None:
    raise AssertionError((group, copy))


@pytest.mark.feature("I30")
@pytest.mark.parametrize("obstacle", ["away", "rejected"])
def test_requested_copies_do_not_wait_for_a_node_that_refuses_connections(
    store: StateStore, cluster: Cluster, obstacle: str
) -> None:
    request(store)
    role = "a_role_that_is_missing"
    first_copy(store, AWAY if obstacle == "away" else cluster.dsn("postgres", role)).run()
    assert step(store) is RecopyStep.REQUESTED
    assert (store.copy(*TABLE), not_begun(store)) == (WHOLE, frozenset())


@pytest.mark.feature("P22")
def test_tables_that_are_to_be_copied_in_any_case_wait_for_the_node(store: StateStore, cluster: Cluster) -> None:
    request(store)
    with store.transaction(None) as transaction:
        transaction.put_copy(Oid(1), Oid(3), CopyProgress(CopyPhase.WAITING, 0))
    with pytest.raises(Stopped):
        first_copy(store, AWAY).run()
    assert step(store) is RecopyStep.QUEUED
    with pytest.raises(AuthenticationFailed):
        first_copy(store, cluster.dsn("postgres", "a_role_that_is_missing")).run()


@pytest.mark.feature("I30")
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_refused_copy_is_a_failed_request_and_leaves_a_table_complete_only_if_it_has_not_begun(
    store: StateStore, *, has_begun: bool
) -> None:
    request(store)
    epoch = taken(store)
    Recopying(store).queue(epoch, 0.0)
    begun = CopyProgress(CopyPhase.COPYING, 2, "9:9:", seen_lsn=REACHED, timeline=TimelineId(1))
    if has_begun:
        with store.transaction(epoch) as transaction:
            transaction.put_copy(*TABLE, begun)
    refuse(store, epoch, TABLE, Recopy("db.public.account", 0, REACHED, 0, failed="too large"))
    assert step(store) is RecopyStep.FAILED
    refused_copy = replace(begun.without_snapshot(), phase=CopyPhase.REFUSED, refused_name="db.public.account")
    reported = replace(refused_copy, capture=DueNotice.BEGINS)  # the readers have emptied the table
    assert store.copy(*TABLE) == (reported if has_begun else WHOLE)
    assert store.refused_copies() == ({TABLE: reported} if has_begun else {})
    request(store)  # again
    assert step(store) is RecopyStep.REQUESTED


def test_a_table_whose_first_copy_is_refused_is_shown_and_copied_when_it_is_requested(store: StateStore) -> None:
    with store.transaction(None) as transaction:
        transaction.put_copy(*TABLE, CopyProgress(CopyPhase.WAITING, 1))
    epoch = taken(store)
    refuse(store, epoch, TABLE, Recopy("db.public.account", 0, REACHED, 0, failed="too large"))
    assert (step(store), store.copy(*TABLE)) == (RecopyStep.FAILED, REPORTED)
    request(store)
    Recopying(store).queue(epoch, 0.0)
    assert (step(store), not_begun(store)) == (RecopyStep.QUEUED, frozenset({TABLE}))


@pytest.mark.parametrize("before", [CopyPhase.LEFT, CopyPhase.REFUSED])
@pytest.mark.parametrize("ends", ["postponed", "failed", "refused again", "cancelled", "request damaged"])
def test_a_refused_copy_stays_refused_until_the_table_is_copied(
    store: StateStore, before: CopyPhase, ends: str
) -> None:
    with store.transaction(None) as transaction:
        transaction.put_copy(*TABLE, replace(REFUSED, phase=before))
    epoch = taken(store)
    request(store)
    if ends == "request damaged":
        with store.environment.write() as writing:
            writing.put(named(store.scope, RECOPIES.name), b"rubbish", db=store.environment.database("state"))
        assert store.recopies().tables == {}
    else:
        Recopying(store).queue(epoch, 0.0)
        assert store.refused_copies() == {}
    match ends:
        case "postponed":
            postpone(store, epoch, [TABLE])
        case "failed":
            fail(store, epoch, {TABLE: "no SELECT"})
        case "cancelled":
            assert cancel_recopies(store, [TABLE], is_copying=False) == {}
        case "refused again":
            refuse(store, epoch, TABLE, Recopy("db.public.account", 0, REACHED, 0, failed="too large"))
    expected = replace(REFUSED, phase=before)
    if ends == "refused again":
        expected = REFUSED if before is CopyPhase.REFUSED else REPORTED
    assert store.copy(*TABLE) == expected
    cancel_recopies(store, [TABLE], is_copying=True)
    assert store.copy(*TABLE) == expected
