"""Waiting for disk space: the wait ends with an error only on a disk that refuses writes although it has space."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.servers.small_disk import needs_mount, small_disk
from tidemark.io.host.disk import StateFull
from tidemark.io.host.log_output import get_log
from tidemark.io.process.disk_space import REFUSALS_MAX, FullDisks, when_space_allows
from tidemark.model.errors import ExitCode

MB = 1 << 20
DISK_BYTES = 160 * MB
LOG = get_log("test")
STOPPED_WHILE_IT_LOGS = """
import errno, os, sys
from pathlib import Path
from tidemark.io.process.disk_space import when_space_allows

class Log:
    def warning(self, event, **fields):
        os.kill(os.getpid(), int(sys.argv[2]))

def attempt():
    raise OSError(errno.ENOSPC, "full")

when_space_allows(attempt, Path(sys.argv[1]), Log())
sys.exit(3)
"""


def allocated(path: Path, size_bytes: int) -> None:
    """Write a file of that size; a failure leaves no file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def errors_of(attempt: Callable[[], None], count: int) -> Iterator[OSError]:
    """Return the error of each of so many attempts."""
    for _ in range(count):
        with pytest.raises(OSError, match=r".") as raised:
            attempt()
        yield raised.value


def count_of(errors: Iterator[Exception], disks: FullDisks) -> int:
    """Return how many of `errors` count as refusals of a disk that has space."""
    return sum(disks.is_refusal(error) for error in errors)


@needs_mount
def test_a_write_that_is_larger_than_the_free_space_is_no_refusal(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        errors = list(errors_of(lambda: allocated(disk.root / "merged", 2 * DISK_BYTES), 1))
        assert count_of(iter(errors), FullDisks([disk.root])) == 1
        assert count_of(iter(errors), FullDisks([disk.root], work_bytes=2 * DISK_BYTES)) == 0


@needs_mount
def test_work_that_rewrites_a_table_may_need_as_much_space_as_is_stored(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        allocated(disk.root / "replica", DISK_BYTES // 2 + MB)
        errors = list(errors_of(lambda: allocated(disk.root / "merged", DISK_BYTES // 2), 1))
        assert count_of(iter(errors), FullDisks([disk.root])) == 1
        assert count_of(iter(errors), FullDisks([disk.root], rewrites=True)) == 0


@needs_mount
def test_one_folder_without_space_among_many_is_no_refusal(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", MB) as disk:
        disk.fill()
        errors = list(errors_of(lambda: allocated(disk.root / "spark", MB), 1))
        assert count_of(iter(errors), FullDisks([tmp_path])) == 1
        assert count_of(iter(errors), FullDisks([tmp_path, disk.root])) == 0


@needs_mount
def test_a_disk_without_free_inodes_is_no_refusal(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES, files_max=4) as disk:
        for number in range(3):
            (disk.root / str(number)).touch()
        errors = list(errors_of(lambda: allocated(disk.root / "more", 1), 1))
        assert count_of(iter(errors), FullDisks([disk.root])) == 0


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        StateFull(f"no space for x: {os.strerror(errno.EDQUOT)}"),
        StateFull("Io error: Disk quota exceeded (os error 122)"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_quota_that_is_used_up_is_no_refusal(tmp_path: Path, error: Exception) -> None:
    assert not FullDisks([tmp_path]).is_refusal(error)
    assert FullDisks([tmp_path]).is_refusal(StateFull("no space for x: No space left on device"))


class TickingClock:
    """A clock that advances by 0.3 s each time it is read."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += 0.3
        return self._now_s


class Attempts:
    """Work that fails with each of `errors` one after the other, then succeeds."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        self._errors = list(errors)
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"


def test_a_disk_that_refuses_writes_although_it_has_space_is_an_error_after_some_attempts(tmp_path: Path) -> None:
    refused = StateFull("no space for x: No space left on device")
    attempts = Attempts([refused] * (REFUSALS_MAX + 5))
    with pytest.raises(StateFull) as raised:
        when_space_allows(attempts, tmp_path, LOG, wait=lambda _s: None, clock=TickingClock())
    assert raised.value is refused
    assert attempts.count == REFUSALS_MAX + 1


def test_only_a_full_disk_is_awaited_without_limit(tmp_path: Path) -> None:
    full = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    attempts = Attempts([full] * (3 * REFUSALS_MAX))
    assert when_space_allows(attempts, tmp_path, LOG, wait=lambda _s: None, clock=TickingClock()) == "done"
    assert attempts.count == 3 * REFUSALS_MAX + 1
    with pytest.raises(PermissionError):
        when_space_allows(Attempts([PermissionError(errno.EACCES, "no")]), tmp_path, LOG, wait=lambda _s: None)


class KeepingMetric(list[float]):
    """A metric that keeps every value."""

    def set(self, value: float) -> None:
        self.append(value)


def test_the_metric_shows_that_a_start_waits_for_space_and_that_it_continues(tmp_path: Path) -> None:
    full, shown = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), KeepingMetric()
    attempts = Attempts([full])
    assert (
        when_space_allows(attempts, tmp_path, LOG, wait=lambda _s: None, clock=TickingClock(), seconds=shown) == "done"
    )
    assert (shown[0] > 0, shown[-1]) == (True, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_at_any_moment_of_the_wait_ends_the_process_normally(tmp_path: Path, number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_WHILE_IT_LOGS, str(tmp_path), str(number.value)], check=False, timeout=60
    )
    assert done.returncode == ExitCode.SUCCESS
