"""The outbox of a state folder, opened once for each process, because LMDB must not be used across a fork."""

import os
import threading
from pathlib import Path

from tidemark.io.host.logs import LaterLog
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.outbox_use import check_is_used
from tidemark.io.state.locking.write_guard import reporting_stuck_writers
from tidemark.io.state.state_folder import StateFolder

_OPEN: dict[tuple[int, Path], OutboxReader] = {}
_OPENING = threading.Lock()


def open_once(folder: StateFolder) -> OutboxReader:
    """Return this process's reader of a state folder; it is opened at the first call, and again for a new state.

    Raises `StateReplaced` for a new state if this process has also opened the former one in another way.
    """
    key = (os.getpid(), folder.root)
    with _OPENING:
        opened = _OPEN.get(key)
        if opened is not None and opened.environment.is_replaced():
            del _OPEN[key]  # first: opening the new state may fail
            opened.close()
            opened = None
        if opened is None:
            opened = _OPEN[key] = _opened(folder)
        return opened


def _opened(folder: StateFolder) -> OutboxReader:
    opened = OutboxReader.open(folder, guarded=reporting_stuck_writers(LaterLog("state")))
    try:
        check_is_used(opened)
    except BaseException:
        opened.close()
        raise
    return opened
