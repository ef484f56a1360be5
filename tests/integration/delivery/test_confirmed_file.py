"""What the consumer of a killed process has confirmed is not delivered again, also if LMDB does not have it yet.

A kill is a copy of the state folder, made while a transaction of the test keeps the confirm thread from LMDB.
"""

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.delivery.test_delivery import DEADLINE_S, Scripted, new_target
from tests.support.forged import groups
from tests.support.forged.deliveries import IDENTITY, OWNER, START, group
from tests.support.processes.waiting import wait_until
from tidemark.engine.offset_update import PartitionOffsets
from tidemark.engine.ports import GroupConsumer, GroupPart
from tidemark.engine.progress import Progress
from tidemark.io.parked.parked_table import ParkedTable
from tidemark.io.state.confirmed_file import read_confirmation
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import Oid
from tidemark.model.position import Epoch, Pointer, Position
from tidemark.model.position import Sequence as Number
from tidemark.runtime.delivery.consumer_target import ConsumerTarget
from tidemark.runtime.delivery.consumers import NullConsumer
from tidemark.wire.parked import ParkedChange
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress
from tidemark.wire.state.state_keys import DELIVERED
from tidemark.wire.state.values import Watermark

EXAMPLES = 40
STEPS_MAX = 9  # of 100 bytes: less than may be unconfirmed
NEVER_S = 3600.0
CREATED = 20_000  # the first OID of tables that a test creates


def begun(store: StateStore, consumer: GroupConsumer, *, epoch: Epoch | None = None) -> ConsumerTarget:
    """Return a target as a process that begins an epoch makes it."""
    epoch = epoch or store.begin_epoch(OWNER)
    progress = Progress(delivered=store.view().start)
    target = new_target(consumer, store, epoch, progress, threading.Event())
    target.begin()
    return target


@contextmanager
def killed(store: StateStore, root: Path) -> Iterator[StateStore]:
    """Open the state as a kill at this moment leaves it."""
    left = shutil.copytree(store.folder.root, root / "left")
    with StateStore.open(StateFolder(left)) as opened:
        yield opened


def confirmed(store: StateStore) -> Position | None:
    found = read_confirmation(store.folder)
    return None if found is None else found.position


def last(lsn: int) -> Position:
    return group(lsn).last.position


def creation(lsn: int, oid: int) -> ChangeGroup:
    """Return a group with the creation of a table."""
    return groups.group(lsn, [groups.schema_event(lsn, groups.relation(f"t{oid}", oid))])


class StartKeeper(Scripted):
    """Keeps where it started."""

    start: Pointer | None = None

    def on_assigned(self, partition: object, epoch: Epoch, start: Pointer | None) -> None:
        del partition, epoch
        self.start = start


@pytest.mark.feature("I34")
def test_after_a_kill_the_consumer_continues_after_its_last_confirmation(
    store: StateStore, epoch: Epoch, tmp_path: Path
) -> None:
    consumer, again = StartKeeper([True, True, False, False]), StartKeeper([])
    target = begun(store, consumer, epoch=epoch)
    with store.transaction(epoch):
        for lsn in (100, 200, 300, 400):
            target.deliver(group(lsn))
        assert confirmed(store) == last(200)
        assert store.view().start == START
        with killed(store, tmp_path) as left:
            resumed = begun(left, again)
            assert again.start == left.view().start == Pointer(last(200), START.restart_lsn)
            resumed.deliver(group(300))
            resumed.close()
            assert left.view().start == group(300).last
    target.close()


def test_a_kill_before_the_first_confirmation_of_a_process_loses_none_of_the_one_before(
    store: StateStore, epoch: Epoch, tmp_path: Path
) -> None:
    target = begun(store, Scripted([]), epoch=epoch)
    with store.transaction(epoch):
        target.deliver(group(100))
        with killed(store, tmp_path) as left:
            begun(left, Scripted([]))
            left.begin_epoch(OWNER)
            assert left.view().start == Pointer(last(100), START.restart_lsn)
    target.close()


class PartConsumer(NullConsumer):
    """Confirms the first part of a group, as a pool does that is to stop in it."""

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool | GroupPart:  # type: ignore[override]
        group = next(groups)
        return GroupPart(group, replace(group, last=Pointer(group.first, START.restart_lsn)))


def test_a_part_of_a_group_is_confirmed_up_to_its_end(store: StateStore, epoch: Epoch) -> None:
    target = begun(store, PartConsumer(), epoch=epoch)
    with store.transaction(epoch):
        target.deliver(group(100))
        assert confirmed(store) == group(100).first < last(100)
    target.close()


@pytest.mark.parametrize("lsns", [(100,), (50, 100)])
def test_a_confirmation_of_which_the_state_records_more_is_durable_at_once(
    store: StateStore, epoch: Epoch, lsns: Sequence[int]
) -> None:
    """Also if it is confirmed together with others."""
    consumer = Scripted([False] * (len(lsns) - 1))
    target = begun(store, consumer, epoch=epoch)

    def deliver_all() -> None:
        for lsn in lsns:
            target.deliver(creation(lsn, CREATED) if lsn == lsns[0] else group(lsn))
        target.deliver(group(200))

    worker = threading.Thread(target=deliver_all)
    with store.transaction(epoch):
        worker.start()
        wait_until(lambda: consumer.seen == [*lsns])
        worker.join(0.05)
        assert consumer.seen == [*lsns]
        assert confirmed(store) is None
    worker.join(DEADLINE_S)
    assert consumer.seen == [*lsns, 200]
    assert store.copy(groups.DATABASE, Oid(CREATED)) is not None
    assert confirmed(store) == last(200)
    target.close()


def test_rows_of_a_first_copy_are_not_in_the_file(store: StateStore, epoch: Epoch) -> None:
    target = begun(store, Scripted([]), epoch=epoch)
    table = (groups.DATABASE, groups.relation().oid)
    target.deliver_copied(group(50), (*table, CopyProgress(CopyPhase.COPYING, 1)))
    assert confirmed(store) is None
    assert store.view().copies == {table: CopyProgress(CopyPhase.COPYING, 1)}
    target.deliver(group(100))
    assert confirmed(store) == last(100)
    target.close()


class HookedConfirmer(NullConsumer):
    def update_offsets(self, positions: PartitionOffsets) -> PartitionOffsets:
        return positions


def test_with_a_hook_only_its_rounds_move_the_position(store: StateStore, epoch: Epoch, tmp_path: Path) -> None:
    target = begun(store, HookedConfirmer(), epoch=epoch)
    with store.transaction(epoch):
        for lsn in (100, 200):
            target.deliver(group(lsn))
        with killed(store, tmp_path) as left:
            left.begin_epoch(OWNER)
            assert left.view().start == START
    target.close()


def park(store: StateStore, epoch: Epoch, lsn: int) -> None:
    relation = groups.relation()
    at, name = groups.position(lsn), relation.qualified_name
    change = ParkedChange(0, at, "i", "app", groups.DATABASE, name, relation, ("1",), (), "KeyError", 1, epoch)
    with store.transaction(epoch) as transaction:
        ParkedTable(transaction).park(change, b"row", 1 << 20)


def parked(store: StateStore) -> list[int]:
    with store.reading() as transaction:
        return [change.position.commit_lsn for change in ParkedTable(transaction).changes()]


def test_a_change_that_was_parked_and_confirmed_stays_parked_after_a_kill(
    store: StateStore, epoch: Epoch, tmp_path: Path
) -> None:
    target = begun(store, Scripted([]), epoch=epoch)
    park(store, epoch, 100)
    with store.transaction(epoch):
        for lsn in (100, 200):
            target.deliver(group(lsn))
        with killed(store, tmp_path) as left:
            resumed = begun(left, Scripted([]))
            resumed.deliver(group(300))
            resumed.close()
            assert parked(left) == [100]
    target.close()


def test_a_parked_change_that_is_delivered_again_leaves_the_table_before_its_confirmation_counts(
    store: StateStore, epoch: Epoch
) -> None:
    park(store, epoch, 150)
    consumer = Scripted([])
    younger = store.begin_epoch(OWNER)
    target = begun(store, consumer, epoch=younger)

    def deliver_all() -> None:
        for lsn in (100, 200, 300):
            target.deliver(group(lsn))

    worker = threading.Thread(target=deliver_all)
    with store.transaction(younger):
        worker.start()
        wait_until(lambda: consumer.seen == [100])
        worker.join(0.05)
        assert (consumer.seen, confirmed(store)) == ([100], None)
    worker.join(DEADLINE_S)
    assert parked(store) == []
    assert confirmed(store) == last(300)
    target.close()


STEPS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=STEPS_MAX)


@given(steps=STEPS)
@settings(max_examples=EXAMPLES)
def test_a_kill_after_any_confirmation_leaves_exactly_the_position_and_the_records_of_what_was_confirmed(
    steps: Sequence[tuple[bool, bool]],
) -> None:
    """A step delivers the creation of a table, or a row, and confirms everything so far, or nothing."""
    with TemporaryDirectory() as root, StateStore.create(StateFolder(Path(root) / "state"), IDENTITY) as store:
        with store.transaction(None) as transaction:
            transaction.put(DELIVERED, Watermark(START, Number(0)))
        epoch, progress = store.begin_epoch(OWNER), Progress(delivered=START)
        consumer = Scripted([confirms for _, confirms in steps])
        target = new_target(consumer, store, epoch, progress, threading.Event(), confirm_s=NEVER_S)
        target.begin()
        expected, waiting, created = START.position, set[int](), set[int]()
        for number, (creates, confirms) in enumerate(steps):
            lsn, oid = 100 * (number + 1), CREATED + number
            target.deliver(creation(lsn, oid) if creates else group(lsn))
            waiting |= {oid} if creates else set()
            if confirms:
                expected, created, waiting = last(lsn), created | waiting, set()
            with store.transaction(None):  # no commit of the confirm thread while the files are copied
                left = shutil.copytree(store.folder.root, Path(root) / str(number))
            with StateStore.open(StateFolder(left)) as opened:
                opened.begin_epoch(OWNER)
                view = opened.view()
            assert view.start is not None
            assert view.start.position == expected
            assert {oid for _, oid in view.copies} == created
        target.close()
