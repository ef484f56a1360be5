"""A custom consumer receives each loss and rewind once, in order, before the next change."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.delivery.test_delivery import new_target
from tests.integration.embedding.test_engine import QUICK, Collecting
from tests.support.forged.deliveries import OWNER, group
from tests.support.forged.groups import position
from tests.support.plugins.bad_plugins import AcceptingConsumer
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tests.unit.plugins.test_group_transforms import transforms_of
from tidemark import Delivery, Engine, Epoch, Loss, Position, Rewind
from tidemark.engine.progress import Progress
from tidemark.io.host.clock import SystemClock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.runtime.delivery.consumers import NullConsumer
from tidemark.runtime.delivery.liveness import ConsumerRaised
from tidemark.runtime.plugins.plugin_consumer import PluginConsumer
from tidemark.wire.state.event_logs import EVENTS_KEPT, LossLog, Notified, RewindLog, unnotified_events
from tidemark.wire.state.state_keys import NOTIFIED

LOSS = Loss(10, position(20), Lsn(30), Lsn(40), TimelineId(1), Lsn(40), 2)
REWIND = Rewind(10, TimelineId(1), Lsn(30), position(35), TimelineId(2), Lsn(30), 1)


class NoticeRecorder(AcceptingConsumer):
    """Records its calls. `on_loss` fails `failures` times."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.calls: list[object] = []
        self._failures = failures

    def on_assigned(self, epoch: Epoch, start: Position) -> None:
        del epoch, start
        self.calls.append("assigned")

    def on_loss(self, loss: Loss) -> None:
        self.calls.append(loss)
        if self._failures:
            self._failures -= 1
            raise OSError("the target is away")

    def on_rewind(self, rewind: Rewind) -> None:
        self.calls.append(rewind)

    def on_delivery(self, delivery: Delivery) -> bool:
        self.calls.append("change")
        return super().on_delivery(delivery)


def deliver(store: StateStore, plugin: NoticeRecorder, lsn: int) -> None:
    """Start delivery, deliver a change, and stop."""
    start = store.view().start
    consumer = PluginConsumer(plugin, transforms_of(), None, SystemClock())
    target = new_target(consumer, store, store.begin_epoch(OWNER), Progress(delivered=start), threading.Event())
    try:
        target.begin()
        target.deliver(group(lsn))
    finally:
        target.close()


def test_each_loss_and_rewind_is_reported_once_before_the_next_change_and_again_only_after_an_error(
    store: StateStore,
) -> None:
    later = replace(LOSS, at_us=30)
    with store.transaction(None) as transaction:
        transaction.record_loss(LOSS)
        transaction.record_rewind(REWIND)
        transaction.record_loss(later)
    failing = NoticeRecorder(failures=1)
    with pytest.raises(ConsumerRaised, match="raised OSError in on_loss"):
        deliver(store, failing, 100)
    assert failing.calls == ["assigned", REWIND, LOSS]
    again, quiet = NoticeRecorder(), NoticeRecorder()
    deliver(store, again, 100)
    assert again.calls == ["assigned", LOSS, later, "change"], "the rewind was recorded as reported"
    deliver(store, quiet, 200)
    assert quiet.calls == ["assigned", "change"]
    with store.transaction(None) as transaction:
        transaction.record_rewind(replace(REWIND, at_us=40))
    deliver(store, quiet, 300)
    assert quiet.calls[2:] == ["assigned", replace(REWIND, at_us=40), "change"]


def test_without_losses_nothing_is_stored_and_a_consumer_without_the_methods_is_not_called(store: StateStore) -> None:
    deliver(store, NoticeRecorder(), 100)
    with store.reading() as transaction:
        assert transaction.get(NOTIFIED) is None
    with store.transaction(None) as transaction:
        transaction.record_loss(LOSS)
    target = new_target(
        NullConsumer(), store, store.begin_epoch(OWNER), Progress(delivered=store.view().start), threading.Event()
    )
    target.begin()
    target.close()
    with store.reading() as transaction:
        assert transaction.get(NOTIFIED) is None


@pytest.mark.parametrize(
    ("made", "notified", "expected"),
    [
        (3, Notified(), 3),
        (3, Notified(losses=2), 1),
        (EVENTS_KEPT + 7, Notified(), EVENTS_KEPT),
        (EVENTS_KEPT + 7, Notified(losses=5), EVENTS_KEPT),
        (1, Notified(losses=4), 1),  # the log was damaged, and began again
    ],
)
def test_two_counts_determine_the_events_that_were_not_reported(made: int, notified: Notified, expected: int) -> None:
    log = LossLog()
    for number in range(made):
        log = log.with_one_more(replace(LOSS, at_us=number))
    assert [event.at_us for event in unnotified_events(log, RewindLog(), notified)] == [*range(made - expected, made)]


def test_an_engine_reports_losses_and_rewinds_before_the_next_change(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    collected = Collecting()
    notified: list[tuple[object, int]] = []

    def record(event: Loss | Rewind) -> None:
        notified.append((event, len(collected.ids)))

    def engine(on_loss: Callable[[Loss], None] | None = None) -> Engine:
        return Engine(
            cluster.dsn(database),
            state=tmp_path / "state",
            handler=collected,
            on_loss=on_loss,
            on_rewind=record,
            settings=QUICK,
        )

    with engine(record):
        pass
    with StateStore.open(StateFolder(tmp_path / "state")) as store, store.transaction(None) as transaction:
        transaction.record_loss(LOSS)
        transaction.record_rewind(REWIND)
    cluster.sql("INSERT INTO item VALUES (1)", database)
    for _ in range(2):
        with engine(record):
            wait_until(lambda: collected.ids == [1])
    assert notified == [(REWIND, 0), (LOSS, 0)]
