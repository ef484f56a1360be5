"""The context of a command that writes the state: the state, the configuration and the terminal's log."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path

from tidemark.io.host.failpoints import arm_from_environment
from tidemark.io.host.logs import Log
from tidemark.io.process.config import Config
from tidemark.io.state.environment import WritePoint
from tidemark.io.state.locking.write_guard import WriteGuard
from tidemark.io.state.state import StateStore
from tidemark_ctl import settings
from tidemark_ctl.terminal_log import TerminalLog


@contextmanager
def opened_state(
    state: Path, config: Path | None, *points: type[Enum], kills: bool = False
) -> Iterator[tuple[StateStore, Config, Log]]:
    """Open the state, with the failpoints of `points` beside those of its writes.

    A process that is stuck in a write transaction is reported, because other writers wait for it; with `kills` it is
    killed, as the daemons do.
    """
    arm_from_environment(*points, WritePoint)
    chosen, folder = settings.load_with_folder(state, config)
    log = TerminalLog()
    guard = partial(WriteGuard, watchdog_s=chosen.watchdog.watchdog_s, log=log, kills=kills)
    with StateStore.open(folder, guarded=guard) as store:
        yield store, chosen, log
