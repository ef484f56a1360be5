"""Waiting for space on a full disk: the same way for every process and every disk.

Work that finds no space releases its memory (all of it is decoded again from the delivered position), and its error
reaches the loop of the daemon, or of the pipeline. The loop continues with heartbeats, commands and a stop. At
intervals it checks for space, and resumes work only when there is some. One line is logged when waiting begins, and one
when it ends.

A disk that refuses writes although it has space for them is broken, not full: after `REFUSALS_MAX` such attempts the
error is raised. `FullDisks` defines which error counts; one that waiting can resolve (a quota, inodes, less space than
the work may need) never does.
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol, TypeVar
from uuid import uuid4

from tidemark.io.host.disk import StateFull, is_full
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.host.systemd import MORE_TIME, notify
from tidemark.io.process.stop_signals import STOP_SIGNALS, keeping_stop_handlers
from tidemark.io.state.outbox_transaction import FREE_BYTES_MIN
from tidemark.model.errors import ExitCode

CHECK_S, CHECK_S_MAX = 0.5, 5.0  # between two checks; doubled while there is no space or work soon fails again
LASTS_S = 5.0  # work that runs for so long has had space
REFUSALS_MAX = 20  # attempts that fail although every disk has space (`FullDisks.is_refusal`)
FREE_FILES_MIN = 1000  # free inodes that a disk must have: a batch creates some files for each of its tables
PROBE_BYTES = 1 << 20
ResultT = TypeVar("ResultT")


class Gauge(Protocol):
    """The metric that shows how long a process waits."""

    def set(self, value: float) -> None:
        """Set the metric to `value`."""


@dataclass(frozen=True, slots=True)
class FullDisks:
    """The disks of the folders that a process writes to, and the space that its work may need there."""

    folders: Sequence[Path]
    work_bytes: int = 0  # that one attempt may write
    rewrites: bool = False  # and it may rewrite everything that is stored there, as a merge into a table does

    def has_space_for_a_file(self) -> bool:
        """Return whether a file of 1 MiB can be created now in every folder."""
        return all(map(_has_space, self.folders))

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether a write failed with `error` although every disk has space for the work."""
        return not _is_quota(error) and all(map(self._has_enough, self.folders))

    def _has_enough(self, folder: Path) -> bool:
        try:
            found = os.statvfs(folder)
        except OSError:
            return False
        if found.f_files and found.f_favail < FREE_FILES_MIN:  # NB: 0 files: the file system has no such limit
            return False
        used = (found.f_blocks - found.f_bfree) * found.f_frsize if self.rewrites else 0
        return found.f_bavail * found.f_frsize >= FREE_BYTES_MIN + self.work_bytes + used


@dataclass(slots=True)
class DiskSpace:
    """Whether there is space in all folders that a process writes to, as far as its work has shown."""

    disks: FullDisks
    seconds: Gauge
    log: Log
    lasts_s: float = LASTS_S  # work that runs for so long has had space
    clock: Callable[[], float] = time.monotonic
    reason: str = field(default="", init=False)  # why it waits; empty: it does not wait
    _since_s: float = field(default=0.0, init=False)
    _check_s: float = field(default=0.0, init=False)
    _not_before_s: float = field(default=0.0, init=False)
    _worked_s: float = field(default=0.0, init=False)
    _refusals: int = field(default=0, init=False)

    @property
    def is_waiting(self) -> bool:
        """Return whether work has to wait."""
        return bool(self.reason)

    def record_full_disk(self, error: BaseException) -> None:
        """Begin to wait; raise `error` if waiting cannot help."""
        now_s = self.clock()
        if now_s - self._worked_s >= self.lasts_s:
            self._check_s, self._refusals = 0.0, 0
        if self.disks.is_refusal(error):
            self._refusals += 1
            if self._refusals > REFUSALS_MAX:
                raise error
        if not self.is_waiting:
            self._since_s = now_s
            self.log.warning("the disk is full: waiting for space", **describe_error(_translated(error)))
        self.reason = str(_translated(error))
        self._check_s = min(CHECK_S_MAX, 2 * self._check_s or CHECK_S)
        self._not_before_s = now_s + self._check_s
        self._show(now_s)

    def has_come(self) -> bool:
        """Return whether work may continue: it need not wait, or need not wait any longer."""
        if not self.is_waiting:
            return True
        now_s = self.clock()
        self._show(now_s)
        if now_s < self._not_before_s:
            return False
        if not self.is_there():
            self._check_s = min(CHECK_S_MAX, 2 * self._check_s)
            self._not_before_s = now_s + self._check_s
            return False
        self.reason, self._worked_s = "", now_s
        self._show(now_s)
        self.log.info("the disk has space again", waited_s=round(now_s - self._since_s, 1))
        return True

    def is_there(self) -> bool:
        """Return whether a file of 1 MiB can be created now in every folder."""
        return self.disks.has_space_for_a_file()

    def _show(self, now_s: float) -> None:
        # NB: never 0 while it waits: an alert checks for more than 0.
        self.seconds.set(max(0.001, now_s - self._since_s) if self.is_waiting else 0.0)


@contextmanager
def _ending_at_signal() -> Iterator[None]:
    """End the process normally if a stop is requested in the body: no work has begun yet. For the main thread."""

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(ExitCode.SUCCESS)

    with keeping_stop_handlers():
        for number in STOP_SIGNALS:
            signal.signal(number, end)
        yield


def when_space_allows(
    attempt: Callable[[], ResultT],
    folder: Path | FullDisks,
    log: Log,
    *,
    wait: Callable[[float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    seconds: Gauge | None = None,
) -> ResultT:
    """Repeat `attempt` until the disk has space for it; return its result. For work before the loop of the process.

    `wait` waits for some seconds, and ends the process if a stop is requested meanwhile; without it, a stop ends the
    process from the first failed attempt on. `seconds` shows how long it has waited.
    """
    disks = folder if isinstance(folder, FullDisks) else FullDisks([existing_folder(folder)])
    disk_space = DiskSpace(disks, _NoGauge() if seconds is None else seconds, log, clock=clock)
    is_alone = wait is None  # nothing else handles signals
    with ExitStack() as stack:
        while True:
            if disk_space.has_come():
                try:
                    return attempt()
                except (StateFull, OSError) as error:
                    if not is_full(error):
                        raise
                    if is_alone:  # NB: before the line in the log, which a stop may follow at once
                        stack.enter_context(_ending_at_signal())
                        is_alone = False
                    disk_space.record_full_disk(error)
            notify(f"{MORE_TIME}{int(2e6 * CHECK_S_MAX)}")
            (wait or time.sleep)(CHECK_S)


def existing_folder(folder: Path) -> Path:
    """Return the folder, or the nearest existing parent folder."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


class _NoGauge:
    """Replaces the metric in a process without metrics."""

    def set(self, value: float) -> None:
        """Ignore `value`."""


def _has_space(folder: Path) -> bool:
    """Return whether a file of 1 MiB can be created: free blocks, a free inode, and a quota that allows both."""
    path = folder / f".space-{uuid4().hex}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return not is_full(error)  # the work reports any other error
    try:
        path.unlink()
        os.posix_fallocate(descriptor, 0, PROBE_BYTES)
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    finally:
        os.close(descriptor)
    return True


def _is_quota(error: BaseException) -> bool:
    """Return whether `error` or its cause is an exhausted quota, which `statvfs` does not show."""
    reason = os.strerror(errno.EDQUOT)
    cause: BaseException | None = error
    while cause is not None:
        if reason in str(cause) or (isinstance(cause, OSError) and cause.errno == errno.EDQUOT):
            return True
        cause = cause.__cause__
    return False


def _translated(error: BaseException) -> BaseException:
    """Return our error for the operating system's error."""
    if isinstance(error, OSError):
        return StateFull(f"no space for {error.filename or 'a file'}: {error.strerror}")
    return error
