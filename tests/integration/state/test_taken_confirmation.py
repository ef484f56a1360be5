"""A new epoch continues after what the consumer of the last one has confirmed, and after nothing else: a real LMDB."""

import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.forged import groups
from tests.support.forged.deliveries import IDENTITY, OWNER, START, delivered_store
from tidemark.engine.handover import Event
from tidemark.io.host.log_output import get_log
from tidemark.io.host.logs import Log
from tidemark.io.state.confirmed_file import TAKEN, ConfirmedFile, TakenConfirmation, read_confirmation
from tidemark.io.state.state import StateStore
from tidemark.io.state.switching import switch
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Epoch, Pointer, Position
from tidemark.wire.outbox import encode_group
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import FOLLOWED
from tidemark.wire.state.state_keys import IDENTITY as IDENTITY_KEY
from tidemark.wire.state.values import Followed

ARCHIVER = Owner("archiver", "host", "boot", 2, 2)
STORED, CONFIRMED = groups.position(100), groups.position(300)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with delivered_store(tmp_path) as made:
        yield made


@pytest.fixture
def epoch(store: StateStore) -> Epoch:
    """The epoch of a killed process: the state has its deliveries up to `STORED`, the file up to `CONFIRMED`."""
    begun = store.begin_epoch(OWNER)
    deliver(store, STORED)
    confirm(store, begun)
    return begun


def deliver(store: StateStore, position: Position) -> None:
    encoded = encode_group(groups.group(position.commit_lsn, [], position.ordinal))
    with store.transaction(None) as transaction:
        transaction.deliver(encoded)


def confirm(
    store: StateStore,
    epoch: Epoch,
    *,
    outbox_id: str = IDENTITY.outbox_id,
    stored: Position = STORED,
    position: Position = CONFIRMED,
) -> None:
    with closing(ConfirmedFile.create(store.folder, outbox_id, epoch)) as file:
        file.write(stored, position)


def start(store: StateStore) -> Position:
    found = store.view().start
    assert found is not None
    return found.position


def test_the_next_owner_continues_after_the_last_confirmation_and_decodes_from_the_earlier_restart_lsn(
    store: StateStore, epoch: Epoch
) -> None:
    before = store.view()
    assert before.delivered is not None
    assert before.delivered.pointer.position == STORED
    younger = store.begin_epoch(OWNER)
    after = store.view()
    assert younger > epoch
    assert after.start == Pointer(CONFIRMED, before.delivered.pointer.restart_lsn)
    assert after.confirmed == after.delivered == replace(before.delivered, pointer=after.start)


def test_the_archiver_continues_after_the_last_confirmation_of_a_killed_sidecar(
    store: StateStore, epoch: Epoch
) -> None:
    switched = switch(store, Event.SIDECAR_LOST, log=get_log("test"), now_us=5, new_owner=ARCHIVER)
    assert switched.epoch is not None
    assert switched.epoch > epoch
    assert start(store) == CONFIRMED
    assert store.view().switches.kept[-1].delivered == str(CONFIRMED)


@pytest.mark.usefixtures("epoch")
def test_a_command_takes_the_last_confirmation_without_an_epoch_and_once(store: StateStore) -> None:
    before = store.view()
    assert store.take_confirmation() == TakenConfirmation(STORED, CONFIRMED)
    taken = store.view()
    assert start(store) == CONFIRMED
    assert taken.term == before.term
    assert store.take_confirmation() is None
    assert store.view() == taken


def begin(store: StateStore, log: Log) -> None:
    store.begin_epoch(OWNER, log)


def take_over(store: StateStore, log: Log) -> None:
    switch(store, Event.SIDECAR_LOST, log=log, now_us=5, new_owner=ARCHIVER)


@pytest.mark.usefixtures("epoch")
@pytest.mark.parametrize("continues", [begin, take_over])
def test_a_start_reports_once_between_which_positions_nothing_is_delivered_again(
    store: StateStore, continues: Callable[[StateStore, Log], None]
) -> None:
    with capture_logs() as logged:
        continues(store, get_log("test"))
        store.begin_epoch(ARCHIVER if continues is take_over else OWNER, get_log("test"))
    (taken,) = [entry for entry in logged if entry["event"] == TAKEN]
    assert (taken["delivered"], taken["confirmed"]) == (str(STORED), str(CONFIRMED))


@pytest.mark.usefixtures("epoch")
def test_what_was_taken_once_is_not_taken_again(store: StateStore) -> None:
    taken = store.begin_epoch(OWNER)
    with store.transaction(taken) as transaction:
        transaction.deliver(encode_group(groups.group(400, [])))
    store.begin_epoch(OWNER)
    assert start(store) == groups.group(400, []).last.position


@pytest.mark.parametrize(
    ("outbox_id", "stored", "position"),
    [
        pytest.param("0c0d", STORED, CONFIRMED, id="another state"),
        pytest.param(IDENTITY.outbox_id, groups.position(200), CONFIRMED, id="a state older than the confirmation"),
        pytest.param(IDENTITY.outbox_id, START.position, STORED, id="nothing new"),
        pytest.param(IDENTITY.outbox_id, START.position, groups.position(50), id="older than the state"),
        pytest.param(IDENTITY.outbox_id, STORED, Position(TimelineId(2), Lsn(300), 0), id="another timeline"),
    ],
)
def test_the_confirmation_of_other_changes_is_ignored(
    store: StateStore, epoch: Epoch, outbox_id: str, stored: Position, position: Position
) -> None:
    confirm(store, epoch, outbox_id=outbox_id, stored=stored, position=position)
    store.begin_epoch(OWNER)
    assert start(store) == STORED


@pytest.mark.usefixtures("epoch")
def test_a_command_that_moves_the_delivered_pointer_is_not_skipped_over(store: StateStore) -> None:
    """As `archive repair` and `rewind`, in one transaction with an epoch of their own."""
    resumed = groups.group(200, [])
    assert resumed.last.position < CONFIRMED
    with store.transaction(None) as transaction:
        transaction.deliver(encode_group(resumed))
        transaction.begin_epoch(OWNER)
    store.begin_epoch(OWNER)
    assert start(store) == resumed.last.position


def test_the_confirmation_of_another_epoch_is_ignored(store: StateStore, epoch: Epoch) -> None:
    confirm(store, Epoch(epoch.timeline, epoch.number + 10))
    store.begin_epoch(OWNER)
    assert start(store) == STORED


@pytest.mark.usefixtures("epoch")
def test_a_follower_takes_no_confirmation(store: StateStore) -> None:
    here = store.view().start
    assert here is not None
    with store.transaction(None) as transaction:
        transaction.put(FOLLOWED, Followed(here, here, has_start=True))
    store.begin_epoch(OWNER)
    assert start(store) == STORED


@pytest.mark.usefixtures("epoch")
def test_a_promoted_state_whose_outbox_has_another_name_takes_no_confirmation(store: StateStore) -> None:
    with store.transaction(None) as transaction:
        transaction.put(IDENTITY_KEY, replace(IDENTITY, outbox_id="0c0d"))
    store.begin_epoch(OWNER)
    assert start(store) == STORED


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def damage(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 0x10 for byte in path.read_bytes()))


def replace_with_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [remove, truncate, damage, replace_with_a_folder])
def test_a_file_that_is_missing_or_damaged_is_ignored(
    store: StateStore, epoch: Epoch, change: Callable[[Path], None]
) -> None:
    del epoch
    change(store.folder.confirmed)
    store.begin_epoch(OWNER)
    assert start(store) == STORED


def test_the_file_is_readable_by_its_owner_alone_and_has_its_space(store: StateStore) -> None:
    with closing(ConfirmedFile.create(store.folder, IDENTITY.outbox_id, store.begin_epoch(OWNER))):
        found = store.folder.confirmed.stat()
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert found.st_blocks * 512 >= found.st_size > 0
        assert read_confirmation(store.folder) is None


def test_a_process_that_was_replaced_writes_no_confirmation_into_the_file_of_the_next_one(
    store: StateStore, epoch: Epoch
) -> None:
    with closing(ConfirmedFile.create(store.folder, IDENTITY.outbox_id, epoch)) as old:
        younger = store.begin_epoch(OWNER)
        with closing(ConfirmedFile.create(store.folder, IDENTITY.outbox_id, younger)) as new:
            new.write(STORED, CONFIRMED)
            for lsn in (310, 320, 330):
                old.write(STORED, groups.position(lsn))
            found = read_confirmation(store.folder)
    assert found is not None
    assert (found.epoch, found.position) == (younger, CONFIRMED)
