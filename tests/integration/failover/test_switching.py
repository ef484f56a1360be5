"""A stage transition over a real LMDB: the values that are written with it, in one transaction, and no others."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from tests.support.forged import groups
from tidemark.engine.handover import Effect, Event, Refused
from tidemark.io.host.logs import Log
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.switching import Switched, switch
from tidemark.model.errors import Fenced
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch, Pointer
from tidemark.wire.outbox import encode_group
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import FOLLOWED
from tidemark.wire.state.values import Followed, HandOver, Identity, Watermark

SIDECAR, ARCHIVER = Owner("sidecar", "host", "boot", 1, 1), Owner("archiver", "host", "boot", 2, 2)
IDENTITY = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, 4 << 20)
LOG: Log = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
MET = HandOver(3, TimelineId(1), Lsn(500))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as made:
        yield made


def deliver(store: StateStore, commit_lsn: int) -> Watermark:
    with store.transaction(None) as transaction:
        return transaction.deliver(encode_group(groups.group(commit_lsn, [groups.batch(commit_lsn, [1])])))


@pytest.mark.feature("I12")
def test_a_transition_is_written_with_its_epoch_and_position_and_logged_once(store: StateStore) -> None:
    epoch = store.begin_epoch(SIDECAR)
    delivered = deliver(store, 100)
    with capture_logs() as reported:
        found = switch(store, Event.RING_FULL, log=LOG, now_us=5, epoch=epoch)
    effects = (Effect.STOP_CAPTURE, Effect.WRITE_STOP_MARKER, Effect.SWITCH_SEGMENT)
    assert found == Switched(Stage.REALTIME, Stage.ARCHIVE, effects, epoch, "the ring is full")
    place = str(delivered.pointer.position)
    (kept,) = store.view().switches.kept
    assert (kept.at_us, kept.before, kept.after, kept.reason) == (5, Stage.REALTIME, Stage.ARCHIVE, "the ring is full")
    assert (kept.epoch, kept.delivered, store.view().stage) == (epoch, place, Stage.ARCHIVE)
    (line,) = reported
    assert (line["event"], line["before"], line["after"]) == ("mode switched", "realtime", "archive")
    assert (line["reason"], line["epoch"], line["delivered"]) == ("the ring is full", str(epoch), place)


def test_before_any_delivery_or_epoch_a_transition_has_no_position_and_no_epoch(store: StateStore) -> None:
    with capture_logs() as reported:
        found = switch(store, Event.OPERATOR_OFF, log=LOG, now_us=5, reason="asked for")
    (kept,) = store.view().switches.kept
    assert (found.epoch, kept.epoch, kept.delivered, kept.reason) == (None, None, "", "asked for")
    assert (reported[0]["epoch"], reported[0]["delivered"], reported[0]["reason"]) == (None, None, "asked for")


def test_an_event_that_does_not_change_the_stage_is_neither_stored_nor_logged(store: StateStore) -> None:
    with capture_logs() as reported:
        found = switch(store, Event.OPERATOR_ON, log=LOG, now_us=5)
    assert (found.before, found.after) == (Stage.REALTIME, Stage.REALTIME)
    assert (store.view().switches.kept, reported) == ((), [])


@pytest.mark.feature("I21")
def test_a_transition_with_a_new_owner_fences_the_old_one(store: StateStore) -> None:
    epoch = store.begin_epoch(SIDECAR)
    found = switch(store, Event.SIDECAR_LOST, log=LOG, now_us=5, new_owner=ARCHIVER)
    assert found.epoch == Epoch(TimelineId(1), 2)
    term = store.view().term
    assert term is not None
    assert (term.epoch, term.owner) == (found.epoch, ARCHIVER)
    with pytest.raises(Fenced):
        switch(store, Event.OPERATOR_OFF, log=LOG, now_us=6, epoch=epoch)
    assert store.view().stage is Stage.ARCHIVE
    assert switch(store, Event.OPERATOR_OFF, log=LOG, now_us=6).epoch == found.epoch, "somebody else's move keeps it"


def test_a_process_that_takes_over_reads_the_schema_versions_that_others_have_numbered(store: StateStore) -> None:
    with StateStore.open(store.folder) as other:
        deliver(other, 100)
    switch(store, Event.SIDECAR_LOST, log=LOG, now_us=5, new_owner=ARCHIVER)
    deliver(store, 200)
    assert len(store.relations()) == 1


def test_a_transition_that_the_table_does_not_have_writes_nothing(store: StateStore) -> None:
    with pytest.raises(Refused):
        switch(store, Event.MARKER_REACHED, log=LOG, now_us=5, hand_over=MET, new_owner=ARCHIVER)
    view = store.view()
    assert (view.stage, view.hand_over, view.term) == (Stage.REALTIME, HandOver(), None)


def test_an_event_seen_in_another_stage_is_fenced_and_writes_nothing(store: StateStore) -> None:
    with pytest.raises(Fenced, match="the stage is now realtime, no longer archive"):
        switch(store, Event.OPERATOR_OFF, log=LOG, now_us=5, only_from=Stage.ARCHIVE)
    assert store.view().stage is Stage.REALTIME
    assert switch(store, Event.OPERATOR_OFF, log=LOG, now_us=5, only_from=Stage.REALTIME).after is Stage.HELD


@pytest.mark.feature("I17")
def test_the_hand_over_record_is_written_with_its_transition_and_unchanged_by_others(store: StateStore) -> None:
    for event in (Event.RING_FULL, Event.RETURN_READY):
        switch(store, event, log=LOG, now_us=5)
    switch(store, Event.MARKER_REACHED, log=LOG, now_us=5, hand_over=MET)
    assert store.view().hand_over == MET
    switch(store, Event.TAKEN_OVER, log=LOG, now_us=5)
    assert (store.view().stage, store.view().hand_over) == (Stage.REALTIME, MET)


def test_a_follower_begins_at_its_delivered_position_and_is_not_moved_back_to_it(store: StateStore) -> None:
    delivered = deliver(store, 100)
    switch(store, Event.OPERATOR_ON, log=LOG, now_us=5)
    assert store.view().followed is None, "it delivers"
    switch(store, Event.DEMOTED, log=LOG, now_us=5)
    followed = store.view().followed
    assert followed is not None
    assert (followed.pointer, followed.floor, followed.has_start) == (delivered.pointer, delivered.pointer, True)
    deliver(store, 200)
    switch(store, Event.DEMOTED, log=LOG, now_us=6)
    assert store.view().followed == followed


@pytest.mark.feature("I12")
def test_a_follower_demoted_before_its_start_was_found_continues_where_it_was(store: StateStore) -> None:
    """The start of a promoted follower waits, for example for disk space, and its node is a standby again."""
    delivered = deliver(store, 100)
    switch(store, Event.DEMOTED, log=LOG, now_us=5)
    ahead = Pointer(replace(delivered.pointer.position, commit_lsn=Lsn(900)), Lsn(800))
    followed = Followed(ahead, delivered.pointer, has_start=False)
    with store.transaction(None) as transaction:
        transaction.put(FOLLOWED, followed)
    switch(store, Event.PROMOTED, log=LOG, now_us=6)
    switch(store, Event.DEMOTED, log=LOG, now_us=7)
    assert (store.view().stage, store.view().followed) == (Stage.FOLLOWER, followed)
