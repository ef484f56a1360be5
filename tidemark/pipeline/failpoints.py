"""Named places where a test may stop the pipeline dead; nothing happens there otherwise.

A process armed by the environment (`TIDEMARK_FAILPOINT=replica-merged:3`) kills itself with SIGKILL when it passes that
place for the third time; a test inside the process arms an action of its own.
"""

import os
import signal
import threading
from collections.abc import Callable
from enum import Enum

VARIABLE = "TIDEMARK_FAILPOINT"


class Failpoint(Enum):
    """Places between two durable writes, in the order in which a batch passes them."""

    BATCH_RECEIVED = "batch-received"
    LOG_RESHAPED = "log-reshaped"  # the log was rewritten for a new type, the rows that need it are not in yet
    LOG_APPENDED = "log-appended"
    REPLICA_RESHAPED = "replica-reshaped"
    REPLICA_CHANGED = "replica-changed"  # after each merge, append or truncation
    REWRITE_STAGED = "rewrite-staged"  # rewritten rows lie aside, the replica is the old one
    REWRITE_ENDED = "rewrite-ended"
    TABLES_DONE = "tables-done"
    POSITIONS_WRITTEN = "positions-written"
    CONFIRMED = "confirmed"


Action = Callable[[Failpoint], None]
_lock = threading.Lock()
_hits: dict[Failpoint, int] = dict.fromkeys(Failpoint, 0)
_actions: list[Action] = []  # at most one


def arm(action: Action | None) -> None:
    """Let `action` run at every failpoint of this process; None disarms."""
    with _lock:
        _actions[:] = [action] if action is not None else []


def arm_from_environment() -> None:
    """Arm what `TIDEMARK_FAILPOINT` names (`name` or `name:n`), if it is set."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    name, _, nth = wanted.partition(":")
    target, count = Failpoint(name), int(nth or 1)

    def kill(point: Failpoint) -> None:
        if point is not target:
            return
        with _lock:
            _hits[point] += 1
            due = _hits[point] == count
        if due:
            os.kill(os.getpid(), signal.SIGKILL)

    arm(kill)


def passed(point: Failpoint) -> None:
    """Say that the work before `point` is durable."""
    for action in tuple(_actions):
        action(point)
