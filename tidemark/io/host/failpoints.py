"""Named places where a test may kill or stop a process; without a test they do nothing.

TIDEMARK_FAILPOINT=stage-moved:3         SIGKILL when that place is passed for the third time
TIDEMARK_FAILPOINT=stage-moved:3:stop    SIGSTOP instead
TIDEMARK_FAILPOINT=stage-moved:3:wait    only this thread waits for a while: the others continue
TIDEMARK_FAILPOINT_LOG=FILE              append the name of each place that is passed, to check that it was reached

A test inside the process registers an action. The names are in enums beside the code that passes them.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum

from tidemark.model.errors import ConfigError

VARIABLE = "TIDEMARK_FAILPOINT"
LOG_VARIABLE = "TIDEMARK_FAILPOINT_LOG"
WAIT_S = 2.0
_SIGNALS = {"": signal.SIGKILL, "kill": signal.SIGKILL, "stop": signal.SIGSTOP, "wait": None}
FailpointAction = Callable[[Enum], None]
_lock = threading.Lock()
_hits: Counter[Enum] = Counter()
_actions: list[FailpointAction] = []


def arm(action: FailpointAction | None) -> None:
    """Run `action` at every failpoint of this process; None disarms."""
    with _lock:
        _actions[:] = [action] if action is not None else []


def arm_from_environment(*known: type[Enum]) -> None:
    """Arm the failpoint that the environment names, one of `known`; their names differ."""
    actions: list[FailpointAction] = []
    if path := os.environ.get(LOG_VARIABLE):
        actions.append(_log_to(path))
    if wanted := os.environ.get(VARIABLE):
        actions.append(_end_at(wanted, known))
    with _lock:
        _actions[:] = actions


def passed(point: Enum) -> None:
    """Mark that the work before `point` is done."""
    for action in tuple(_actions):
        action(point)


def _end_at(wanted: str, known: tuple[type[Enum], ...]) -> FailpointAction:
    name, _, rest = wanted.partition(":")
    nth, _, kind = rest.partition(":")
    try:
        points = {point.value: point for points in known for point in points}
        target, count, number = points[name], int(nth or 1), _SIGNALS[kind]
    except (ValueError, KeyError):
        raise ConfigError(f"{VARIABLE}: no failpoint {wanted!r} here", hint="unset it: it is only for tests") from None

    def end(point: Enum) -> None:
        if point is not target:
            return
        with _lock:
            _hits[point] += 1
            due = _hits[point] == count
        if due and number is None:
            time.sleep(WAIT_S)
        elif due and number is not None:
            os.kill(os.getpid(), number)

    return end


def _log_to(path: str) -> FailpointAction:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def record(point: Enum) -> None:
        os.write(descriptor, f"{point.value}\n".encode())

    return record
