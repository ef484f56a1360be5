"""The hook `update_offsets` before real transactions: what it gets, what it may change, and how often it is called."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.delivery.test_delivery import DEADLINE_S, new_target
from tests.support.forged.deliveries import IDENTITY, OWNER, START, group
from tests.support.forged.groups import position
from tests.support.plugins.bad_plugins import AcceptingConsumer
from tests.support.processes.waiting import wait_until
from tests.unit.plugins.test_group_transforms import transforms_of
from tests.unit.pool.test_six_ways import new_consumer
from tidemark import ALWAYS, CommitPolicy, OffsetsRefused, Order, Partition, Position, every
from tidemark.embedding.library_log import LibraryLog
from tidemark.engine.offset_update import OffsetsHook, PartitionOffsets
from tidemark.engine.ports import GroupConsumer
from tidemark.engine.progress import Progress
from tidemark.io.host.clock import SystemClock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import Oid, SystemIdentifier
from tidemark.model.position import Pointer
from tidemark.model.position import Sequence as Number
from tidemark.runtime.delivery.consumers import NullConsumer
from tidemark.runtime.delivery.liveness import ConsumerRaised
from tidemark.runtime.plugins.plugin_consumer import PluginConsumer
from tidemark.runtime.pool.handler_pool import HandlerPool
from tidemark.runtime.pool.pending_batch import Processing
from tidemark.wire.state.state_keys import ADDED_POSITIONS, DELIVERED
from tidemark.wire.state.values import Watermark

if TYPE_CHECKING:
    from tidemark.runtime.pool.pool_parts import PoolPart

OWN = Partition(IDENTITY.system_identifier)
OTHER = Partition(SystemIdentifier(99), Oid(5))
NOTHING, ALL = 0, 1 << 30  # of the drawn groups: how many are confirmed


class HookedConsumer(NullConsumer):
    """Confirms as it was told: after each call, up to so many of the groups that it has drawn."""

    def __init__(self, hook: OffsetsHook | None, answers: Sequence[int]) -> None:
        super().__init__()
        self.update_offsets = hook
        self._answers = list(answers)
        self._then = NOTHING if answers else ALL
        self._drawn: list[ChangeGroup] = []
        self.confirmed = 0

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool | ChangeGroup:  # type: ignore[override]
        self._drawn += groups
        upto = min(len(self._drawn), self._answers.pop(0) if self._answers else self._then)
        if upto <= self.confirmed:
            return False
        self.confirmed = upto
        return self._drawn[upto - 1]

    @property
    def acknowledged(self) -> Position:
        return self._drawn[self.confirmed - 1].last.position if self.confirmed else START.position

    @property
    def first_unacknowledged(self) -> Position | None:
        left = self._drawn[self.confirmed :]
        return left[0].first if left else None


class Delivering:
    """A target with its state; `deliver` is the application thread."""

    def __init__(self, folder: Path, hook: OffsetsHook | None, answers: Sequence[int] = ()) -> None:
        self.seen: list[PartitionOffsets] = []
        self.store = StateStore.create(StateFolder(folder), IDENTITY)
        with self.store.transaction(None) as transaction:
            transaction.put(DELIVERED, Watermark(START, Number(0)))
        self.begin(hook, answers)

    def begin(self, hook: OffsetsHook | None, answers: Sequence[int] = ()) -> None:
        """Start on the state as it is."""
        self.consumer = HookedConsumer(hook and self._recorded(hook), answers)
        self.begin_with(self.consumer)

    def begin_with(self, consumer: GroupConsumer) -> None:
        """Start with another consumer."""
        epoch = self.store.begin_epoch(OWNER)
        progress = Progress(delivered=self.start)
        self.target = new_target(consumer, self.store, epoch, progress, threading.Event(), log=LibraryLog())
        self.target.begin()
        self._commits = self.store.environment.last_commit

    def _recorded(self, hook: OffsetsHook) -> OffsetsHook:
        def called(positions: PartitionOffsets) -> PartitionOffsets | None:
            self.seen.append(positions)
            return hook(positions)

        return called

    def deliver(self, *lsns: int) -> None:
        """Deliver groups, each in a commit round of its own if it is confirmed at once."""
        for lsn in lsns:
            self.target.deliver(group(lsn))
            self.settle()

    def settle(self) -> None:
        while self.target.has_round:
            self.target.idle()

    @property
    def commits(self) -> int:
        """Transactions since the target began, as LMDB counts them."""
        return self.store.environment.last_commit - self._commits

    @property
    def start(self) -> Pointer:
        found = self.store.view().start
        assert found is not None
        return found

    @property
    def added(self) -> PartitionOffsets:
        with self.store.reading() as transaction:
            found = transaction.get(ADDED_POSITIONS)
        return {} if found is None else found.by_partition

    @property
    def stored(self) -> list[tuple[bytes, bytes]]:
        with self.store.reading() as transaction:
            return list(transaction.stored("state"))

    def close(self) -> None:
        try:
            self.target.close()
        finally:
            self.store.close()


def unchanged(_positions: PartitionOffsets) -> PartitionOffsets | None:
    return None


@pytest.mark.feature("U04")
@pytest.mark.feature("U05")
@pytest.mark.feature("U13")
def test_the_hook_is_called_once_for_each_transaction_with_the_newest_position_that_it_stores(tmp_path: Path) -> None:
    stored: list[Position] = []

    def hook(_positions: PartitionOffsets) -> None:
        stored.append(delivering.start.position)

    delivering = Delivering(tmp_path, hook)
    with closing(delivering):
        with delivering.store.transaction(None):  # no round can end
            for lsn in range(100, 108):
                delivering.target.deliver(group(lsn))
        delivering.settle()
        delivering.deliver(200)
        delivering.target.close()
        stored.append(delivering.start.position)
        assert [dict(positions) for positions in delivering.seen] == [{OWN: at} for at in stored[1:]]
        assert stored == [START.position, *(group(lsn).last.position for lsn in (100, 107, 200))]
        assert delivering.commits == len(delivering.seen)


@pytest.mark.feature("U13")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("policy", "rounds"),
    [
        (ALWAYS, 7),
        (every(changes=3), 3),
        (every(changes=4), 2),  # the rest in idle time, with the position
        (every(changes=1) & every(seconds=3600), 1),
        (every(changes=3) | every(seconds=3600), 3),
        (every(seconds=1e-9), 7),
    ],
)
def test_each_commit_policy_has_as_many_calls_as_transactions_also_in_idle_time(
    tmp_path: Path, policy: CommitPolicy, rounds: int, workers: int
) -> None:
    seen: list[PartitionOffsets] = []
    pool: HandlerPool[PoolPart] = HandlerPool(
        lambda _part: None, workers=workers, retries=0, backoff=(0.01, 0.02), log=LibraryLog()
    )
    delivering = Delivering(tmp_path, None)
    delivering.target.close()
    processing = Processing(False, None, SystemClock())
    consumer = new_consumer(pool, Order.TOTAL, processing, delivering.store, commit=policy, update_offsets=seen.append)
    pool.start()
    delivering.begin_with(consumer)
    with closing(delivering):
        idle = replace(group(700), items=(), transactions=(), row_count=0, byte_count=0)
        for number, each in enumerate([*map(group, range(100, 700, 100)), idle], 1):
            delivering.target.deliver(each)
            wait_until(partial(lambda wanted: pool.settled_units == wanted, number))
            delivering.target.idle()
            delivering.settle()
        pool.drain(DEADLINE_S)
        consumer.flush()
        delivering.target.close()
        assert (delivering.commits, len(seen)) == (rounds, rounds)
        assert seen[-1] == {OWN: idle.last.position} == {OWN: delivering.start.position}


@pytest.mark.feature("U06")
@pytest.mark.feature("U10")
@pytest.mark.parametrize("answer", [None, {}])
def test_without_an_answer_the_stored_bytes_are_those_without_a_hook(
    tmp_path: Path, answer: PartitionOffsets | None
) -> None:
    def stored(name: str, hook: OffsetsHook | None) -> list[tuple[bytes, bytes]]:
        delivering = Delivering(tmp_path / name, hook)
        with closing(delivering):
            delivering.deliver(100, 200)
            delivering.target.close()
            return delivering.stored

    hooked = stored("hooked", lambda _positions: answer)
    assert hooked == stored("plain", None)
    assert not [key for key, _ in hooked if key.endswith(ADDED_POSITIONS.name.encode())]


@pytest.mark.feature("U07")
@pytest.mark.feature("U08")
def test_an_added_partition_and_a_position_in_the_gap_before_the_next_change_are_stored_in_one_transaction(
    tmp_path: Path,
) -> None:
    delivering = Delivering(tmp_path, lambda _positions: {OWN: position(150), OTHER: position(7)}, [NOTHING, 1])
    with closing(delivering):
        delivering.target.deliver(group(100))
        delivering.target.deliver(group(200))  # is drawn, and not confirmed
        delivering.settle()
        assert (delivering.start, delivering.added) == (
            Pointer(position(150), group(100).last.restart_lsn),
            {OTHER: position(7)},
        )
        assert delivering.commits == 1
        delivering.target.close()
        delivering.begin(lambda positions: {**positions, OTHER: position(8)})
        delivering.deliver(200)
        assert delivering.seen[-1] == {OWN: group(200).last.position, OTHER: position(7)}
        assert delivering.added == {OTHER: position(8)}


@pytest.mark.feature("U08")
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({OWN: position(99)}, "back from 1:"),
        ({OWN: position(200)}, "and the next change is 1:0/C8:0"),
        ({OWN: position(300)}, "1:0/64:1000000 is acknowledged"),
        ({OWN: Position(START.position.timeline.__class__(2), START.position.commit_lsn, 0)}, "on another timeline"),
        ({Partition(OWN.system_identifier, Oid(5)): position(200)}, "and the next change is"),
        ({OWN: "0/64"}, "must return Partition with Position"),
        ([OWN], "which is neither a mapping nor None"),
        ({Partition(SystemIdentifier(n)): position(1) for n in range(100, 1101)}, "at most 1000 are stored"),
    ],
)
def test_positions_that_move_back_or_pass_what_is_acknowledged_are_refused_and_nothing_is_stored(
    tmp_path: Path, answer: PartitionOffsets, message: str
) -> None:
    delivering = Delivering(tmp_path, lambda _positions: answer, [NOTHING, 1])
    delivering.target.deliver(group(100))
    with pytest.raises(OffsetsRefused, match=message):
        delivering.target.deliver(group(200))
    assert (delivering.start, delivering.added, delivering.commits) == (START, {}, 0)
    with pytest.raises(OffsetsRefused, match=message):
        delivering.target.close()
    assert delivering.commits == 0, "a later round would skip what the refused one had to store"
    delivering.store.close()


def test_an_error_of_the_hook_ends_delivery_and_nothing_is_stored(tmp_path: Path) -> None:
    cause = ValueError("a value of a row")

    def hook(_positions: PartitionOffsets) -> None:
        raise cause

    delivering = Delivering(tmp_path, hook)
    with pytest.raises(ConsumerRaised, match="HookedConsumer raised ValueError in update_offsets") as raised:
        delivering.target.deliver(group(100))
    assert raised.value.__cause__ is cause
    assert delivering.commits == 0
    with pytest.raises(ConsumerRaised):
        delivering.target.close()
    delivering.store.close()


@pytest.mark.feature("U07")
def test_a_plug_in_has_the_hook_if_its_class_has_the_method(tmp_path: Path) -> None:
    class Hooked(AcceptingConsumer):
        def update_offsets(self, positions: PartitionOffsets) -> PartitionOffsets:
            return {**positions, OTHER: position(7)}

    delivering = Delivering(tmp_path, None)
    delivering.target.close()
    with closing(delivering):
        for plugin, added in ((AcceptingConsumer(), {}), (Hooked(), {OTHER: position(7)})):
            delivering.begin_with(PluginConsumer(plugin, transforms_of(), None, SystemClock()))
            delivering.deliver(100)
            delivering.target.close()
            assert (delivering.start, delivering.added) == (group(100).last, added)


@pytest.mark.feature("U09")
def test_a_partition_that_is_left_out_stays_stored_with_one_warning_that_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [{OTHER: position(7)}, {OWN: position(200, 1_000_000)}, {OWN: position(300, 1_000_000)}]
    delivering = Delivering(tmp_path, lambda _positions: answers.pop(0))
    with closing(delivering):
        delivering.deliver(100, 200, 300)
        assert (delivering.start, delivering.added) == (group(300).last, {OTHER: position(7)})
    lines = [record.getMessage() for record in caplog.records if "omitted a partition" in record.getMessage()]
    assert ["system_identifier=99 database=5" in line for line in lines] == [False, True]
    assert f"system_identifier={OWN.system_identifier} database=0" in lines[0]


@pytest.mark.feature("U11")
@given(
    answers=st.lists(st.integers(0, 6), min_size=6, max_size=6),
    moves=st.lists(st.integers(-3, 120) | st.integers(0, 99), max_size=8),
)
@settings(max_examples=25, deadline=None)
def test_no_answer_of_the_hook_stores_a_position_at_or_behind_a_change_that_is_not_acknowledged(
    answers: Sequence[int], moves: Sequence[int]
) -> None:
    """The model: what is stored is at least what is acknowledged, and before the first change that is not."""
    left = list(moves)

    def hook(positions: PartitionOffsets) -> PartitionOffsets | None:
        return {OWN: position(positions[OWN].commit_lsn + left.pop(0), 1_000_000)} if left else None

    with TemporaryDirectory() as folder:
        delivering = Delivering(Path(folder), hook, answers)
        try:
            for number in range(1, 7):
                before = delivering.start.position
                delivering.target.deliver(group(100 * number))
                delivering.settle()
                stored, first = delivering.start.position, delivering.consumer.first_unacknowledged
                assert stored >= max(before, delivering.consumer.acknowledged)
                assert first is None or stored < first
            assert delivering.commits == len(delivering.seen)
            delivering.target.close()
        except OffsetsRefused:
            assert delivering.commits == len(delivering.seen) - 1
            assert delivering.start.position <= delivering.consumer.acknowledged or first is None or stored < first
        finally:
            delivering.store.close()
