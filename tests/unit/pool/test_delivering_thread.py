"""The thread that delivers transforms and serializes nothing, and reads no change to confirm it."""

import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from tests.support.forged.groups import COLUMNS, batch, group, position
from tests.support.processes.waiting import wait_until
from tests.unit.plugins.test_group_transforms import EPOCH
from tests.unit.plugins.test_plugin_consumer import PARTITION
from tests.unit.pool.test_six_ways import new_consumer
from tidemark import Batch, FlatJson, OnBatch, Order, SerializedBatch, SerializedRecord, Serializer
from tidemark.embedding.library_log import LibraryLog
from tidemark.engine.pool.commit_policy import every
from tidemark.io.host.clock import SystemClock
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeGroup, GroupItem
from tidemark.model.lsn import Lsn
from tidemark.model.position import Pointer
from tidemark.runtime.pool.handler_pool import THREAD_NAME, HandlerPool
from tidemark.runtime.pool.pending_batch import PendingBatch, Processing, Unit
from tidemark.runtime.pool.pool_consumer import PoolConsumer
from tidemark.runtime.pool.pool_parts import PoolPart, preparation
from tidemark.transforms.plan import TransformPlans

DEADLINE_S = 60.0
WORKERS = 4
ROUNDS = 3


class Together:
    """Counts calls by thread; each waits until all workers are inside."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self._barrier = threading.Barrier(WORKERS)

    def __call__(self) -> None:
        self.threads.append(threading.current_thread().name)
        self._barrier.wait(DEADLINE_S)


class MeetingSerializer(Serializer):
    def __init__(self, meet: Together) -> None:
        self._meet = meet

    def records(self, batch: Batch, now_ns: int) -> Sequence[SerializedRecord]:
        self._meet()
        return FlatJson().records(batch, now_ns)


class CountedItems(list[GroupItem]):
    """The items of a group, with the number of times that they were iterated over."""

    reads = 0

    def __iter__(self) -> Iterator[GroupItem]:
        self.reads += 1
        return super().__iter__()


def started(
    store: StateStore, processing: Processing, order: Order, units: list[Unit], *transforms: OnBatch
) -> tuple[HandlerPool[PoolPart], PoolConsumer]:
    def handle(part: PoolPart) -> None:
        assert isinstance(part, PendingBatch)
        part.handle(units.append)

    pool = HandlerPool(
        handle,
        prepare=preparation(has_transforms=True, has_serializer=True),
        workers=WORKERS,
        retries=0,
        backoff=(0.01, 0.02),
        log=LibraryLog(),
    )
    plans = TransformPlans(transforms, lambda _relation: COLUMNS)
    consumer = new_consumer(pool, order, processing, store, commit=every(seconds=3600), plans=plans)
    consumer.on_assigned(PARTITION, EPOCH, Pointer(position(1), Lsn(1)))
    pool.start()
    return pool, consumer


@pytest.mark.parametrize("order", [Order.NONE, Order.TOTAL])
def test_transforms_and_serializers_run_on_all_workers_at_a_time_and_never_in_the_thread_that_delivers(
    store: StateStore, order: Order
) -> None:
    units: list[Unit] = []
    transformed, serialized = Together(), Together()

    def transform(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:  # otherwise it is bound to the table
            transformed()
        return rows

    processing = Processing(False, MeetingSerializer(serialized), SystemClock())
    pool, consumer = started(store, processing, order, units, OnBatch(transform))
    count = ROUNDS * WORKERS
    consumer.on_events(iter([group(100 + lsn, [batch(100 + lsn, [1, 2])]) for lsn in range(count)]))
    wait_until(lambda: pool.settled_units == count or pool.error is not None)
    assert (pool.error, pool.drain(DEADLINE_S)) == (None, ())
    workers = {f"{THREAD_NAME}-{number}" for number in range(1, WORKERS + 1)}
    for calls in (transformed, serialized):
        assert (len(calls.threads), set(calls.threads)) == (count, workers)
    positions = [unit.position for unit in units if isinstance(unit, SerializedBatch)]
    assert len(positions) == count
    if order is Order.TOTAL:
        assert positions == sorted(positions), "prepared together, handled in order"


def test_a_serializer_that_only_computes_runs_in_as_many_threads_as_there_are_processors(store: StateStore) -> None:
    """More threads would wait for each other's interpreter lock, and cost more CPU."""
    slots = threading.BoundedSemaphore(WORKERS // 2)
    together, running, most = threading.Barrier(WORKERS // 2), set(), 0

    class MeetingJson(FlatJson):
        def records(self, batch: Batch, now_ns: int) -> Sequence[SerializedRecord]:
            nonlocal most
            running.add(threading.get_ident())
            most = max(most, len(running))
            together.wait(DEADLINE_S)
            try:
                return super().records(batch, now_ns)
            finally:
                running.remove(threading.get_ident())

    pool, consumer = started(store, Processing(False, MeetingJson(), SystemClock(), slots), Order.NONE, [])
    count = ROUNDS * WORKERS
    consumer.on_events(iter([group(100 + lsn, [batch(100 + lsn, [1, 2])]) for lsn in range(count)]))
    wait_until(lambda: pool.settled_units == count or pool.error is not None)
    assert (pool.error, pool.drain(DEADLINE_S)) == (None, ())
    assert most == WORKERS // 2


@pytest.mark.feature("A20")
def test_a_confirmation_reads_and_serializes_no_change(store: StateStore) -> None:
    calls = 0

    class Counting(Serializer):
        def records(self, batch: Batch, now_ns: int) -> Sequence[SerializedRecord]:
            nonlocal calls
            calls += 1
            return FlatJson().records(batch, now_ns)

    pool, consumer = started(store, Processing(False, Counting(), SystemClock()), Order.NONE, [])
    items = [CountedItems([batch(lsn, [1, 2])]) for lsn in (100, 200, 300)]
    groups: list[ChangeGroup] = [group(lsn, each) for lsn, each in zip((100, 200, 300), items, strict=True)]
    assert consumer.on_events(iter(groups)) is False, "not due yet"
    wait_until(lambda: pool.settled_units == len(groups) or pool.error is not None)
    before = [each.reads for each in items], calls
    consumer.flush()
    assert consumer.on_events(iter([])) is groups[-1]
    assert ([each.reads for each in items], calls) == before
    assert (all(before[0]), calls) == (True, len(groups))
    assert pool.drain(DEADLINE_S) == ()
