"""The state folder of an engine: created by its first start, and held as the sidecar's."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tidemark.embedding.start_deadline import StartDeadline
from tidemark.io.host.logs import Log
from tidemark.io.process.config import Config
from tidemark.io.state.environment import StateMissing
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.locking.locks import AlreadyHeld, RoleLock
from tidemark.io.state.locking.write_guard import WriteGuard
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.mode import Role
from tidemark.runtime.plugins.plugin_uses import record_plugins
from tidemark.runtime.plugins.plugins import built_in
from tidemark.runtime.seed.initialise import initialise
from tidemark.wire.state.plugin_log import EMBEDDED

ONE_EACH = "stop that engine first, or give each engine its own state"


def open_state(stack: ExitStack, root: Path, config: Config, deadline: StartDeadline, log: Log) -> StateStore:
    """Take the role of the state, create the state if it is new, and open it; `stack` closes it."""
    folder = StateFolder(root.resolve())
    for line in folder.close_to_others():
        log.warning(line)
    folder.make()
    # The lock comes first: a new epoch would fence the process that has it.
    try:
        lock = stack.enter_context(RoleLock.acquire(folder, Role.SIDECAR.value))
    except AlreadyHeld:
        raise AlreadyHeld(f"this process already has an engine on {folder.root}", hint=ONE_EACH) from None
    guarded = partial(WriteGuard, watchdog_s=config.watchdog.watchdog_s, log=log, kills=False)
    if not _is_complete(folder):
        initialise(deadline.bounded(config), folder, deadline, guarded=guarded)
    store = stack.enter_context(StateStore.open(folder, guarded=guarded))
    record_plugins(store, lock.owner, built_in(EMBEDDED).uses, log)
    stack.callback(store.environment.heartbeat.clear, Slot.SIDECAR)
    return store


def _is_complete(folder: StateFolder) -> bool:
    """Return whether the state exists and its first start was completed."""
    try:
        with StateStore.open(folder) as store:
            return store.view().beginning is not None
    except StateMissing:
        return False
