"""The pool of an engine without a capture: it gets groups that exist already, and its handler discards."""

import ctypes
import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from tests.support.forged.groups import COLUMNS, TIMELINE, batch, group, position, relation
from tidemark import ALWAYS, Batch, DebeziumJson, Epoch, OnBatch, Order, Partition, SerializedBatch
from tidemark.embedding.library_log import LibraryLog
from tidemark.io.host.clock import SystemClock
from tidemark.io.process.config import PoisonConfig
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import INVALID_OID, Lsn, SystemIdentifier
from tidemark.model.position import Pointer
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.plugins.poison_handling import ParkedRetries, PoisonHandling
from tidemark.runtime.pool.handler_pool import HandlerPool
from tidemark.runtime.pool.pending_batch import PendingBatch, Processing, Unit
from tidemark.runtime.pool.pool_consumer import PoolConsumer
from tidemark.runtime.pool.pool_parts import PoolPart, preparation
from tidemark.transforms.plan import TransformPlans
from tidemark.wire.state.values import Identity

TRANSFORM_S = 0.001  # that a transform takes for a batch
TRANSFORMED_BATCHES = 10_000
DRAIN_S = 600.0
NO_BOUND = 1 << 40  # bytes: all groups are in memory already
PR_SET_TIMERSLACK = 29  # linux/prctl.h
SLACK_NS = 1  # instead of 50 us, which a sleep of 1 ms lasts longer otherwise
SYSTEM = SystemIdentifier(7)
EPOCH = Epoch(TIMELINE, 1)


@contextmanager
def opened_context() -> Iterator[CaptureContext]:
    """Create a state for a trial, before it is measured, and remove it."""
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        identity = Identity("bench", SYSTEM, "00" * 16, 15, 16 << 20, 1 << 24)
        with StateStore.create(StateFolder(Path(folder, "state")), identity) as store:
            yield CaptureContext(store, Metrics("bench"), LibraryLog())


def json_rows(context: CaptureContext, groups: Sequence[ChangeGroup], workers: int, order: Order) -> int:
    """Serialize groups to Debezium's JSON; return the number of records."""
    processing = Processing(False, DebeziumJson(tombstones=False), SystemClock())
    return _handled(context, groups, processing, None, workers=workers, order=order)


def groups_to_transform() -> Sequence[ChangeGroup]:
    """Return groups of one row of one version of a table, which exist before anything is measured."""
    table = relation()
    groups = [group(lsn, [batch(lsn, [1], of=table)]) for lsn in range(100, 100 + TRANSFORMED_BATCHES)]
    gc.collect()
    gc.freeze()  # otherwise the collector looks at all of them again and again while the trials run
    return groups


def transformed_batches(
    context: CaptureContext, groups: Sequence[ChangeGroup], work: Callable[[], None], workers: int
) -> int:
    """Transform batches without order, each by a call of `work`; return their number."""

    def transform(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows:  # otherwise it is bound to the table
            work()
        return rows

    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(SLACK_NS))  # of this thread, and of those that it starts
    plans = TransformPlans((OnBatch(transform),), lambda _relation: COLUMNS)
    return _handled(context, groups, Processing(False, None, SystemClock()), plans, workers=workers, order=Order.NONE)


def sleep() -> None:
    """Take the time of a transform without the interpreter lock."""
    time.sleep(TRANSFORM_S)


def compute() -> None:
    """Take the time of a transform as CPU of this thread, with the interpreter lock."""
    until_s = time.thread_time() + TRANSFORM_S
    while time.thread_time() < until_s:
        pass


def _handled(
    context: CaptureContext,
    groups: Sequence[ChangeGroup],
    processing: Processing,
    plans: TransformPlans | None,
    *,
    workers: int,
    order: Order,
) -> int:
    found: list[int] = []

    def count(unit: Unit) -> None:
        assert isinstance(unit, SerializedBatch | Batch), "the handler takes batches"
        found.append(len(unit))

    def handle(part: PoolPart) -> None:
        assert isinstance(part, PendingBatch), "no events are delivered"
        part.handle(count)

    pool: HandlerPool[PoolPart] = HandlerPool(
        handle,
        prepare=preparation(has_transforms=plans is not None, has_serializer=processing.serializer is not None),
        workers=workers,
        retries=0,
        backoff=(0.1, 1.0),
        log=context.log,
    )
    consumer = PoolConsumer(
        pool,
        order=order,
        lane_count=workers,
        commit=ALWAYS,
        bytes_max=NO_BOUND,
        databases={},
        takes_events=False,
        plans=plans,
        processing=processing,
        poison=PoisonHandling.of(PoisonConfig(), context, EPOCH),
        retries=ParkedRetries(context, EPOCH),
        log=context.log,
    )
    consumer.on_assigned(Partition(SYSTEM, INVALID_OID), EPOCH, Pointer(position(1), Lsn(1)))
    pool.start()
    consumer.on_events(iter(groups))
    left = pool.drain(DRAIN_S)
    if pool.error is not None or left:
        raise SystemExit(f"the pool did not finish: {pool.error or left}")
    return sum(found)
