"""`cdcctl-archive --spool DIR %p %f`: run by archive_command; it never gives the node a reason to keep WAL (I25).

It imports only the standard library and the modules that write a spool. A process that touches a hanging file system
hangs, too, so this process never touches the spool: a child process does, with a deadline.

    the copy succeeds                                         0
    it fails or hangs, below one of both limits               1, the server tries again
    above both                                                the file is recorded as a hole, 0
    the hole cannot be recorded either                        a line on stderr (the server's log), 0

The limits are `hold_s` of failure, counted within attempts, *and* `hold_bytes` of WAL that waits in pg_wal. The
spool's ledger counts the time. If it cannot be written, a ledger in the data folder does, and keeps the holes until
the spool's can be written again. If neither can be written, the age of the server's own `.ready` file counts as the
time. If pg_wal cannot be listed, `UNLISTED_HOLDS` times `hold_s` count as both limits; if nothing at all can be read,
the file is given up.
A child that hangs permanently holds a lock on the working folder (the data folder), which only this server uses: while
it holds the lock, no second child is started. So if a child was killed and the ledger does not answer either, a child
that touches the spool is left behind: otherwise each file would wait for its own children, and faster WAL would queue.
"""

import argparse
import fcntl
import math
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidemark.io.archive.hole_ledger import ATTEMPTS_APART_S, GivenUp, HoleLedger, boot_clock_ns
from tidemark.io.archive.spool import Spool
from tidemark.model.errors import TidemarkError

HOLD_S_DEFAULT = 60.0
_READY = ".ready"  # pg_wal/archive_status/NAME.ready: the file NAME waits to be archived
HOLD_BYTES_DEFAULT = 4 << 30
UNLISTED_HOLDS = 10  # times hold_s, if the amount of unarchived WAL is unknown
COPY_S_DEFAULT = 20.0
FREE_BYTES_MIN_DEFAULT = 256 << 20
LEDGER_S = 2.0
POLL_S = 0.005
BACKLOG_COPY_S = 2.0
BACKLOG_BYTES_PER_S = 32 << 20
CLOCK_STEP_S = 60.0
OWN_LEDGER_MODE = 0o600
ARCHIVED, TRY_AGAIN = 0, 1
_UNARCHIVED, _GIVEN_UP = 3, 4  # exit codes of the child: the failure is recorded, the hole is recorded


@dataclass(frozen=True, slots=True)
class Job:
    """One file to archive, and the limits for giving it up."""

    path: Path
    name: str
    spool: Spool
    hold_s: float
    hold_bytes: int
    copy_s: float
    free_bytes_min: int
    began_ns: int  # boot clock

    @property
    def own_ledger(self) -> Path:
        """The ledger for holes while the spool's ledger cannot be written: in the data folder, one for each spool."""
        return Path(f"tidemark-archive-{zlib.crc32(os.fsencode(self.spool.folder)):08x}.holes")

    def is_over(self, failed_s: float) -> bool:
        """Return whether to give the file up after failing for this time: both limits are reached."""
        if failed_s < self.hold_s:
            return False
        waiting_bytes = unarchived_bytes(self.path.parent, enough=self.hold_bytes)
        return failed_s >= UNLISTED_HOLDS * self.hold_s if waiting_bytes is None else waiting_bytes >= self.hold_bytes


def main() -> None:
    """Archive one file; exit with the status for the server."""
    parser = argparse.ArgumentParser(
        prog="cdcctl-archive",
        description="Copy a WAL file into Tidemark's spool.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("path", type=Path, nargs="?", help="%%p, the file")
    parser.add_argument("name", nargs="?", help="%%f, its name")
    parser.add_argument("--spool", type=Path, required=True, help="folder made by cdcctl init")
    parser.add_argument(
        "--hold-s", type=float, default=HOLD_S_DEFAULT, help="give up a file after this many seconds of failures ..."
    )
    parser.add_argument(
        "--hold-bytes", type=int, default=HOLD_BYTES_DEFAULT, help="... with this many bytes of unarchived WAL"
    )
    parser.add_argument(
        "--copy-s", type=float, default=COPY_S_DEFAULT, help="a copy that takes longer counts as failed"
    )
    parser.add_argument(
        "--free-bytes-min", type=int, default=FREE_BYTES_MIN_DEFAULT, help="free space to keep on the disk"
    )
    parser.add_argument("--probe", action="store_true", help="archive nothing: check that the spool can be written")
    given = parser.parse_args()
    if given.probe:
        spool = Spool(given.spool)
        sys.exit(_attempt(lambda: _probe(spool, given.free_bytes_min)))
    if given.path is None or given.name is None:
        parser.error("archive_command must end with %p %f")
    job = Job(
        path=given.path,
        name=given.name,
        spool=Spool(given.spool),
        hold_s=given.hold_s,
        hold_bytes=given.hold_bytes,
        copy_s=given.copy_s,
        free_bytes_min=given.free_bytes_min,
        began_ns=boot_clock_ns(),
    )
    sys.exit(archive(job))


def archive(job: Job) -> int:
    """Return the exit status for one file."""
    try:
        lock = os.open(".", os.O_RDONLY | os.O_DIRECTORY)  # NB: the children inherit the lock until they end
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _without_spool(job, "an earlier copy into the spool hangs")
    except OSError as error:  # a file system without such locks: each file waits for separate children
        _print_error(f"the data folder cannot be locked: {error.strerror}")
    copy_s = copy_deadline_s(job)
    copied = _in_child(lambda: _keep(job), copy_s)
    if copied == ARCHIVED:
        return ARCHIVED
    reason = f"the copy took longer than {copy_s:.0f} s" if copied is None else "the copy failed"
    recorded = _in_child(lambda: _record(job, reason), LEDGER_S)
    if recorded == _GIVEN_UP:
        return ARCHIVED
    if recorded == _UNARCHIVED:
        return TRY_AGAIN
    result = _without_spool(job, reason)
    if result == ARCHIVED and copied is None:
        _leave_behind(lambda: _reach(job))
    return result


def copy_deadline_s(job: Job) -> float:
    """Return the deadline of the copy; it is short if files queue behind copies that hang."""
    if not job.is_over(waited_s(job)):
        return job.copy_s
    try:
        byte_count = job.path.stat().st_size
    except OSError:
        byte_count = 0  # missing: the copy reports it
    return min(job.copy_s, BACKLOG_COPY_S + byte_count / BACKLOG_BYTES_PER_S)


def waited_s(job: Job) -> float:
    """Return how long the server has waited to archive the file, by its `.ready` file; infinity if unknown."""
    ready = job.path.parent / "archive_status" / f"{job.name}.ready"
    try:
        waited_s = time.time() - ready.stat().st_mtime
    except OSError:
        return math.inf
    return waited_s if waited_s > -CLOCK_STEP_S else math.inf  # the clock was set back by an unknown amount


def _keep(job: Job) -> int:
    job.spool.keep(job.path, job.name, free_bytes_min=job.free_bytes_min)
    try:
        job.spool.make_ledger()
        with HoleLedger.open(job.spool.ledger, writable=True) as ledger:
            ledger.record_success()
            _move_holes(job, ledger)
    except OSError as error:  # the file is archived nevertheless
        _print_error(f"{job.name} is archived; the spool's ledger cannot be written: {error.strerror}")
    return ARCHIVED


def _probe(spool: Spool, free_bytes_min: int) -> int:
    spool.probe(free_bytes_min=free_bytes_min)
    return ARCHIVED


def _record(job: Job, reason: str) -> int:
    with HoleLedger.open(job.spool.ledger, writable=True) as ledger:
        _move_holes(job, ledger)
        failed_s = ledger.record_failure(began_ns=job.began_ns, apart_s=ATTEMPTS_APART_S + job.copy_s)
        if not job.is_over(failed_s):
            return _UNARCHIVED
        ledger.give_up(job.name, reason)
    _print_error(
        f"{job.name} is given up after {failed_s:.0f} s and recorded as a hole, so that the server does not keep "
        "WAL for Tidemark"
    )
    return _GIVEN_UP


def _move_holes(job: Job, ledger: HoleLedger) -> None:
    """Move holes from the ledger in the data folder to the spool's ledger."""
    # NB: the lock is released meanwhile: if the spool hangs, the next process must not wait for this one.
    for hole in _own_holes(job):
        if not (job.spool.folder / hole.name).exists():
            ledger.give_up(hole.name, hole.reason, at_s=hole.at_s)
    job.own_ledger.unlink(missing_ok=True)


def _own_holes(job: Job) -> list[GivenUp]:
    try:
        with HoleLedger.peek(job.own_ledger) as ledger:
            return ledger.holes()
    except FileNotFoundError:
        return []


def _reach(job: Job) -> int:
    """Return when the spool answers."""
    job.spool.system_identifier()
    with HoleLedger.open(job.spool.ledger, writable=True):
        return ARCHIVED


def _without_spool(job: Job, reason: str) -> int:
    """Decide by a ledger in the data folder, else by the `.ready` file; return success if neither is usable."""
    try:
        HoleLedger.create(job.own_ledger, OWN_LEDGER_MODE)
        with HoleLedger.open(job.own_ledger, writable=True) as ledger:
            failed_s = ledger.record_failure(began_ns=job.began_ns, apart_s=ATTEMPTS_APART_S + job.copy_s)
            is_over = job.is_over(failed_s)
            if is_over:
                ledger.give_up(job.name, reason)
        recorded = f"recorded only in {job.own_ledger} of the data folder"
    except OSError:
        is_over, recorded = job.is_over(waited_s(job)), "NOT recorded"
    if not is_over:
        _print_error(f"{job.name}: {reason}; the spool's ledger cannot be written")
        return TRY_AGAIN
    _print_error(f"{job.name} is NOT archived and {recorded}: {reason}, and the spool's ledger cannot be written")
    return ARCHIVED


def _in_child(work: Callable[[], int], wait_s: float) -> int | None:
    """Return the exit status of `work` in a child; None if the child exceeded its deadline and was killed."""
    try:
        pid = os.fork()
    except OSError as error:  # the host has no process or no memory left
        _print_error(f"no child: {error.strerror}")
        return TRY_AGAIN
    if pid == 0:
        os._exit(_attempt(work))
    deadline = time.monotonic() + wait_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            return None
        time.sleep(POLL_S)


def _leave_behind(work: Callable[[], int]) -> None:
    """Do `work` in a child without waiting for it."""
    try:
        pid = os.fork()
    except OSError:
        return
    if pid == 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # the server's log collector waits for all processes that have its pipe
            os.dup2(nowhere, standard)
        os._exit(_attempt(work))


def _attempt(work: Callable[[], int]) -> int:
    try:
        return work()
    except TidemarkError as error:
        _print_error(f"{error} ({error.hint})")
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent decides by the time that has passed
        _print_error(f"{type(error).__name__}: {error}")
    return TRY_AGAIN


def _print_error(text: str) -> None:
    os.write(2, f"cdcctl-archive: {text}\n".encode())


def unarchived_bytes(pg_wal: Path, *, enough: int) -> int | None:
    """Return the bytes of the files that wait to be archived, counted up to `enough`; None if they cannot be listed.

    WAL that the server keeps for another reason (wal_keep_size, recycled segments) does not count.
    """
    if enough == 0:
        return 0
    found = 0
    try:
        with os.scandir(pg_wal / "archive_status") as entries:
            for entry in entries:
                if found >= enough:
                    break
                if entry.name.endswith(_READY):
                    found += _size(pg_wal / entry.name.removesuffix(_READY))
    except OSError:
        return None
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # removed meanwhile


if __name__ == "__main__":
    main()
