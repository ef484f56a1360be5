"""Waiting for room on a full disk: the one way in which a process does it, wherever the disk was met full.

What finds no room lets go of what it has in hand (all of that comes again from the delivered position), and its error
comes up to the loop of the daemon, or of the pipeline. That goes on to turn: signs of life, commands, a stop. Now and
then it looks if there is room, and only then begins to work again. One line is logged when waiting begins, and one
when it ends.

A disk that has room and still takes nothing is no full disk: after `REFUSALS_MAX` such attempts the error is raised.
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import uuid4

from tidemark.io.host.disk import StateFull, is_full
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.host.systemd import MORE_TIME, notify
from tidemark.io.state.state_transaction import FREE_BYTES_MIN
from tidemark.model.errors import ExitCode

LOOK_S, LOOK_S_MAX = 0.5, 5.0  # between two looks; doubled by each that finds no room, or what does not last
LASTS_S = 5.0  # work of a daemon that goes on for so long has had room
REFUSALS_MAX = 20  # attempts that fail although the file system has `FREE_BYTES_MIN` free
PROBE_BYTES = 1 << 20
ResultT = TypeVar("ResultT")


class Gauge(Protocol):
    """The metric that shows how long a process waits."""

    def set(self, value: float) -> None:
        """Show `value`."""


@dataclass(slots=True)
class Room:
    """Whether there is room in all folders that a process writes to, as far as work has met it."""

    folders: Sequence[Path]
    seconds: Gauge
    log: Log
    lasts_s: float = LASTS_S  # work that goes on for so long has had room
    reason: str = ""  # why it waits; empty: it does not
    _since_s: float = 0.0
    _look_s: float = 0.0
    _not_before_s: float = 0.0
    _worked_s: float = 0.0
    _refusals: int = 0

    @property
    def is_waiting(self) -> bool:
        """Tell if work has to wait."""
        return bool(self.reason)

    def met_full(self, error: BaseException) -> None:
        """Begin to wait; raise `error` where no waiting will help."""
        now_s = time.monotonic()
        if now_s - self._worked_s >= self.lasts_s:
            self._look_s, self._refusals = 0.0, 0
        if min(map(_free_bytes, self.folders)) >= FREE_BYTES_MIN:
            self._refusals += 1
            if self._refusals > REFUSALS_MAX:
                raise error
        if not self.is_waiting:
            self._since_s = now_s
            self.log.warning("the disk is full: waiting for room", **describe_error(_translated(error)))
        self.reason = str(_translated(error))
        self._look_s = min(LOOK_S_MAX, 2 * self._look_s or LOOK_S)
        self._not_before_s = now_s + self._look_s
        self._show(now_s)

    def has_come(self) -> bool:
        """Tell if work may go on: it need not wait, or waits no more."""
        if not self.is_waiting:
            return True
        now_s = time.monotonic()
        self._show(now_s)
        if now_s < self._not_before_s:
            return False
        if not self.is_there():
            self._look_s = min(LOOK_S_MAX, 2 * self._look_s)
            self._not_before_s = now_s + self._look_s
            return False
        self.reason, self._worked_s = "", now_s
        self._show(now_s)
        self.log.info("there is room on the disk again", waited_s=round(now_s - self._since_s, 1))
        return True

    def is_there(self) -> bool:
        """Tell if every folder takes a file of some size now."""
        return all(map(_has_room, self.folders))

    def _show(self, now_s: float) -> None:
        # NB: never 0 while it waits: an alert asks for more than 0.
        self.seconds.set(max(0.001, now_s - self._since_s) if self.is_waiting else 0.0)


def wait_or_stop(wait_s: float) -> None:
    """Wait, and end the process in order if it is told to stop meanwhile: nothing has begun yet."""
    stops = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        if signal.sigtimedwait(stops, wait_s) is not None:
            sys.exit(ExitCode.SUCCESS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def patiently(
    attempt: Callable[[], ResultT], folder: Path, log: Log, *, wait: Callable[[float], None] = wait_or_stop
) -> ResultT:
    """Return what `attempt` returns, as soon as the disk has room for it; what is done before the loop turns.

    `wait` waits for some seconds, and ends the process if it is told to stop meanwhile.
    """
    began_s, look_s, refusals, is_told = time.monotonic(), LOOK_S, 0, False
    while True:
        try:
            done = attempt()
        except (StateFull, OSError) as error:
            refusals += _free_bytes(folder) >= FREE_BYTES_MIN
            if not is_full(error) or refusals > REFUSALS_MAX:
                raise
            if not is_told:
                is_told = True
                log.warning("the disk is full: waiting for room", **describe_error(_translated(error)))
        else:
            if is_told:
                log.info("there is room on the disk again", waited_s=round(time.monotonic() - began_s, 1))
            return done
        notify(f"{MORE_TIME}{int(2e6 * LOOK_S_MAX)}")
        wait(look_s)
        look_s = min(LOOK_S_MAX, 2 * look_s)


def _has_room(folder: Path) -> bool:
    """Tell if a file of some size can be made: free blocks, a free inode, and a quota that allows both."""
    path = folder / f".room-{uuid4().hex}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return not is_full(error)  # anything else is for the work to find out
    try:
        path.unlink()
        os.posix_fallocate(descriptor, 0, PROBE_BYTES)
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    finally:
        os.close(descriptor)
    return True


def _free_bytes(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _translated(error: BaseException) -> BaseException:
    """Return the error as one of ours, which says what and where."""
    if isinstance(error, OSError):
        return StateFull(f"no room for {error.filename or 'a file'}: {error.strerror}")
    return error
