"""The state, the change groups and the outbox target of the tests of delivery."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.forged import groups
from tests.support.servers.histories import empty_history
from tidemark.engine.progress import Progress
from tidemark.engine.selection import Selection
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import SystemIdentifier
from tidemark.model.position import Epoch, Pointer, Sequence
from tidemark.runtime.delivery.delivery import OutboxTarget
from tidemark.runtime.first_copy.selected_tables import SelectedTables
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import DELIVERED
from tidemark.wire.state.values import Identity, Watermark

BOUND = 4 << 20
IDENTITY = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, BOUND)
OWNER = Owner("sidecar", "host", "boot", 1, 1)
START = Pointer(groups.position(1), groups.end(20).first_lsn)
SELECTED_TABLES = SelectedTables(Selection(), copying=True, log=get_log("test"))


@contextmanager
def delivered_store(root: Path) -> Iterator[StateStore]:
    """Create a state below `root` that has delivered up to START."""
    with StateStore.create(StateFolder(root / "state"), IDENTITY) as made:
        with made.transaction(None) as transaction:
            transaction.put(DELIVERED, Watermark(START, Sequence(0)))
        yield made


def group(lsn: int, note_bytes: int = 10) -> ChangeGroup:
    return groups.group(lsn, [groups.batch(lsn, [lsn], "n" * note_bytes)])


def outbox_target(store: StateStore, epoch: Epoch, progress: Progress, stopping: threading.Event) -> OutboxTarget:
    return OutboxTarget(
        store,
        epoch,
        history=empty_history(store),
        records=[SELECTED_TABLES],
        progress=progress,
        metrics=Metrics("main"),
        log=get_log("test"),
        stopping=stopping,
    )
