"""The six ways to process a batch, by handler, serializer and order: what the handler gets, and how many at a time."""

import threading
from typing import NamedTuple

import pytest

from tests.support.forged.groups import batch, group, position
from tests.support.processes.waiting import wait_until
from tests.unit.plugins.test_group_transforms import EPOCH
from tests.unit.plugins.test_plugin_consumer import PARTITION
from tidemark import ALWAYS, Batch, Change, FlatJson, Order, SerializedBatch, SerializedChange
from tidemark.embedding.library_log import LibraryLog
from tidemark.engine.offset_update import OffsetsHook
from tidemark.engine.pool.commit_policy import CommitPolicy
from tidemark.io.host.clock import SystemClock
from tidemark.io.process.config import PoisonConfig
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.model.lsn import Lsn
from tidemark.model.position import Pointer
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.plugins.poison_handling import ParkedRetries, PoisonHandling
from tidemark.runtime.pool.handler_pool import HandlerPool
from tidemark.runtime.pool.pending_batch import PendingBatch, Processing
from tidemark.runtime.pool.pool_consumer import PoolConsumer
from tidemark.runtime.pool.pool_parts import PoolPart
from tidemark.transforms.plan import TransformPlans

DEADLINE_S = 60.0
WORKERS = 2


class Way(NamedTuple):
    """What an application chooses."""

    takes_changes: bool
    has_serializer: bool
    order: Order


class Meeting:
    """A handler that waits until two calls are inside, where that is possible."""

    def __init__(self, *, is_possible: bool) -> None:
        self.units: list[object] = []
        self.greatest = 0
        self._inside = 0
        self._lock = threading.Lock()
        self._together = threading.Barrier(2)
        self._is_possible = is_possible

    def __call__(self, unit: object) -> None:
        with self._lock:
            self.units.append(unit)
            self._inside += 1
            self.greatest = max(self.greatest, self._inside)
        if self._is_possible:
            self._together.wait(DEADLINE_S)
        with self._lock:
            self._inside -= 1


@pytest.mark.feature("A19")
@pytest.mark.feature("A17")
@pytest.mark.feature("A18")
@pytest.mark.parametrize(
    ("way", "kind", "at_once"),
    [
        (Way(False, False, Order.TOTAL), Batch, 1),
        (Way(False, True, Order.TOTAL), SerializedBatch, 1),
        (Way(True, False, Order.TOTAL), Change, 1),
        (Way(True, True, Order.TOTAL), SerializedChange, 1),
        (Way(True, False, Order.NONE), Change, 2),
        (Way(True, True, Order.NONE), SerializedChange, 2),
    ],
)
def test_handler_serializer_and_order_choose_what_is_called_and_how_many_at_a_time(
    store: StateStore, way: Way, kind: type, at_once: int
) -> None:
    takes_changes, has_serializer, order = way
    handler = Meeting(is_possible=at_once > 1)
    processing = Processing(takes_changes, FlatJson() if has_serializer else None, SystemClock())

    def handle(part: PoolPart) -> None:
        if isinstance(part, PendingBatch):
            part.handle(handler)
        else:
            handler(part)

    pool = HandlerPool(handle, workers=WORKERS, retries=0, backoff=(0.01, 0.02), log=LibraryLog())
    consumer = new_consumer(pool, order, processing, store)
    consumer.on_assigned(PARTITION, EPOCH, Pointer(position(1), Lsn(1)))
    pool.start()
    groups = [group(lsn, [batch(lsn, [1, 2])]) for lsn in (100, 200)]
    consumer.on_events(iter(groups))
    wait_until(lambda: pool.settled_units == len(groups) or pool.error is not None)
    assert pool.drain(DEADLINE_S) == ()
    assert consumer.on_events(iter([])) is groups[-1]
    assert [type(unit) for unit in handler.units] == [kind] * (4 if takes_changes else 2)
    assert handler.greatest == at_once
    if order is Order.TOTAL:
        positions = [unit.position for unit in handler.units if isinstance(unit, Batch | Change | SerializedChange)]
        assert positions == sorted(positions)


def new_consumer(
    pool: HandlerPool[PoolPart],
    order: Order,
    processing: Processing,
    store: StateStore,
    poison: PoisonHandling | None = None,
    *,
    commit: CommitPolicy = ALWAYS,
    update_offsets: OffsetsHook | None = None,
    plans: TransformPlans | None = None,
) -> PoolConsumer:
    context = CaptureContext(store, Metrics("main"), LibraryLog())
    return PoolConsumer(
        pool,
        order=order,
        lane_count=WORKERS,
        commit=commit,
        bytes_max=1 << 20,
        databases={},
        takes_events=False,
        plans=plans,
        processing=processing,
        poison=poison or PoisonHandling.of(PoisonConfig(), context, EPOCH),
        retries=ParkedRetries(context, EPOCH),
        log=context.log,
        update_offsets=update_offsets,
    )
