"""The outbox's target and the application thread: waits for space, metrics, and the end of the thread."""

import threading
from collections import deque
from collections.abc import Callable, Iterable

import pytest

from tests.integration.delivery.test_delivery import DEADLINE_S
from tests.support.forged.deliveries import IDENTITY, SELECTED_TABLES, START, group
from tests.support.processes.clocks import HandClock
from tests.support.servers.histories import empty_history
from tidemark.engine.progress import Progress
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import (
    CAPTURE_LABEL,
    DELIVERY_LAG_BYTES,
    DELIVERY_SECONDS,
    GROUPS,
    LAG_SECONDS,
    OUTBOX_FULL,
    OUTBOX_USED,
    READER_LAG,
    ROWS,
    TRANSACTIONS,
    Metrics,
)
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.environment import Environment
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeGroup
from tidemark.model.errors import Fenced
from tidemark.model.lsn import Lsn
from tidemark.model.position import Epoch, Sequence
from tidemark.runtime.capture.group_queue import GroupQueue
from tidemark.runtime.capture.signal import Signal
from tidemark.runtime.context import Stopped
from tidemark.runtime.delivery.delivery import (
    IDLE_POLL_S,
    IDLE_POLL_S_MAX,
    SPACE_WAIT_FIRST_S,
    SPACE_WAIT_MAX_S,
    STALE_READERS_S,
    ApplicationThread,
    CopyKeep,
    OutboxTarget,
)
from tidemark.wire.keys import named
from tidemark.wire.state.state_keys import CONFIRMED

RECEIVED_LSN = 70_000
COMMITTED_US = 100  # of `group(100)`
LAG_US = 2_000_000
DELIVERY_S = 3.0


class CountedWaits(threading.Event):
    """Is set in the last of `count` waits, all of which return at once."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.waits_s: list[float | None] = []
        self._count = count

    def wait(self, timeout: float | None = None) -> bool:
        self.waits_s.append(timeout)
        return len(self.waits_s) >= self._count


class RecordingTarget:
    """Receives groups, or fails."""

    def __init__(
        self,
        *,
        counts: bool = True,
        on_group: Callable[[], None] = lambda: None,
        on_idle: Callable[[], bool] = lambda: False,
    ) -> None:
        self.counts = counts
        self.idled = threading.Event()
        self.drained_s: list[float] = []
        self.closing: Exception | None = None
        self._on_group = on_group
        self._on_idle = on_idle

    def begin(self) -> None:
        """Do nothing."""

    def deliver(self, group: ChangeGroup) -> None:
        del group
        self._on_group()

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        raise NotImplementedError

    def drain(self, within_s: float) -> None:
        self.drained_s.append(within_s)

    def idle(self) -> bool:
        self.idled.set()
        return self._on_idle()

    def close(self) -> None:
        if self.closing is not None:
            raise self.closing

    def abandon(self) -> None:
        raise NotImplementedError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock(COMMITTED_US + LAG_US)
    monkeypatch.setattr("tidemark.runtime.delivery.delivery.SystemClock", lambda: clock)
    return clock


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(IDENTITY.capture)


def shown(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(name, {CAPTURE_LABEL: IDENTITY.capture})


def outbox_target(
    store: StateStore, epoch: Epoch, metrics: Metrics, stopping: threading.Event, progress: Progress | None = None
) -> OutboxTarget:
    return OutboxTarget(
        store,
        epoch,
        history=empty_history(store),
        records=[SELECTED_TABLES],
        progress=progress or Progress(delivered=START),
        metrics=metrics,
        log=get_log("test"),
        stopping=stopping,
    )


def test_waits_for_space_grow_to_a_bound_and_are_counted_as_one(
    store: StateStore, epoch: Epoch, metrics: Metrics
) -> None:
    stopping = CountedWaits(9)
    target = outbox_target(store, epoch, metrics, stopping)
    with OutboxReader.open(store.folder) as reader:
        reader.register("spark")
        for lsn in (100, 101, 102):
            target.deliver(group(lsn, 1 << 20))
        assert shown(metrics, OUTBOX_FULL) == 0
        with pytest.raises(Stopped):
            target.deliver(group(103, 1 << 20))
    doubled = [SPACE_WAIT_FIRST_S * 2**n for n in range(6)]
    assert stopping.waits_s == [*doubled, SPACE_WAIT_MAX_S, SPACE_WAIT_MAX_S, SPACE_WAIT_MAX_S]
    assert shown(metrics, OUTBOX_FULL) == 1


def test_a_delivery_without_space_lets_the_reader_that_holds_too_much_lapse_and_does_not_wait(
    store: StateStore, epoch: Epoch, metrics: Metrics
) -> None:
    target = outbox_target(store, epoch, metrics, CountedWaits(0))
    with OutboxReader.open(store.folder) as reader:
        reader.register("behind", is_required=False)
        for lsn in (100, 101, 102):
            target.deliver(group(lsn, 1 << 20))
        reader.register("latest", is_required=False)
        reader.confirm("latest", reader.head(), reader.head())
        assert not target.idle()
        assert not store.marks().readers["behind"].is_lapsed, "there is space"
        target.deliver(group(103, 1 << 20))
    lapsed = {name for name, state in store.marks().readers.items() if state.is_lapsed}
    assert (lapsed, shown(metrics, OUTBOX_FULL)) == ({"behind"}, 0)


def test_the_outbox_metrics_include_the_group_that_was_delivered_last(
    store: StateStore, epoch: Epoch, metrics: Metrics
) -> None:
    target = outbox_target(store, epoch, metrics, threading.Event())
    with OutboxReader.open(store.folder) as reader:
        reader.register("spark")
        for count, lsn in enumerate((100, 200, 300), 1):
            target.deliver(group(lsn))
            assert shown(metrics, READER_LAG) == 2 * count
            assert shown(metrics, OUTBOX_USED) == store.view().ledger.byte_count > 0
        reader.confirm("spark", Sequence(4), Sequence(2))
        target.idle()
        assert shown(metrics, READER_LAG) == 2
        assert shown(metrics, OUTBOX_USED) == store.view().ledger.byte_count


def test_values_that_a_late_reader_has_not_read_are_counted_and_idle_time_writes_nothing(
    store: StateStore, epoch: Epoch, metrics: Metrics
) -> None:
    target = outbox_target(store, epoch, metrics, threading.Event())
    with OutboxReader.open(store.folder) as reader:
        reader.register("query", is_required=False)
        for lsn in (100, 200, 300):
            target.deliver(group(lsn))
            assert shown(metrics, READER_LAG) == 0, "no reader is required"
        reader.confirm("query", Sequence(2), Sequence(2))
        assert target.idle()
        reader.register("late")
        assert not target.idle()
        with store.transaction(epoch) as transaction:
            transaction.drop(CONFIRMED)
        assert not target.idle(), "with nothing recorded, what is trimmed was confirmed"
        target.deliver(group(400))
        assert shown(metrics, READER_LAG) == 6
        reader.confirm("late", Sequence(4), Sequence(4))
        assert target.idle()
        assert shown(metrics, READER_LAG) == 4


def test_a_reader_without_which_more_was_confirmed_does_not_end_delivery_when_it_is_damaged(
    store: StateStore, epoch: Epoch, metrics: Metrics
) -> None:
    progress = Progress(delivered=START)
    target = outbox_target(store, epoch, metrics, threading.Event(), progress)
    with OutboxReader.open(store.folder) as reader:
        reader.register("lake")
        target.deliver(group(100))
        reader.confirm("lake", Sequence(2), Sequence(2))
        assert target.idle()
        with store.transaction(epoch) as transaction:
            transaction.drop_reader("lake")
        reader.register("query", is_required=False)
        target.deliver(group(200))
        confirmed = progress.confirmed
        assert confirmed is not None
        assert confirmed == progress.delivered
        with store.environment.write() as writing:
            writing.put(named(store.scope, "query"), b"rubbish", db=store.environment.database("readers"))
        target.deliver(group(300))
    assert progress.confirmed == confirmed


def test_slots_of_killed_readers_are_freed_every_few_seconds_and_no_more_often(
    store: StateStore, epoch: Epoch, metrics: Metrics, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed_s: list[float] = []
    free = Environment.clear_stale_readers

    def freeing(environment: Environment) -> int:
        freed_s.append(clock.now_s)
        return free(environment)

    monkeypatch.setattr(Environment, "clear_stale_readers", freeing)
    target = outbox_target(store, epoch, metrics, threading.Event())
    for later_s in (0.0, 0.5, STALE_READERS_S - 0.5, STALE_READERS_S, STALE_READERS_S + 0.5, 2 * STALE_READERS_S):
        clock.now_s = 1000.0 + later_s
        target.idle()
    assert freed_s == [1000.0, 1000.0 + STALE_READERS_S, 1000.0 + 2 * STALE_READERS_S]


def application(
    store: StateStore, target: RecordingTarget, metrics: Metrics, stopping: threading.Event
) -> tuple[ApplicationThread, GroupQueue]:
    group_queue = GroupQueue(1 << 20, Signal())
    thread = ApplicationThread(
        group_queue,
        target,
        empty_history(store),
        prelude=lambda: None,
        received_lsn=lambda: Lsn(RECEIVED_LSN),
        metrics=metrics,
        stopping=stopping,
    )
    return thread, group_queue


@pytest.mark.parametrize("lag", [(LAG_US, 2.0), (-LAG_US, 0.0)], ids=["behind", "a clock set back"])
@pytest.mark.parametrize("counts", [True, False])
def test_delivered_changes_are_counted_unless_the_target_counts_itself(
    store: StateStore,
    metrics: Metrics,
    clock: HandClock,
    counts: bool,  # noqa: FBT001
    lag: tuple[int, float],
) -> None:
    stopping = threading.Event()

    def on_group() -> None:
        clock.now_s += DELIVERY_S
        stopping.set()

    lag_us, lag_s = lag
    clock.now_us = COMMITTED_US + lag_us
    thread, group_queue = application(store, RecordingTarget(counts=counts, on_group=on_group), metrics, stopping)
    assert thread.join(0.0), "not started, so it is not running"
    group_queue.put(group(100))
    thread.start()
    assert thread.join(DEADLINE_S)
    assert thread.error is None
    expected = [1.0, 1.0, 1.0, DELIVERY_S, lag_s, RECEIVED_LSN - 100] if counts else [0.0] * 6
    seconds = f"{DELIVERY_SECONDS}_sum", f"{LAG_SECONDS}_sum"
    names = (GROUPS, ROWS, TRANSACTIONS, *seconds, f"{DELIVERY_LAG_BYTES}_sum")
    assert [shown(metrics, name) for name in names] == expected
    assert shown(metrics, f"{LAG_SECONDS}_count") == (1 if counts else 0)


def test_a_target_is_polled_while_the_queue_is_empty_and_then_delivers_the_next_group(
    store: StateStore, metrics: Metrics
) -> None:
    stopping = threading.Event()
    target = RecordingTarget(on_group=stopping.set)
    thread, group_queue = application(store, target, metrics, stopping)
    thread.start()
    assert target.idled.wait(DEADLINE_S)
    group_queue.put(group(100))
    assert stopping.wait(DEADLINE_S)
    assert thread.join(DEADLINE_S)
    assert thread.error is None
    assert shown(metrics, GROUPS) == 1


def test_joining_waits_for_the_delivery_in_hand_up_to_its_bound(store: StateStore, metrics: Metrics) -> None:
    stopping, received, may_end = threading.Event(), threading.Event(), threading.Event()

    def on_group() -> None:
        stopping.set()
        received.set()
        may_end.wait(DEADLINE_S)

    thread, group_queue = application(store, RecordingTarget(on_group=on_group), metrics, stopping)
    group_queue.put(group(100))
    thread.start()
    assert received.wait(DEADLINE_S)
    assert not thread.join(0.01)
    later = threading.Timer(0.1, may_end.set)
    later.start()
    assert thread.join(DEADLINE_S)
    later.join()


@pytest.mark.parametrize("delivering", [None, Fenced("taken over")])
def test_the_first_error_is_kept_when_closing_fails_as_well(
    store: StateStore, metrics: Metrics, delivering: Exception | None
) -> None:
    stopping = threading.Event()

    def on_group() -> None:
        stopping.set()
        if delivering is not None:
            raise delivering

    target = RecordingTarget(on_group=on_group)
    target.closing = ZeroDivisionError()
    thread, group_queue = application(store, target, metrics, stopping)
    group_queue.put(group(100))
    thread.start()
    assert thread.join(DEADLINE_S)
    assert thread.error is (delivering or target.closing)


class ScriptedGroups:
    """Returns set answers at once, and stops the thread after the last one."""

    def __init__(self, answers: Iterable[ChangeGroup | None], stopping: threading.Event) -> None:
        self.waits_s: list[float] = []
        self._answers = deque(answers)
        self._stopping = stopping

    def receive(self, timeout_s: float) -> ChangeGroup | None:
        """Return the next answer."""
        self.waits_s.append(timeout_s)
        if self._answers:
            return self._answers.popleft()
        self._stopping.set()
        return None


@pytest.mark.parametrize(("error", "drained_s"), [(Fenced("epoch 1 has ended"), [0.0]), (OSError("away"), [])])
def test_only_a_fenced_delivery_gives_up_what_the_target_has_not_finished(
    store: StateStore, metrics: Metrics, error: Exception, drained_s: list[float]
) -> None:
    def fail() -> None:
        raise error

    target = RecordingTarget(on_group=fail)
    thread = ApplicationThread(
        ScriptedGroups([group(100)], threading.Event()),
        target,
        empty_history(store),
        prelude=lambda: None,
        received_lsn=lambda: Lsn(RECEIVED_LSN),
        metrics=metrics,
        stopping=threading.Event(),
    )
    thread.start()
    assert thread.join(DEADLINE_S)
    assert thread.error is error
    assert target.drained_s == drained_s


def test_an_idle_target_is_called_less_often_until_it_has_work_or_a_group_comes(
    store: StateStore, metrics: Metrics
) -> None:
    stopping, answers = threading.Event(), iter([False] * 5 + [True] + [False] * 4)
    groups = ScriptedGroups([None] * 8 + [group(100), None], stopping)
    target = RecordingTarget(on_idle=lambda: next(answers))
    thread = ApplicationThread(
        groups,
        target,
        empty_history(store),
        prelude=lambda: None,
        received_lsn=lambda: Lsn(RECEIVED_LSN),
        metrics=metrics,
        stopping=stopping,
    )
    thread.start()
    assert thread.join(DEADLINE_S)
    assert thread.error is None
    slower_s = [IDLE_POLL_S, 2 * IDLE_POLL_S, 4 * IDLE_POLL_S, 8 * IDLE_POLL_S, IDLE_POLL_S_MAX, IDLE_POLL_S_MAX]
    assert groups.waits_s == [*slower_s, IDLE_POLL_S, 2 * IDLE_POLL_S, 4 * IDLE_POLL_S, IDLE_POLL_S, 2 * IDLE_POLL_S]
