"""The first copy to a custom consumer: unconfirmed rows are sent again, as a new generation."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.integration.first_copy.test_first_copy import fill, newest_generation
from tests.support.processes.captures import change_log, config_for, replayed
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark.io.host.log_output import get_log
from tidemark.io.process.config import Config
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup, CopyBoundary, GroupItem
from tidemark.runtime.capture.capture import Capture
from tidemark.runtime.capture.capture_settings import CaptureSettings
from tidemark.runtime.capture.wal_source import WalSettings, from_node
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.delivery.consumers import NullConsumer
from tidemark.runtime.seed.initialise import initialise
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress

ROWS = 100


class KeepingConsumer(NullConsumer):
    """Keeps all items; confirms after `confirm_after` groups."""

    def __init__(self, confirm_after: int) -> None:
        super().__init__()
        self.items: list[GroupItem] = []
        self._confirm_after = confirm_after

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
        for group in groups:
            self.items += group.items
            self.groups += 1
        return self.groups >= self._confirm_after

    @property
    def ends(self) -> int:
        """The number of completed copies."""
        return sum(isinstance(item, CopyBoundary) and not item.begin for item in self.items)


@contextmanager
def captured(
    config: Config, folder: StateFolder, consumer: KeepingConsumer
) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Run a capture to `consumer`; yield a wait for a condition."""
    with ExitStack() as stack:
        store = stack.enter_context(StateStore.open(folder))
        lock = stack.enter_context(RoleLock.acquire(folder, "sidecar"))
        epoch = store.begin_epoch(lock.owner)
        context = CaptureContext(store, Metrics("main"), get_log("test"))
        make_wal_source = partial(from_node, context, WalSettings.of(config, store.identity.segment_bytes))
        capture = Capture(context, CaptureSettings.of(config), epoch, make_wal_source, consumer=consumer)
        capture.start()
        stack.callback(capture.stop)

        def wait(condition: Callable[[], bool]) -> None:
            def holds() -> bool:
                error = capture.poll()
                assert error is None, error
                return condition()

            wait_until(holds)

        yield wait


def copy_of(folder: StateFolder) -> CopyProgress:
    with closing(StateStore.open(folder)) as store:
        (copy,) = store.view().copies.values()
    return copy


@pytest.mark.feature("P22")
@pytest.mark.feature("I34")
def test_a_copy_that_was_accepted_and_never_confirmed_is_repeated_as_the_next_generation(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database, rows=ROWS)
    config, folder = config_for(cluster, database, copy=True), StateFolder(tmp_path / "state")
    initialise(config, folder)
    silent = KeepingConsumer(1000)
    with captured(config, folder, silent) as wait:
        wait(lambda: silent.ends == 1)
        cluster.sql("UPDATE account SET note = 'seen' WHERE id = 1", database)
        # Rows of the copy are not emitted again, confirmed or not.
        wait(lambda: len(change_log(silent.items, "account")) > ROWS)
    assert [row["_op"] for row in change_log(silent.items, "account")] == ["c"] * ROWS + ["u"]
    assert copy_of(folder).phase is CopyPhase.COPYING
    assert copy_of(folder).row_count == 0

    confirming = KeepingConsumer(0)
    with captured(config, folder, confirming) as wait:
        wait(lambda: copy_of_done(folder))
        cluster.sql("UPDATE account SET note = 'seen' WHERE id = 2", database)
        wait(lambda: len(change_log(confirming.items, "account")) > ROWS)
    begin = next(item for item in confirming.items if isinstance(item, CopyBoundary))
    assert begin.generation > 1
    rows = replayed(change_log(newest_generation(silent.items + confirming.items), "account"))
    assert len(rows) == ROWS
    assert {number for number, row in rows.items() if row["note"] == "seen"} == {1, 2}

    again = KeepingConsumer(0)
    with captured(config, folder, again) as wait:
        cluster.sql("UPDATE account SET note = 'seen' WHERE id = 3", database)
        wait(lambda: len(change_log(again.items, "account")) >= 1)
    assert again.ends == 0
    assert {row["_op"] for row in change_log(again.items, "account")} == {"u"}


def copy_of_done(folder: StateFolder) -> bool:
    copy = copy_of(folder)
    return copy.phase is CopyPhase.DONE and copy.row_count == ROWS
