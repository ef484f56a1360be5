"""What a consumer never had is not confirmed: poison, and an outage of its target, which looks the same at first."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from tests.support.forged.deliveries import OWNER, SELECTED_TABLES
from tests.support.forged.groups import DATABASE, TIMELINE, batch, group
from tests.support.plugins.bad_plugins import AcceptingConsumer
from tests.support.processes.waiting import wait_until
from tests.support.servers.histories import empty_history
from tests.unit.plugins.test_group_transforms import transforms_of
from tests.unit.pool.test_six_ways import new_consumer
from tidemark import Batch, Delivery, Order, PoisonChange
from tidemark.embedding.library_log import LibraryLog
from tidemark.engine.progress import Progress
from tidemark.engine.retry import RetryPolicy
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.log_output import get_log
from tidemark.io.parked.parked_table import ParkedTable
from tidemark.io.process.config import PoisonConfig
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.model.lsn import FullXid, Lsn, Oid
from tidemark.model.position import Epoch, Partition
from tidemark.model.relation import KnownDatabase
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.delivery.consumer_target import ConsumerTarget
from tidemark.runtime.plugins.plugin_consumer import PluginConsumer
from tidemark.runtime.plugins.poison_handling import (
    REPLACED,
    ParkedRetries,
    PoisonHandling,
    PoisonRun,
    PoisonUnrecorded,
)
from tidemark.runtime.pool.handler_pool import HandlerPool
from tidemark.runtime.pool.pending_batch import PendingBatch, Processing, Unit
from tidemark.runtime.pool.pool_parts import PoolPart
from tidemark.wire.state.state_keys import BEGINNING
from tidemark.wire.state.values import Beginning

IN_A_ROW = 3
OTHER = Oid(DATABASE + 1)
BOUND = 100  # bytes: less than two groups


class FailingConsumer(AcceptingConsumer):
    """Refuses some rows, or all of them while it is down, and has the others."""

    def __init__(self, *refuses: int) -> None:
        super().__init__()
        self.refuses = {*refuses}
        self.is_down = False
        self.confirms = True
        self.ids: list[int] = []

    def on_delivery(self, delivery: Delivery) -> bool:
        self.take(item for item in delivery.items if isinstance(item, Batch))
        return self.confirms

    def take(self, batches: Iterable[Batch]) -> None:
        ids = [change.after["id"] for each in batches for change in each if change.after]
        if ids and (self.is_down or self.refuses & {*ids}):
            raise ConnectionRefusedError("a value")
        self.ids += ids  # type: ignore[arg-type]


class PoisonCaptures:
    """Starts the delivery to a target again and again, on one state."""

    def __init__(self, store: StateStore, target: FailingConsumer) -> None:
        self.store = store
        self.target = target
        self.policy = "park"
        self.bytes_max = BOUND
        self.silence_s = 3600.0

    def poison(self, epoch: Epoch) -> PoisonHandling:
        config = PoisonConfig(self.policy, in_a_row_max=IN_A_ROW, silence_s=self.silence_s)  # type: ignore[arg-type]
        return PoisonHandling.of(config, CaptureContext(self.store, Metrics("main"), LibraryLog()), epoch)

    def begun(self) -> ConsumerTarget:
        epoch = self.store.begin_epoch(OWNER)
        consumer = PluginConsumer(self.target, transforms_of(), None, SystemClock(), poison=self.poison(epoch))
        start = self.store.view().start
        made = ConsumerTarget(
            consumer, self.store, epoch, history=empty_history(self.store), records=[SELECTED_TABLES],
            unconfirmed_bytes_max=self.bytes_max, confirm_s=0.05, progress=Progress(delivered=start),
            stopping=threading.Event(), retry=RetryPolicy(0), metrics=Metrics("main"), log=get_log("test"),
        )  # fmt: skip
        made.begin()
        return made

    def deliver(self, *ids: int) -> bool:
        """Deliver one change a transaction from the first that is not confirmed; return whether that ended well."""
        made = self.begun()
        try:
            for number in ids:
                if number > self.confirmed:
                    made.deliver(group(100 * number, [batch(100 * number, [number])]))
        except PoisonRun:
            return False
        finally:
            made.close()
        return True

    @property
    def confirmed(self) -> int:
        start = self.store.view().start
        assert start is not None
        return start.position.commit_lsn // 100

    @property
    def left_out(self) -> list[int]:
        with self.store.reading() as transaction:
            table = ParkedTable(transaction)
            found = [each.position for each in table.changes()] + [each.position for each in table.skips().kept]
        return [at.commit_lsn // 100 for at in found]


@pytest.fixture
def captures(store: StateStore) -> PoisonCaptures:
    return PoisonCaptures(store, FailingConsumer())


@pytest.mark.feature("P16")
@pytest.mark.parametrize("policy", ["skip", "park"])
def test_an_outage_of_the_target_loses_no_change_however_often_delivery_starts(
    captures: PoisonCaptures, policy: str
) -> None:
    captures.policy = policy
    captures.target.is_down = True
    for _ in range(3):
        assert not captures.deliver(*range(1, 20))
    assert (captures.confirmed, captures.left_out) == (0, [])
    captures.target.is_down = False
    assert captures.deliver(*range(1, 20))
    assert captures.target.ids == [*range(1, 20)]
    assert (captures.confirmed, captures.left_out) == (19, [])


@pytest.mark.feature("P16")
def test_a_change_that_fails_is_confirmed_after_the_next_success_and_not_before(captures: PoisonCaptures) -> None:
    captures.target.refuses = {2, 3}
    assert captures.deliver(1, 2, 3)
    assert (captures.confirmed, captures.left_out) == (1, []), "also a stop confirms none of them"
    captures.target.refuses = {3}
    assert captures.deliver(1, 2, 3, 4)
    assert captures.target.ids == [1, 2, 4], "a change that failed before a stop has another chance"
    assert (captures.confirmed, captures.left_out) == (4, [3])


@pytest.mark.feature("P16")
@pytest.mark.parametrize(
    ("policy", "silence_s", "is_parked"), [("park", 1e-9, True), ("skip", 1e-9, False), ("park", 0, False)]
)
def test_a_change_that_fails_at_the_end_of_a_silent_stream_is_parked_and_never_skipped(
    captures: PoisonCaptures, policy: str, silence_s: float, *, is_parked: bool
) -> None:
    captures.policy, captures.silence_s, captures.target.refuses = policy, silence_s, {2}
    made = captures.begun()
    for number in (1, 2):
        made.deliver(group(100 * number, [batch(100 * number, [number])]))
    assert captures.left_out == [], "the stream is not silent yet: nothing has polled"
    assert made.idle() is not is_parked
    made.close()
    assert (captures.confirmed, captures.left_out) == ((2, [2]) if is_parked else (1, []))


@pytest.mark.feature("P16")
def test_an_outage_in_a_silent_stream_parks_no_more_changes_than_may_fail_in_a_row(captures: PoisonCaptures) -> None:
    captures.silence_s = 1e-9
    made = captures.begun()

    def deliver(*numbers: int) -> None:
        for number in numbers:
            made.deliver(group(100 * number, [batch(100 * number, [number])]))
            made.idle()

    captures.target.is_down = True
    deliver(1, 2)
    captures.target.is_down = False
    deliver(3)  # a success: the count begins again
    captures.target.is_down = True
    rest = [*range(4, 4 + IN_A_ROW)]
    deliver(*rest)
    with pytest.raises(PoisonRun, match=f"{IN_A_ROW + 1} changes in a row"):
        deliver(rest[-1] + 1)
    made.close()
    assert captures.left_out == [1, 2, *rest], "they are parked, and none is lost"


@pytest.mark.feature("P16")
def test_a_group_beyond_the_bound_that_ends_with_poison_waits_for_the_next_one(captures: PoisonCaptures) -> None:
    captures.target.refuses = {2}
    made = captures.begun()
    big = group(200, [batch(200, [1, 2])])
    object.__setattr__(big, "byte_count", 10 * BOUND)
    made.deliver(big)
    made.deliver(group(300, [batch(300, [3])]))
    made.close()
    assert (captures.target.ids, captures.confirmed, captures.left_out) == ([1, 3], 3, [2])


@pytest.mark.feature("P16")
def test_a_change_that_was_parked_and_is_delivered_later_is_parked_no_more(
    captures: PoisonCaptures,
) -> None:
    captures.target.refuses = {2, 3}
    captures.target.confirms, captures.bytes_max = False, 10 * BOUND
    captures.deliver(1, 2, 3, 4)
    assert (captures.confirmed, captures.left_out) == (0, [2, 3])
    captures.target.refuses = {3}
    captures.target.confirms = True
    assert captures.deliver(1, 2, 3, 4, 5)
    assert captures.target.ids[-4:] == [1, 2, 4, 5]
    assert captures.left_out == [3], "it failed again"
    captures.deliver(6, 7)
    assert captures.left_out == [3], "it was confirmed: the stream does not have it again"


@pytest.mark.feature("P16")
def test_a_parked_change_follows_the_rename_of_its_database(captures: PoisonCaptures) -> None:
    with captures.store.transaction(None) as transaction:
        transaction.put(BEGINNING, Beginning(TIMELINE, Lsn(1), FullXid(3), {DATABASE: "shop"}))
    captures.target.refuses = {1}
    assert captures.deliver(1, 2)
    renamed = replace(group(300, [batch(300, [3])]), databases={DATABASE: KnownDatabase("store", "UTF8")})
    made = captures.begun()
    made.deliver(renamed)
    made.close()
    with captures.store.reading() as transaction:
        (change,) = ParkedTable(transaction).changes()
    assert (change.database, captures.confirmed) == ("store", 3)


@pytest.mark.feature("P16")
def test_a_parked_change_of_a_database_whose_name_another_one_has_is_not_retried(
    store: StateStore, captures: PoisonCaptures
) -> None:
    """Neither the parked one, nor one that is parked after the other database was captured."""
    with captures.store.transaction(None) as transaction:
        transaction.put(BEGINNING, Beginning(TIMELINE, Lsn(1), FullXid(3), {DATABASE: "shop"}))
    captures.target.refuses = {1, 4}
    assert captures.deliver(1, 2)
    made = captures.begun()
    made.deliver(replace(group(300, [batch(300, [3])]), databases={OTHER: KnownDatabase("shop", "UTF8")}))
    made.deliver(group(400, [batch(400, [4])]))
    made.deliver(group(500, [replace(batch(500, [5]), database=OTHER)]))
    made.close()
    assert captures.left_out == [1, 4]
    captures.target.refuses = set()
    epoch = store.begin_epoch(OWNER)
    with store.transaction(epoch) as transaction:
        ParkedTable(transaction).request(None)
    context = CaptureContext(store, Metrics("main"), LibraryLog())
    made_again = PluginConsumer(
        captures.target, transforms_of(), None, SystemClock(), retries=ParkedRetries(context, epoch)
    )
    made_again.on_assigned(Partition(store.identity.system_identifier), epoch, store.view().start)
    assert (made_again.retry_parked(), captures.target.ids) == (False, [2, 3, 5])
    with store.reading() as transaction:
        found = [(each.reason, each.is_requested, each.failures) for each in ParkedTable(transaction).changes()]
    assert found == [(REPLACED, False, 2)] * 2


@pytest.mark.feature("P16")
def test_a_success_that_began_before_the_failure_proves_nothing(store: StateStore, captures: PoisonCaptures) -> None:
    epoch = store.begin_epoch(OWNER)
    poison = captures.poison(epoch)
    (change,) = [Batch.of("shop", each.relation, epoch, each.rows) for each in [batch(100, [1])]]
    before = poison.found
    poison.leave_out(change, KeyError())
    poison.handled(before)
    assert (poison.may_confirm, captures.left_out) == (False, [])
    poison.handled(poison.found)
    assert (poison.may_confirm, captures.left_out) == (True, [1])


@pytest.mark.feature("P16")
def test_a_state_that_cannot_record_poison_ends_delivery_and_no_part_is_taken_for_poison(
    store: StateStore, captures: PoisonCaptures
) -> None:
    epoch = store.begin_epoch(OWNER)
    poison = captures.poison(epoch)
    change = Batch.of("shop", batch(100, [1]).relation, epoch, batch(100, [1]).rows)
    poison.leave_out(change, PoisonChange())
    store.begin_epoch(OWNER)  # another process delivers now
    with pytest.raises(PoisonUnrecorded, match=r"public.account at 1:0/64:1: epoch"):
        poison.handled(poison.found)
    assert (poison.may_confirm, poison.needs_success) == (False, False)
    with pytest.raises(PoisonRun):
        poison.leave_out(change, PoisonChange())


@pytest.mark.feature("P16")
def test_an_error_of_the_state_after_a_retry_is_none_of_the_consumer(
    store: StateStore, captures: PoisonCaptures
) -> None:
    captures.target.refuses = {1}
    assert captures.deliver(1, 2)
    captures.target.refuses = set()
    captures.target.confirms = False
    epoch = store.begin_epoch(OWNER)
    with store.transaction(epoch) as transaction:
        ParkedTable(transaction).request(None)
    retries = ParkedRetries(CaptureContext(store, Metrics("main"), LibraryLog()), epoch)
    made = PluginConsumer(
        captures.target, transforms_of(), None, SystemClock(), poison=captures.poison(epoch), retries=retries
    )
    made.on_assigned(Partition(store.identity.system_identifier), epoch, store.view().start)
    assert (made.retry_parked(), made.is_retrying) == (True, True)
    captures.target.confirms = True
    store.begin_epoch(OWNER)  # another process delivers now
    with pytest.raises(PoisonUnrecorded, match="parked changes that were handled: epoch"):
        made.on_events(iter([group(300, [batch(300, [3])])]))
    assert captures.target.ids == [2, 1, 3]
    assert retries.is_waiting, "it is still to be deleted"
    assert captures.left_out == [1]


@pytest.mark.feature("P16")
def test_requested_changes_are_handed_over_one_a_call(store: StateStore, captures: PoisonCaptures) -> None:
    captures.target.refuses = {1, 2, 3}
    assert captures.deliver(*range(1, 5))
    captures.target.refuses = set()
    epoch = store.begin_epoch(OWNER)
    with store.transaction(epoch) as transaction:
        ParkedTable(transaction).request(None)
    context = CaptureContext(store, Metrics("main"), LibraryLog())
    made = PluginConsumer(captures.target, transforms_of(), None, SystemClock(), retries=ParkedRetries(context, epoch))
    made.on_assigned(Partition(store.identity.system_identifier), epoch, store.view().start)
    assert (made.retry_parked(), captures.target.ids, captures.left_out) == (True, [4, 1], [2, 3])
    assert [made.retry_parked() for _ in range(3)] == [True, True, False]
    assert (captures.target.ids, captures.left_out) == ([4, 1, 2, 3], [])


@pytest.mark.feature("P16")
def test_an_engine_confirms_nothing_of_an_outage_and_what_failed_after_the_next_success(
    store: StateStore, captures: PoisonCaptures
) -> None:
    def run(*ids: int, until: Callable[[HandlerPool[PoolPart]], bool]) -> int:
        epoch = store.begin_epoch(OWNER)

        def handle(unit: Unit) -> None:
            assert isinstance(unit, Batch)
            captures.target.take([unit])

        pool: HandlerPool[PoolPart] = HandlerPool(
            lambda part: part.handle(handle) if isinstance(part, PendingBatch) else None,
            isolate=lambda part, error: isinstance(part, PendingBatch) and part.isolate(error),
            workers=1, retries=0, backoff=(0.01, 0.02), log=LibraryLog(),
        )  # fmt: skip
        processing = Processing(False, None, SystemClock())
        consumer = new_consumer(pool, Order.TOTAL, processing, store, captures.poison(epoch))
        consumer.on_assigned(Partition(store.identity.system_identifier), epoch, store.view().start)
        pool.start()
        consumer.on_events(iter([group(100 * number, [batch(100 * number, [number])]) for number in ids]))
        wait_until(lambda: until(pool))
        pool.drain(10)
        consumer.flush()
        consumer.on_events(iter(()))
        assert consumer.is_flushed
        return 0 if consumer.confirmed is None else consumer.confirmed.position.commit_lsn // 100

    captures.target.is_down = True
    for _ in range(3):
        assert run(*range(1, 20), until=lambda pool: isinstance(pool.error, PoisonRun)) == 0
    captures.target.is_down = False
    captures.target.refuses = {2}
    assert run(1, 2, until=lambda pool: pool.settled_units == 2) in {0, 1}
    assert captures.left_out == []
    assert run(1, 2, 3, until=lambda pool: pool.settled_units == 3) == 3
    assert captures.left_out == [2]
