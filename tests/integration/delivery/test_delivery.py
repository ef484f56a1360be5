"""Delivery: a full outbox stops capture without loss; custom consumers confirm explicitly."""

import stat
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.forged import groups
from tests.support.forged.deliveries import BOUND, OWNER, SELECTED_TABLES, START, group, outbox_target
from tests.support.processes.waiting import wait_until
from tests.support.servers.histories import empty_history
from tidemark.engine.ports import GroupConsumer
from tidemark.engine.progress import Progress
from tidemark.engine.retry import RetryPolicy
from tidemark.io.host.log_output import get_log
from tidemark.io.host.logs import Log
from tidemark.io.process.metrics import Metrics
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeGroup, SchemaEvent
from tidemark.model.errors import ConsumerFailed, Fenced
from tidemark.model.position import Epoch, Partition, Pointer, Sequence
from tidemark.runtime.capture.group_queue import GroupQueue
from tidemark.runtime.capture.signal import Signal
from tidemark.runtime.context import Stopped
from tidemark.runtime.delivery.consumer_target import ConsumerTarget
from tidemark.runtime.delivery.consumers import JsonlConsumer, NullConsumer
from tidemark.runtime.delivery.delivery import ApplicationThread
from tidemark.runtime.delivery.liveness import Liveness
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress

DEADLINE_S = 120.0
OFFERS = 10  # with waits of 0.02 s, 0.04 s and so on between them, about a second


def is_beyond(reader: OutboxReader, seen: Sequence) -> bool:
    return reader.head() > seen


def test_a_full_outbox_stops_delivery_until_a_reader_confirms(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    target = outbox_target(store, epoch, progress, stopping)
    delivered: list[int] = []

    def deliver_all() -> None:
        for lsn in range(100, 120):
            target.deliver(group(lsn, 1 << 20))
            delivered.append(lsn)

    with OutboxReader.open(store.folder) as reader:
        reader.register("spark")
        worker = threading.Thread(target=deliver_all)
        worker.start()
        seen = Sequence(0)
        read: list[int] = []
        while len(read) < 20:
            wait_until(partial(is_beyond, reader, seen))
            end = reader.plan(seen, BOUND // 2)
            read += [value.header.first.commit_lsn for value in reader.read(seen, end) if value.header.relation]
            assert reader.ledger().byte_count <= BOUND
            reader.confirm("spark", end, seen)  # as Spark: it may request applied values again
            seen = end
        worker.join(DEADLINE_S)
    assert read == delivered == list(range(100, 120))
    assert progress.confirmed is not None


def test_a_stop_interrupts_the_wait_for_space(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    target = outbox_target(store, epoch, progress, stopping)
    with OutboxReader.open(store.folder) as reader:
        reader.register("spark")
        for lsn in (100, 101, 102):
            target.deliver(group(lsn, 1 << 20))
        stopping.set()
        with pytest.raises(Stopped):
            target.deliver(group(103, 1 << 20))
    assert store.view().ledger.head == 6


@pytest.mark.feature("I21")
def test_an_owner_of_an_older_epoch_delivers_nothing_more(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    target = outbox_target(store, epoch, progress, stopping)
    target.deliver(group(100))
    store.begin_epoch(OWNER)
    with pytest.raises(Fenced):
        target.deliver(group(200))


def test_idle_time_processes_confirmations_of_readers(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    target = outbox_target(store, epoch, progress, stopping)
    with OutboxReader.open(store.folder) as reader:
        reader.register("spark")
        target.deliver(group(100))
        reader.confirm("spark", Sequence(2), Sequence(2))
        target.idle()
    view = store.view()
    assert view.confirmed is not None
    assert (view.confirmed.sequence, view.ledger.trimmed, view.ledger.byte_count) == (2, 2, 0)


class Scripted(NullConsumer):
    """Answers and receives as scripted."""

    def __init__(self, answers: list[bool], accepts: int = 1 << 30) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.seen: list[int] = []
        self.alive_now = True
        self.answers = answers
        self._accepts = accepts

    def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
        del partition, start
        self.calls.append(f"assigned {epoch}")

    def on_schema(self, event: SchemaEvent) -> None:
        assert event.after is not None
        self.calls.append(f"schema {event.after.name}")

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
        accepted = 0
        while accepted < self._accepts and (group := next(groups, None)) is not None:
            accepted += 1
            self.seen.append(group.last.position.commit_lsn)
            self.calls.append(f"group {group.last.position.commit_lsn}")
        return self.answers.pop(0) if self.answers else True

    def on_revoked(self, partition: Partition) -> bool | None:
        del partition
        self.calls.append("revoked")
        return None

    def alive(self) -> bool:
        return self.alive_now

    def stop(self) -> None:
        self.calls.append("stop")


def new_target(
    consumer: GroupConsumer,
    store: StateStore,
    epoch: Epoch,
    progress: Progress,
    stopping: threading.Event,
    *,
    liveness: Liveness | None = None,
    retry: RetryPolicy | None = None,
    metrics: Metrics | None = None,
    log: Log | None = None,
    confirm_s: float = 0.05,
) -> ConsumerTarget:
    return ConsumerTarget(
        consumer,
        store,
        epoch,
        history=empty_history(store),
        records=[SELECTED_TABLES],
        unconfirmed_bytes_max=1000,
        confirm_s=confirm_s,
        progress=progress,
        stopping=stopping,
        liveness=liveness,
        retry=retry or RetryPolicy(0),
        metrics=metrics or Metrics("main"),
        log=log or get_log("test"),
    )


def consumer_target(
    consumer: NullConsumer,
    store: StateStore,
    epoch: Epoch,
    progress: Progress,
    stopping: threading.Event,
    *,
    liveness: Liveness | None = None,
) -> ConsumerTarget:
    """Return a target that the application thread has begun."""
    target = new_target(consumer, store, epoch, progress, stopping, liveness=liveness)
    target.begin()
    return target


def test_rows_of_a_copy_that_broke_off_are_confirmed_with_those_of_the_next_generation(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    target = consumer_target(Scripted([False, False, True]), store, epoch, progress, stopping)
    target.deliver(group(100))  # a first copy comes after a base
    table = (groups.DATABASE, groups.relation().oid)
    for generation in (1, 2):
        target.deliver_copied(group(50), (*table, CopyProgress(CopyPhase.COPYING, generation)))
    target.close()
    assert store.view().copies == {table: CopyProgress(CopyPhase.COPYING, 2)}


@pytest.mark.feature("I34")
def test_true_confirms_the_accepted_groups_and_false_continues_without_confirmation(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    target = consumer_target(Scripted([False, False, True]), store, epoch, progress, stopping)
    for lsn in (100, 200):
        target.deliver(group(lsn))
        assert store.view().start == START
    target.deliver(group(300))
    target.close()
    view = store.view()
    assert view.start == group(300).last
    assert view.confirmed == view.delivered


@pytest.mark.feature("I34")
def test_delivery_continues_while_confirmations_wait_for_the_disk(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Scripted([])
    target = consumer_target(consumer, store, epoch, progress, stopping)
    with store.transaction(epoch):  # no other transaction can end
        for lsn in (100, 200, 300):
            target.deliver(group(lsn))
        assert consumer.seen == [100, 200, 300]
        assert store.view().start == START
        assert progress.delivered == START
    target.close()
    assert store.view().start == group(300).last == progress.confirmed


@pytest.mark.feature("I34")
def test_without_a_time_for_confirmations_each_is_durable_before_the_next_group_is_offered(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Scripted([True, False, True])
    target = new_target(consumer, store, epoch, progress, stopping, confirm_s=0.0)
    target.begin()

    def deliver_all() -> None:
        for lsn in (100, 200, 300, 400):
            target.deliver(group(lsn))

    worker = threading.Thread(target=deliver_all)
    with store.transaction(epoch):  # no other transaction can end
        worker.start()
        wait_until(lambda: consumer.seen == [100])
        worker.join(0.05)
        assert consumer.seen == [100]
    wait_until(lambda: consumer.seen == [100, 200, 300, 400])
    worker.join(DEADLINE_S)
    target.close()
    assert store.view().start == group(400).last


@pytest.mark.feature("I34")
def test_confirmations_that_are_not_durable_are_bounded(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Scripted([])
    target = consumer_target(consumer, store, epoch, progress, stopping)

    def deliver_all() -> None:
        for lsn in range(100, 130):  # 100 bytes each; the limit is 1000
            target.deliver(group(lsn))

    worker = threading.Thread(target=deliver_all)
    with store.transaction(epoch):
        worker.start()
        wait_until(lambda: len(consumer.seen) > 10)
        worker.join(0.05)
        assert len(consumer.seen) == 11
    worker.join(DEADLINE_S)
    assert consumer.seen == list(range(100, 130))
    target.close()
    assert store.view().start == group(129).last


@pytest.mark.feature("I21")
def test_a_consumer_of_an_older_epoch_receives_nothing_after_the_fence(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Scripted([])
    target = consumer_target(consumer, store, epoch, progress, stopping)
    store.begin_epoch(OWNER)
    target.deliver(group(100))

    def is_refused() -> bool:
        try:
            target.idle()
        except Fenced:
            return True
        return False

    wait_until(is_refused)
    with pytest.raises(Fenced):
        target.deliver(group(200))
    with pytest.raises(Fenced):
        target.close()
    assert store.view().start == START
    assert consumer.seen == [100]
    assert consumer.calls[-2:] == ["revoked", "stop"]


@pytest.mark.feature("I34")
def test_a_consumer_that_accepts_nothing_is_detected(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.runtime.delivery.consumer_target.SPACE_WAIT_MAX_S", 0.001)
    target = consumer_target(Scripted([False] * 100, accepts=0), store, epoch, progress, stopping)
    with pytest.raises(ConsumerFailed, match="neither read nor confirmed any"):
        target.deliver(group(100))


@pytest.mark.feature("I34")
def test_a_consumer_with_too_many_unconfirmed_changes_gets_no_more(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Scripted([False] * 12 + [True])
    target = consumer_target(consumer, store, epoch, progress, stopping)
    for lsn in range(100, 111):  # 100 bytes each
        target.deliver(group(lsn))
    assert store.view().start == group(110).last
    assert consumer.seen == list(range(100, 111))
    target.close()


@pytest.mark.feature("I35")
def test_a_relation_version_is_reported_once_before_its_first_rows_and_again_after_a_restart(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    first, again = Scripted([]), Scripted([])
    target = consumer_target(first, store, epoch, progress, stopping)
    changed = groups.relation("renamed")
    target.deliver(group(100))
    target.deliver(group(200))
    target.deliver(groups.group(300, [groups.schema_event(300, changed), groups.batch(300, [1], of=changed)]))
    target.close()
    assert first.calls == [
        "assigned 1.1",
        "schema account",
        "group 100",
        "group 200",
        "schema renamed",
        "group 300",
        "revoked",
        "stop",
    ]
    target = consumer_target(again, store, epoch, progress, stopping)
    target.deliver(groups.group(400, [groups.batch(400, [1], of=changed)]))
    assert again.calls == ["assigned 1.1", "schema renamed", "group 400"]
    target.close()


def test_a_consumer_that_is_not_alive_gets_nothing(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Scripted([])
    consumer.alive_now = False
    with pytest.raises(ConsumerFailed, match="not alive"):
        consumer_target(consumer, store, epoch, progress, stopping).deliver(group(100))
    assert consumer.seen == []


def test_json_lines_are_appended_to_their_file(
    store: StateStore, epoch: Epoch, progress: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as if it were closed
    path = tmp_path / "changes.jsonl"
    for lsn in (100, 200):
        target = consumer_target(
            JsonlConsumer(str(path), {groups.DATABASE: "app"}), store, epoch, progress, threading.Event()
        )
        target.deliver(group(lsn))
        target.close()
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert '"database":"app"' in lines[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # with any umask that leaves the owner's rights


def application(
    store: StateStore,
    epoch: Epoch,
    consumer: Scripted,
    progress: Progress,
    stopping: threading.Event,
    *,
    liveness: Liveness | None = None,
    retry: RetryPolicy | None = None,
) -> tuple[ApplicationThread, GroupQueue]:
    group_queue = GroupQueue(1 << 20, Signal())
    target = new_target(consumer, store, epoch, progress, stopping, liveness=liveness, retry=retry)
    thread = ApplicationThread(
        group_queue,
        target,
        empty_history(store),
        prelude=lambda: None,
        received_lsn=lambda: progress.received_lsn,
        metrics=Metrics("main"),
        stopping=stopping,
    )
    return thread, group_queue


@pytest.mark.feature("I39")
def test_stop_never_overlaps_on_events(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    inside, leave = threading.Event(), threading.Event()

    class LateBatches(Scripted):
        def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
            inside.set()
            assert leave.wait(DEADLINE_S)
            done = super().on_events(groups)
            self.calls.append("end of batch")
            return done

    consumer = LateBatches([])
    thread, group_queue = application(store, epoch, consumer, progress, stopping)
    thread.start()
    group_queue.put(group(100))
    assert inside.wait(DEADLINE_S)
    stopping.set()
    group_queue.close()
    assert not thread.join(0.05)
    assert "stop" not in consumer.calls
    leave.set()
    assert thread.join(DEADLINE_S)
    assert consumer.calls[-3:] == ["end of batch", "revoked", "stop"]
    assert thread.error is None


class Gated(Scripted):
    """Blocks in `on_events` until it is released."""

    def __init__(self) -> None:
        super().__init__([])
        self.inside, self.leave = threading.Event(), threading.Event()
        self.stopped = False

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
        self.inside.set()
        assert self.leave.wait(DEADLINE_S)
        return super().on_events(groups)

    def alive(self) -> bool:
        assert not self.stopped, "nothing is called after stop"
        return True

    def stop(self) -> None:
        self.stopped = True
        super().stop()


@pytest.mark.feature("I36")
def test_a_consumer_that_hangs_in_its_callback_is_detected_during_the_call(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Gated()
    liveness = Liveness(consumer, alive_s=5.0, hang_s=0.2)
    thread, group_queue = application(store, epoch, consumer, progress, stopping, liveness=liveness)
    liveness.start()
    thread.start()
    assert liveness.error() is None
    group_queue.put(group(100))
    assert consumer.inside.wait(DEADLINE_S)
    wait_until(lambda: liveness.error() is not None)
    assert "has been in on_events for over 0.2 s" in str(liveness.error())
    assert thread.error is None
    stopping.set()
    consumer.leave.set()
    assert thread.join(DEADLINE_S)
    assert consumer.calls[-2:] == ["revoked", "stop"]


@pytest.mark.feature("I36")
def test_offers_that_are_refused_are_no_hang_and_the_watch_ends_before_the_consumer_is_stopped(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.runtime.delivery.liveness.POLL_S", 0.001)

    class RefusingConsumer(Gated):
        def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
            del groups
            self.calls.append("offered")
            if len(self.calls) > OFFERS:
                stopping.set()
            return False

    consumer = RefusingConsumer()
    liveness = Liveness(consumer, alive_s=5.0, hang_s=0.5)
    target = consumer_target(consumer, store, epoch, progress, stopping, liveness=liveness)
    liveness.start()
    with pytest.raises(Stopped):
        target.deliver(group(100))
    assert liveness.error() is None
    target.close()
    assert not any(thread.name == "liveness" for thread in threading.enumerate())


def test_the_consumers_exception_ends_delivery_and_nothing_is_confirmed(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    class Broken(Scripted):
        def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
            next(groups)
            raise ZeroDivisionError

    consumer = Broken([])
    thread, group_queue = application(store, epoch, consumer, progress, stopping)
    thread.start()
    group_queue.put(group(100))
    wait_until(lambda: thread.error is not None)
    assert isinstance(thread.error, ConsumerFailed)
    assert isinstance(thread.error.__cause__, ZeroDivisionError)
    assert thread.join(DEADLINE_S)
    assert store.view().start == START
    assert consumer.calls[-1] == "stop"


@pytest.mark.feature("I36")
def test_a_consumer_that_hangs_before_its_first_change_is_detected_and_named(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    leave = threading.Event()

    class LateAssignment(Scripted):
        def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
            assert threading.current_thread().name == "application"
            assert leave.wait(DEADLINE_S)
            super().on_assigned(partition, epoch, start)

    consumer = LateAssignment([])
    liveness = Liveness(consumer, alive_s=5.0, hang_s=0.1)
    thread, _ = application(store, epoch, consumer, progress, stopping, liveness=liveness)
    thread.start()
    wait_until(lambda: liveness.error() is not None)
    assert str(liveness.error()) == "the consumer LateAssignment has been in on_assigned for over 0.1 s"
    stopping.set()
    leave.set()
    assert thread.join(DEADLINE_S)
    assert consumer.calls == ["assigned 1.1", "revoked", "stop"]


@pytest.mark.parametrize("callback", ["on_assigned", "on_schema", "on_revoked", "stop"])
def test_every_exception_of_a_consumer_is_its_failure_and_reported_without_its_text(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event, callback: str
) -> None:
    def broken(*_given: object) -> None:
        raise ValueError("a row's secret value")

    consumer = Scripted([])
    setattr(consumer, callback, broken)
    thread, group_queue = application(store, epoch, consumer, progress, stopping)
    thread.start()
    group_queue.put(group(100))
    wait_until(lambda: store.view().start == group(100).last or thread.error is not None)
    stopping.set()
    assert thread.join(DEADLINE_S)
    assert isinstance(thread.error, ConsumerFailed)
    where = "on_events" if callback == "on_schema" else callback
    assert consumer.calls[-1:] == ["stop"] or callback == "stop"
    assert str(thread.error) == f"the consumer Scripted raised ValueError in {where}"


def test_the_queue_is_bounded_and_wakes_its_putter_when_closed() -> None:
    group_queue = GroupQueue(1000, Signal())
    put: list[bool] = []
    assert group_queue.put(group(100))
    worker = threading.Thread(target=lambda: put.append(group_queue.put(group(200))))
    worker.start()
    worker.join(0.05)
    assert worker.is_alive()
    assert group_queue.receive(1.0) is not None
    worker.join(DEADLINE_S)
    assert put == [True]
    worker = threading.Thread(target=lambda: put.append(group_queue.put(group(300))))
    worker.start()
    group_queue.close()
    worker.join(DEADLINE_S)
    assert put == [True, False]
    assert group_queue.receive(1.0) is None
