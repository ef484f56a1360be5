"""Heavy work of transforms, serializers and handlers: the thread that reads the stream neither does it nor waits."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Self

import pyarrow as pa
import pytest

from tests.support.forged.groups import COLUMNS, batch, group, position
from tests.support.processes.python_calls import counted_calls
from tests.support.processes.waiting import wait_until
from tests.unit.plugins.test_group_transforms import EPOCH
from tests.unit.plugins.test_plugin_consumer import PARTITION
from tests.unit.pool.test_six_ways import new_consumer
from tidemark import Batch, FlatJson, OnBatch, Order, SerializedRecord, Serializer
from tidemark.embedding.library_log import LibraryLog
from tidemark.engine.pool.commit_policy import every
from tidemark.io.host.clock import SystemClock
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import Lsn
from tidemark.model.position import Pointer
from tidemark.runtime.pool.handler_pool import THREAD_NAME, HandlerPool
from tidemark.runtime.pool.pending_batch import PendingBatch, Processing, Unit
from tidemark.runtime.pool.pool_parts import PoolPart, preparation
from tidemark.transforms.plan import TransformPlans

DEADLINE_S = 60.0
BYTES_MAX, GROUP_BYTES = 1 << 20, 1 << 17  # the bound of `new_consumer`; its eighth part
UP_TO_BOUND = BYTES_MAX // GROUP_BYTES + 1  # the group that passes the bound is taken
PLACES = ("transform", "serializer", "handler")
ORDERS = (Order.NONE, Order.TOTAL)


@dataclass
class SleepingWork:
    """Code of an application at all three places. At one of them, threads of the pool sleep until they are woken."""

    sleeps_in: str
    steps: int = 0  # of its work, in calls of functions
    threads: set[str] = field(default_factory=set)  # that were in it
    asleep: list[str] = field(default_factory=list)
    woken: threading.Event = field(default_factory=threading.Event)

    def __call__(self, place: str) -> None:
        name = threading.current_thread().name
        self.threads.add(name)
        if place == self.sleeps_in and name.startswith(THREAD_NAME):
            self.asleep.append(name)
            assert self.woken.wait(DEADLINE_S)
        for step in range(self.steps):
            _calculate(step)

    def transform(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:  # otherwise it is bound to the table
            self("transform")
        return rows

    def handle(self, _unit: Unit) -> None:
        self("handler")


class HeavySerializer(Serializer):
    def __init__(self, work: SleepingWork) -> None:
        self._work = work

    def records(self, batch: Batch, now_ns: int) -> Sequence[SerializedRecord]:
        self._work("serializer")
        return FlatJson().records(batch, now_ns)


def _calculate(step: int) -> int:
    return step


class PooledStream:
    """A pool with its consumer, and the groups that the consumer has taken."""

    def __init__(self, store: StateStore, work: SleepingWork, order: Order, workers: int) -> None:
        self.taken = 0
        self._work, self._workers = work, workers

        def handle(part: PoolPart) -> None:
            assert isinstance(part, PendingBatch)
            part.handle(work.handle)

        self.pool: HandlerPool[PoolPart] = HandlerPool(
            handle,
            prepare=preparation(has_transforms=True, has_serializer=True),
            workers=workers,
            retries=0,
            backoff=(0.01, 0.02),
            log=LibraryLog(),
        )
        plans = TransformPlans([OnBatch(work.transform)], lambda _relation: COLUMNS)
        processing = Processing(False, HeavySerializer(work), SystemClock())
        self.consumer = new_consumer(self.pool, order, processing, store, commit=every(seconds=3600), plans=plans)
        self.consumer.on_assigned(PARTITION, EPOCH, Pointer(position(1), Lsn(1)))

    def __enter__(self) -> Self:
        self.pool.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._work.woken.set()
        assert self.pool.drain(DEADLINE_S) == ()

    def groups(self, number: int, byte_count: int = 1) -> Iterator[ChangeGroup]:
        """Yield the next groups as they are taken."""
        for taken in islice(count(self.taken), number):
            self.taken += 1
            yield replace(group(100 + taken, [batch(100 + taken, [1, 2])]), byte_count=byte_count)

    def put_all_workers_to_sleep(self) -> None:
        self.consumer.on_events(self.groups(self._workers))
        wait_until(lambda: len(self._work.asleep) == self._workers)

    def wait_until_settled(self) -> None:
        wait_until(lambda: self.pool.settled_units == self.taken or self.pool.error is not None)
        assert self.pool.error is None


def thread_of(read: Callable[[], object]) -> threading.Thread:
    reader = threading.Thread(target=read, name="reader")
    reader.start()
    return reader


@pytest.mark.feature("A02")
@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize(("order", "place"), [(order, place) for order in ORDERS for place in PLACES])
def test_while_all_workers_sleep_in_the_application_the_stream_is_read_up_to_the_bound_of_bytes(
    store: StateStore, order: Order, place: str, workers: int
) -> None:
    work = SleepingWork(place)
    at_once = 1 if (place, order) == ("handler", Order.TOTAL) else workers  # of the order
    with PooledStream(store, work, order, workers) as stream:
        groups = stream.groups(2 * UP_TO_BOUND, GROUP_BYTES)
        reader = thread_of(lambda: stream.consumer.on_events(groups))
        wait_until(lambda: (len(work.asleep), stream.taken) == (at_once, UP_TO_BOUND))
        reader.join(0.05)
        assert reader.is_alive(), "it waits at the bound"
        assert (len(work.asleep), stream.taken, stream.pool.settled_units) == (at_once, UP_TO_BOUND, 0)
        work.woken.set()
        reader.join(DEADLINE_S)
        stream.consumer.flush()
        while stream.taken < 2 * UP_TO_BOUND:
            stream.consumer.on_events(groups)
        stream.wait_until_settled()
    assert work.threads <= {f"{THREAD_NAME}-{number}" for number in range(1, workers + 1)}


@pytest.mark.feature("A02")
@pytest.mark.parametrize("order", ORDERS)
def test_the_calls_of_the_reading_thread_grow_neither_with_the_workers_nor_with_their_work(
    store: StateStore, order: Order
) -> None:
    def calls(workers: int, steps: int, groups: int = 20) -> int:
        work = SleepingWork("transform", steps)
        with PooledStream(store, work, order, workers) as stream:
            stream.put_all_workers_to_sleep()
            with counted_calls() as found:
                stream.consumer.on_events(stream.groups(groups))
            work.woken.set()
            stream.wait_until_settled()
        assert all(name.startswith(THREAD_NAME) for name in work.threads)
        return found.total

    calls(1, 0)  # fills caches
    counted = {(workers, steps): calls(workers, steps) for workers in (1, 2, 8) for steps in (0, 1000)}
    assert len(set(counted.values())) == 1, counted
    assert calls(1, 0, groups=40) > counted[1, 0], "the calls are counted"
