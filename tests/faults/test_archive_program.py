"""The archive command as a server runs it: after any failure it ends in time with a status and an error message."""

import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tidemark_archiver import archive_command
from tidemark_archiver.archive_command import (
    BACKLOG_BYTES_PER_S,
    BACKLOG_COPY_S,
    CLOCK_STEP_S,
    COPY_S_DEFAULT,
    UNLISTED_HOLDS,
    Job,
    unarchived_bytes,
)

from tests.support.servers.archiving import segment_bytes
from tidemark.io.archive.hole_ledger import ATTEMPTS_APART_S, LEDGER_BYTES, HoleLedger, boot_clock_ns
from tidemark.io.archive.spool import Spool

CLUSTER = 7_123_456_789_012_345_678
NAME = "000000010000000000000001"
HOLD_S = 60.0
RUN_S = 120.0


@dataclass(frozen=True)
class ArchiveCase:
    """A data folder with one segment to archive, and the spool for it."""

    data: Path
    spool: Spool

    @property
    def segment(self) -> Path:
        return self.data / "pg_wal" / NAME

    def age(self, seconds: float) -> None:
        """Imitate a server that has waited for so long already."""
        ready = self.data / "pg_wal" / "archive_status" / f"{NAME}.ready"
        ready.touch()
        os.utime(ready, (0, time.time() - seconds))

    def job(self, *, hold_bytes: int = 0, copy_s: float = COPY_S_DEFAULT) -> Job:
        """Return the segment as a job."""
        return Job(self.segment, NAME, self.spool, HOLD_S, hold_bytes, copy_s, 0, 0)

    @property
    def own_ledger(self) -> Path:
        """The ledger that the command keeps while it cannot write the spool's."""
        return self.data / self.job().own_ledger

    def own_holes(self) -> list[str]:
        """Return the holes in the ledger of the data folder."""
        with HoleLedger.open(self.own_ledger, writable=False) as ledger:
            return [hole.name for hole in ledger.holes()]

    def fail(self, ledger: Path, failed_s: float, *, ago_s: float = 1) -> None:
        """Imitate failures of archiving for so long, up to a moment ago."""
        ledger.unlink(missing_ok=True)
        HoleLedger.create(ledger, 0o600)
        ended_ns = boot_clock_ns() - int(ago_s * 1e9)
        with HoleLedger.open(ledger, writable=True) as opened:
            opened.record_failure(began_ns=ended_ns - int(failed_s * 1e9), now_ns=ended_ns)

    def break_copies(self) -> None:
        """Let every copy fail, except for the ledger."""
        self.segment.write_bytes(segment_bytes(CLUSTER + 1))

    def archive(self, *more: str, program: str = "") -> tuple[int, str]:
        """Archive the segment, by the command or a program around it; return the exit status and the message."""
        return self.run(*more, f"pg_wal/{NAME}", NAME, program=program)

    def run(self, *more: str, program: str = "") -> tuple[int, str]:
        """Run the command, or a program around it; return its exit status and the message."""
        command = ["-c", program] if program else ["-m", "tidemark_archiver.archive_command"]
        given = ["--spool", str(self.spool.folder), "--free-bytes-min", "0", *more]
        done = subprocess.run(
            [sys.executable, "-S", *command, *given],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.data,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (Path.cwd(), Path("archiver").absolute())))},
            timeout=RUN_S,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stderr

    @property
    def holes(self) -> list[str]:
        with HoleLedger.open(self.spool.ledger, writable=False) as ledger:
            return [hole.name for hole in ledger.holes()]


@pytest.fixture
def server(tmp_path: Path) -> ArchiveCase:
    spool = Spool(tmp_path / "spool")
    spool.create(CLUSTER)
    data = tmp_path / "data"
    (data / "pg_wal" / "archive_status").mkdir(parents=True)
    made = ArchiveCase(data, spool)
    made.segment.write_bytes(segment_bytes(CLUSTER))
    made.age(0)
    return made


@pytest.mark.parametrize("waited_s", [0.0, HOLD_S + 1])
def test_a_missing_file_is_retried_and_then_given_up_like_any_other(server: ArchiveCase, waited_s: float) -> None:
    server.segment.unlink()
    server.age(waited_s)
    code, said = server.archive()
    assert code == 1
    assert f"{NAME}: No such file or directory" in said
    assert "ledger cannot be written" not in said
    code, said = server.archive("--hold-s", "0", "--hold-bytes", "0")
    assert code == 0
    assert "given up" in said
    assert server.holes == [NAME]


@pytest.mark.parametrize("broken", ["missing", "a folder", "empty"])
def test_a_copy_that_succeeded_is_a_success_whatever_the_ledger_is(server: ArchiveCase, broken: str) -> None:
    server.spool.ledger.unlink()
    if broken == "a folder":
        server.spool.ledger.mkdir()
    if broken == "empty":
        server.spool.ledger.touch()
    code, _ = server.archive()
    assert code == 0
    assert (server.spool.folder / NAME).read_bytes() == server.segment.read_bytes()
    if broken == "missing":
        assert server.spool.ledger.stat().st_size == LEDGER_BYTES
        assert server.holes == []


@pytest.mark.feature("I25")
def test_a_disk_that_was_full_twice_within_a_minute_makes_no_hole(server: ArchiveCase) -> None:
    """Full for 5 s, free for 50, and full again: the server paused, so the free time was not observed."""
    server.break_copies()
    server.fail(server.spool.ledger, 5, ago_s=HOLD_S)
    code, _ = server.archive("--hold-bytes", "0")
    assert (code, server.holes) == (1, [])


@pytest.mark.feature("I25")
def test_a_file_is_given_up_only_with_both_limits_reached(server: ArchiveCase) -> None:
    server.break_copies()
    held = unarchived_bytes(server.data / "pg_wal", enough=1 << 40)
    assert held == server.segment.stat().st_size
    server.fail(server.spool.ledger, HOLD_S)
    assert server.archive("--hold-bytes", str(held + 1))[0] == 1
    assert server.archive("--hold-bytes", str(held), "--hold-s", str(10 * HOLD_S))[0] == 1
    assert server.holes == []
    code, said = server.archive("--hold-bytes", str(held))
    assert code == 0
    assert "recorded as a hole" in said
    assert server.holes == [NAME]
    with HoleLedger.open(server.spool.ledger, writable=False) as ledger:
        assert [hole.reason for hole in ledger.holes()] == ["the copy failed"]


@pytest.mark.feature("I25")
def test_a_pg_wal_that_cannot_be_listed_keeps_wal_longer_but_not_for_ever(server: ArchiveCase) -> None:
    server.break_copies()
    (server.data / "pg_wal" / "archive_status" / f"{NAME}.ready").unlink()
    (server.data / "pg_wal" / "archive_status").rmdir()
    assert unarchived_bytes(server.data / "pg_wal", enough=1) is None
    server.fail(server.spool.ledger, HOLD_S)
    assert server.archive("--hold-bytes", "1")[0] == 1
    server.fail(server.spool.ledger, UNLISTED_HOLDS * HOLD_S)
    assert server.archive("--hold-bytes", "1")[0] == 0
    assert server.holes == [NAME]


@pytest.mark.feature("I25")
def test_wal_that_the_server_keeps_for_another_reason_is_not_counted_as_unarchived(server: ArchiveCase) -> None:
    pg_wal = server.data / "pg_wal"
    for number in range(2, 6):
        (pg_wal / f"{number:024X}").write_bytes(segment_bytes(CLUSTER))
        (pg_wal / "archive_status" / f"{number:024X}.done").touch()
    (pg_wal / "archive_status" / f"{9:024X}.ready").touch()  # its segment is missing
    assert unarchived_bytes(pg_wal, enough=1 << 40) == server.segment.stat().st_size


def test_a_clock_that_was_set_back_does_not_keep_wal_for_ever(server: ArchiveCase) -> None:
    for ledger in (server.spool.ledger, server.own_ledger):
        ledger.unlink(missing_ok=True)
        ledger.mkdir()
    server.break_copies()
    server.age(0)
    assert server.archive("--hold-bytes", "0")[0] == 1
    server.age(-10 * HOLD_S)
    code, said = server.archive("--hold-bytes", "0")
    assert code == 0
    assert f"{NAME} is NOT archived and NOT recorded" in said
    assert server.archive()[0] == 1, "the bytes count all the same"


def test_holes_that_only_the_data_folder_could_record_are_added_to_the_spool_later(server: ArchiveCase) -> None:
    away = server.spool.folder.rename(server.data.with_name("away"))
    server.fail(server.own_ledger, HOLD_S)
    code, said = server.archive("--hold-bytes", "0")
    assert code == 0
    assert f"{NAME} is NOT archived and recorded only in {server.own_ledger.name}" in said
    away.rename(server.spool.folder)
    server.break_copies()
    assert server.archive()[0] == 1
    assert server.holes == [NAME]
    assert not server.own_ledger.exists()


def test_a_segment_still_tried_or_arrived_since_is_not_a_hole(server: ArchiveCase) -> None:
    away = server.spool.folder.rename(server.data.with_name("away"))
    assert server.archive()[0] == 1
    assert server.own_holes() == []
    server.fail(server.own_ledger, HOLD_S)
    assert server.archive("--hold-bytes", "0")[0] == 0
    assert server.own_holes() == [NAME]
    away.rename(server.spool.folder)
    assert server.archive()[0] == 0
    assert server.holes == []
    assert not server.own_ledger.exists()


@pytest.mark.parametrize("spool_is_there", [True, False])
def test_attempts_as_long_as_the_longest_copy_belong_to_one_failure(
    server: ArchiveCase, *, spool_is_there: bool
) -> None:
    server.break_copies()
    ledger = server.spool.ledger if spool_is_there else server.own_ledger
    if not spool_is_there:
        server.spool.folder.rename(server.data.with_name("away"))
    for ago_s, code in ((ATTEMPTS_APART_S - 5, 0), (ATTEMPTS_APART_S + COPY_S_DEFAULT - 5, 0), (1000, 1)):
        server.fail(ledger, HOLD_S, ago_s=ago_s)
        assert server.archive("--hold-bytes", "0")[0] == code, ago_s


def test_the_limits_themselves_are_reached(server: ArchiveCase) -> None:
    held = server.segment.stat().st_size
    assert server.job(hold_bytes=held).is_over(HOLD_S)
    assert not server.job(hold_bytes=held).is_over(HOLD_S - 0.1)
    assert not server.job(hold_bytes=held + 1).is_over(10 * UNLISTED_HOLDS * HOLD_S)
    (server.data / "pg_wal" / "archive_status" / f"{NAME}.ready").unlink()
    (server.data / "pg_wal" / "archive_status").rmdir()
    assert server.job(hold_bytes=1).is_over(UNLISTED_HOLDS * HOLD_S)
    assert not server.job(hold_bytes=1).is_over(UNLISTED_HOLDS * HOLD_S - 0.1)


def test_a_copy_gets_a_deadline_by_its_size_only_where_files_queue_up(server: ArchiveCase) -> None:
    def copy_s(byte_count: int, **more: float) -> float:
        os.truncate(server.segment, byte_count)
        return archive_command.copy_deadline_s(server.job(**more))  # type: ignore[arg-type]

    assert copy_s(BACKLOG_BYTES_PER_S) == COPY_S_DEFAULT
    server.age(HOLD_S + 1)
    assert copy_s(BACKLOG_BYTES_PER_S) == BACKLOG_COPY_S + 1
    assert copy_s(BACKLOG_BYTES_PER_S, copy_s=0.5) == 0.5
    assert copy_s(BACKLOG_BYTES_PER_S, hold_bytes=1 << 40) == COPY_S_DEFAULT


def test_a_clock_that_was_set_back_by_a_step_counts_as_an_unbounded_wait(
    server: ArchiveCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.age(0)
    ready_s = (server.data / "pg_wal" / "archive_status" / f"{NAME}.ready").stat().st_mtime
    found = []
    for now_s in (ready_s + 5, ready_s - CLOCK_STEP_S / 2, ready_s - CLOCK_STEP_S):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        found.append(archive_command.waited_s(server.job()))
    assert found == [5, -CLOCK_STEP_S / 2, math.inf]


def test_a_probe_archives_nothing_and_reports_if_the_spool_can_be_written(server: ArchiveCase) -> None:
    before = sorted(server.spool.folder.iterdir())
    assert server.run("--probe") == (0, "")
    assert sorted(server.spool.folder.iterdir()) == before
    server.spool.folder.rename(server.data.with_name("away"))
    code, said = server.run("--probe")
    assert code == 1
    assert str(server.spool.folder) in said


@pytest.mark.parametrize("given", [[], [f"pg_wal/{NAME}"]], ids=["neither", "no name"])
def test_without_path_and_name_the_command_prints_its_usage(server: ArchiveCase, given: list[str]) -> None:
    code, said = server.run(*given)
    assert code == 2
    assert "must end with %p %f" in said


def test_a_host_that_cannot_start_another_process_keeps_wal_no_longer_than_other_failures(
    server: ArchiveCase,
) -> None:
    program = """
import errno, os
from tidemark_archiver.archive_command import main
def none_left(): raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.fork = none_left
main()
"""
    code, said = server.archive("--hold-bytes", "0", program=program)
    assert code == 1
    assert "Resource temporarily unavailable" in said
    server.fail(server.own_ledger, HOLD_S)
    assert server.archive("--hold-bytes", "0", program=program)[0] == 0


@pytest.mark.feature("I25")
def test_a_data_folder_that_cannot_be_locked_does_not_keep_wal(server: ArchiveCase) -> None:
    program = """
import errno, fcntl, os
from tidemark_archiver.archive_command import main
def none_here(descriptor, kind): raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
fcntl.flock = none_here
main()
"""
    server.age(HOLD_S + 1)
    assert server.archive(program=program)[0] == 0
    assert (server.spool.folder / NAME).read_bytes() == server.segment.read_bytes()


def hang(server: ArchiveCase) -> None:
    """Let every copy into the spool block for ever."""
    sentinel = server.spool.folder / ".tidemark"
    sentinel.unlink()
    os.mkfifo(sentinel)


@pytest.mark.feature("I25")
def test_each_attempt_repeats_a_copy_that_hangs_until_the_file_is_given_up(server: ArchiveCase) -> None:
    hang(server)
    with HoleLedger.open(server.spool.ledger, writable=True):  # the command waits for it, too
        for _ in range(2):
            code, said = server.archive("--copy-s", "0.2")
            assert code == 1
            assert f"{NAME}: the copy took longer than 0 s" in said, "it was tried"


@pytest.mark.feature("I25")
def test_a_host_that_cannot_start_a_background_process_keeps_no_wal(server: ArchiveCase) -> None:
    program = """
import errno, os
from tidemark_archiver.archive_command import main
fork, left = os.fork, [1, 1]
def few_left():
    if not left: raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    left.pop()
    return fork()
os.fork = few_left
main()
"""
    hang(server)
    with HoleLedger.open(server.spool.ledger, writable=True):
        server.fail(server.own_ledger, HOLD_S)
        assert server.archive("--hold-bytes", "0", "--copy-s", "0.2", program=program)[0] == 0
    assert server.own_holes() == [NAME]


@pytest.mark.feature("I25")
def test_files_do_not_queue_up_behind_a_file_system_that_hangs(server: ArchiveCase) -> None:
    """However much WAL the node writes: the hang is detected once, and not for each file again."""
    sentinel = server.spool.folder / ".tidemark"
    content = sentinel.read_text()
    sentinel.unlink()
    os.mkfifo(sentinel)  # opening it blocks for ever
    with HoleLedger.open(server.spool.ledger, writable=True):  # opening it waits, too
        server.age(HOLD_S + 1)
        server.fail(server.own_ledger, HOLD_S)
        code, said = server.archive("--hold-bytes", "0")
        assert code == 0
        assert "the copy took longer than 2 s" in said
        for _ in range(5):  # none of them starts a second copy
            code, said = server.archive("--hold-bytes", "0")
            assert code == 0
            assert f"{server.own_ledger.name} of the data folder: an earlier copy into the spool" in said
        assert server.archive()[0] == 1, "with little WAL held it is tried again"
    fifo = sentinel.rename(sentinel.with_suffix(".fifo"))
    sentinel.write_text(content)
    fifo.write_text(content)  # the waiting process continues
    deadline = time.monotonic() + RUN_S
    while server.archive()[0] != 0:
        assert time.monotonic() < deadline
    assert (server.spool.folder / NAME).read_bytes() == server.segment.read_bytes()
