"""The contract of a custom consumer: confirmation during revocation, a retry after an error, exclusive ownership."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.integration.delivery.test_delivery import DEADLINE_S, Scripted, application, new_target
from tests.support.forged import groups
from tests.support.forged.deliveries import START, group
from tests.support.processes.captures import config_for
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark.engine.progress import Progress
from tidemark.engine.retry import Backoff, RetryPolicy
from tidemark.io.host.clock import boot_id as this_boot
from tidemark.io.host.clock import host_name, own_start_ticks
from tidemark.io.host.log_output import get_log
from tidemark.io.process.config import Config
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.locking.locks import AlreadyRunning, RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup, SchemaEvent
from tidemark.model.errors import ConsumerFailed, NodeUnreachable
from tidemark.model.position import Epoch, Partition, Pointer
from tidemark.runtime.capture.capture import Capture
from tidemark.runtime.capture.capture_settings import CaptureSettings
from tidemark.runtime.capture.wal_source import WalSettings, from_node
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.delivery.consumers import NullConsumer
from tidemark.runtime.seed.initialise import initialise
from tidemark.wire.state.process_log import Owner

QUICK = Backoff(0.001, 0.001)


class Buffering(Scripted):
    """Keeps the received groups, and confirms them when it is revoked."""

    def __init__(self, answers: list[bool] | None = None) -> None:
        super().__init__([False] * 100 if answers is None else answers)
        self.flushed: list[int] = []

    def on_revoked(self, partition: Partition) -> bool:
        super().on_revoked(partition)
        self.flushed += self.seen
        return True


@pytest.mark.feature("I34")
def test_changes_confirmed_in_on_revoked_are_durable_and_are_not_repeated(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    first = Buffering()
    thread, group_queue = application(store, epoch, first, progress, stopping)
    thread.start()
    for lsn in (100, 200):
        group_queue.put(group(lsn))
    wait_until(lambda: first.seen == [100, 200])
    assert store.view().start == START
    stopping.set()
    group_queue.close()
    assert thread.join(DEADLINE_S)
    assert (thread.error, first.flushed, first.calls[-2:]) == (None, [100, 200], ["revoked", "stop"])
    view = store.view()
    assert view.start == group(200).last == progress.confirmed
    assert view.confirmed == view.delivered


@pytest.mark.feature("I34")
def test_a_confirmation_from_on_revoked_after_the_stop_moves_nothing(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    inside, leave = threading.Event(), threading.Event()

    class HangingFlush(Buffering):
        def on_revoked(self, partition: Partition) -> bool:
            inside.set()
            assert leave.wait(DEADLINE_S)
            return super().on_revoked(partition)

    consumer = HangingFlush()
    target = new_target(consumer, store, epoch, progress, stopping)
    target.begin()
    target.deliver(group(100))
    raised: list[BaseException] = []

    def close() -> None:
        try:
            target.close()
        except ConsumerFailed as error:
            raised.append(error)

    closing = threading.Thread(target=close)
    closing.start()
    assert inside.wait(DEADLINE_S)
    target.abandon()
    leave.set()
    closing.join(DEADLINE_S)
    assert consumer.flushed == [100]
    assert "after the stop" in str(raised[0])
    assert store.view().start == START == progress.delivered
    assert consumer.calls[-1] == "stop"


class Partial:
    """Confirms all but the newest groups that it has drawn."""

    def __init__(self, behind: int) -> None:
        self.drawn: list[ChangeGroup] = []
        self._answered: ChangeGroup | None = None
        self._behind = behind

    def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
        pass

    def on_schema(self, event: SchemaEvent) -> None:
        pass

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool | ChangeGroup:
        self.drawn += groups
        if len(self.drawn) <= self._behind or self.drawn[-1 - self._behind] is self._answered:
            return False
        self._answered = self.drawn[-1 - self._behind]
        return self._answered

    def on_revoked(self, partition: Partition) -> bool | ChangeGroup | None:
        del partition
        return self.drawn[-2]

    def alive(self) -> bool:
        return True

    def stop(self) -> None:
        pass


@pytest.mark.feature("I34")
def test_a_group_confirms_itself_and_all_before_it_and_no_later_one(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Partial(behind=2)
    target = new_target(consumer, store, epoch, progress, stopping)
    target.begin()
    for lsn in (100, 200, 300, 400):
        target.deliver(group(lsn))
    wait_until(lambda: store.view().start == group(200).last)
    target.close()
    assert store.view().start == group(300).last == progress.confirmed


@pytest.mark.feature("I34")
def test_a_group_that_was_confirmed_before_cannot_be_confirmed_again(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    class Repeating(Partial):
        def on_events(self, groups: Iterator[ChangeGroup]) -> bool | ChangeGroup:
            self.drawn += groups
            return self.drawn[0]

    consumer = Repeating(behind=0)
    target = new_target(consumer, store, epoch, progress, stopping)
    target.begin()
    target.deliver(group(100))
    with pytest.raises(ConsumerFailed, match="confirmed already, or that it has not read"):
        target.deliver(group(200))
    consumer.drawn.append(consumer.drawn[-1])  # revoked, it confirms the newest group
    target.close()
    assert store.view().start == group(200).last


class Failing(Scripted):
    """Receives the groups, then raises, in the first calls."""

    def __init__(self, *errors: Exception, accepts: int = 1 << 30) -> None:
        super().__init__([], accepts)
        self.errors = list(errors)

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
        confirmed = super().on_events(groups)
        if self.errors:
            raise self.errors.pop(0)
        return confirmed


@pytest.mark.feature("I34")
def test_after_an_error_the_same_groups_are_offered_again_without_their_schemas(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Failing(OSError("a value"), NodeUnreachable("away"), OSError("a value"))
    target = new_target(consumer, store, epoch, progress, stopping, retry=RetryPolicy(3, QUICK))
    target.begin()
    changed = groups.relation("renamed")
    target.deliver(groups.group(100, [groups.schema_event(100, changed), groups.batch(100, [1], of=changed)]))
    target.deliver(group(200))
    target.close()
    assert consumer.calls[:3] == ["assigned 1.1", "schema renamed", "group 100"]
    assert consumer.seen == [100, 100, 100, 100, 200]
    assert consumer.calls.count("schema renamed") == 1
    assert store.view().start == group(200).last


@pytest.mark.feature("I34")
def test_changes_accepted_before_the_failing_call_are_not_offered_again(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Failing()
    consumer.answers = [False]
    target = new_target(consumer, store, epoch, progress, stopping, retry=RetryPolicy(1, QUICK))
    target.begin()
    target.deliver(group(100))
    consumer.errors = [OSError()]
    target.deliver(group(200))
    target.close()
    assert consumer.seen == [100, 200, 200]
    assert store.view().start == group(200).last


@pytest.mark.feature("I34")
def test_a_consumer_that_keeps_failing_ends_delivery_after_its_retries_and_confirms_nothing(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Failing(*[OSError("a row's secret value")] * 10)
    metrics = Metrics("main")
    target = new_target(consumer, store, epoch, progress, stopping, retry=RetryPolicy(3, QUICK), metrics=metrics)
    target.begin()
    with pytest.raises(ConsumerFailed, match="raised OSError in on_events") as raised:
        target.deliver(group(100))
    target.close()
    assert consumer.seen == [100] * 4
    assert "secret" not in str(raised.value)
    assert store.view().start == START
    assert metrics.registry.get_sample_value("tidemark_errors_total", {"capture": "main"}) == 3


@pytest.mark.feature("I34")
def test_a_consumer_that_reports_its_failure_is_not_polled_again(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Failing(ConsumerFailed("the target's schema is another one"))
    target = new_target(consumer, store, epoch, progress, stopping, retry=RetryPolicy(3, QUICK))
    target.begin()
    with pytest.raises(ConsumerFailed, match="another one"):
        target.deliver(group(100))
    target.close()
    assert consumer.seen == [100]


@pytest.mark.feature("I39")
def test_a_stop_ends_the_wait_before_another_try(
    store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event
) -> None:
    consumer = Failing(*[OSError()] * 10)
    thread, group_queue = application(
        store, epoch, consumer, progress, stopping, retry=RetryPolicy(9, Backoff(3600, 3600))
    )
    thread.start()
    group_queue.put(group(100))
    wait_until(lambda: consumer.seen == [100])
    stopping.set()
    group_queue.close()
    assert thread.join(DEADLINE_S)
    assert (thread.error, consumer.seen) == (None, [100])
    assert store.view().start == START


@contextmanager
def captured(config: Config, folder: StateFolder, consumer: NullConsumer) -> Iterator[tuple[StateStore, Capture]]:
    """Embed a capture as an application does: without a daemon or a lock."""
    initialise(config, folder)
    with StateStore.open(folder) as store:
        epoch = store.begin_epoch(Owner("sidecar", host_name(), this_boot(), os.getpid(), own_start_ticks()))
        context = CaptureContext(store, Metrics("main"), get_log("test"))
        make_wal_source = partial(from_node, context, WalSettings.of(config, store.identity.segment_bytes))
        yield store, Capture(context, CaptureSettings.of(config), epoch, make_wal_source, consumer=consumer)


def wait_for(capture: Capture, condition: Callable[[], bool]) -> None:
    def holds() -> bool:
        assert capture.poll() is None
        return condition()

    wait_until(holds)


@pytest.mark.feature("I20")
@pytest.mark.feature("I38")
def test_an_embedded_capture_holds_the_sidecars_role_and_sends_heartbeats(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    config, folder = config_for(cluster, database), StateFolder(tmp_path / "state")
    config = replace(config, watchdog=replace(config.watchdog, watchdog_s=3.0))
    with captured(config, folder, NullConsumer()) as (store, capture):
        beat = store.environment.heartbeat
        capture.start()
        assert RoleLock.status(folder, "sidecar").is_locked
        with pytest.raises(AlreadyRunning):
            RoleLock.acquire(folder, "sidecar")
        before = beat.count(Slot.SIDECAR)
        wait_until(lambda: beat.count(Slot.SIDECAR) > before + 3)  # nothing is polled
        age_s = beat.age_s(Slot.SIDECAR)
        assert age_s is not None
        assert age_s < config.watchdog.watchdog_s
        capture.stop()
        assert not RoleLock.status(folder, "sidecar").is_locked
        assert beat.read(Slot.SIDECAR) is None


def test_a_capture_beside_another_process_of_its_role_is_refused(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    config, folder = config_for(cluster, database), StateFolder(tmp_path / "state")
    with captured(config, folder, NullConsumer()) as (_, capture), RoleLock.acquire(folder, "sidecar") as lock:
        folder.lock("sidecar").write_text(folder.lock("sidecar").read_text().replace(str(lock.owner.pid), "1"))
        with pytest.raises(AlreadyRunning):
            capture.start()


@pytest.mark.feature("I34")
def test_a_capture_ends_in_time_beside_a_consumer_that_hangs_in_on_revoked(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """It also has retried what the consumer first failed, as configured."""
    leave = threading.Event()

    class HangingRevocation(Failing):
        def on_revoked(self, partition: Partition) -> bool:
            del partition
            assert leave.wait(DEADLINE_S)
            return True

    config, folder = config_for(cluster, database), StateFolder(tmp_path / "state")
    config = replace(config, deliver=replace(config.deliver, stop_s=0.1))
    consumer = HangingRevocation(OSError())
    consumer.answers = [False] * 1000
    cluster.sql("CREATE TABLE account (id int)", database)
    with captured(config, folder, consumer) as (store, capture):
        capture.start()
        cluster.sql("INSERT INTO account VALUES (1)", database)
        wait_for(capture, lambda: len(consumer.seen) > 1)
        before = store.view().start
        with pytest.raises(ConsumerFailed, match="did not end its batch"):
            capture.stop()
        leave.set()
        wait_until(lambda: consumer.calls[-1] == "stop")
        wait_until(lambda: not any(thread.name == "application" for thread in threading.enumerate()))
        assert store.view().start == before
