"""Missing, damaged or foreign WAL: named with its LSN or file, and once it is restored no change is missing."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import TimelineId, format_lsn, parse_lsn
from tidemark.wal.segments import segment_name

pytestmark = pytest.mark.usefixtures("forked")

MB = 1 << 20
FOREIGN_MAGIC = b"\x06\xd1"  # XLOG_PAGE_MAGIC of PostgreSQL 13


@pytest.fixture
def node() -> Iterator[Cluster]:
    small: dict[str, str | int] = {"wal_keep_size": 0, "max_wal_size": "2MB", "min_wal_size": "2MB"}
    with new_cluster(15, small, initdb=["--wal-segsize=1"]) as made:
        made.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        yield made


def segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if len(path.name) == 24)


def test_wal_that_the_node_removed_while_the_sidecar_was_down_is_a_gap_until_it_is_restored(
    node: Cluster, sidecar: Sidecar, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for number in range(2, 8):
        node.sql(f"INSERT INTO account VALUES ({number}, 'while down')")
        node.sql("SELECT pg_switch_wal()")
        for path in segments(node.data / "pg_wal"):
            shutil.copy2(path, kept)  # as an archive does
        node.sql("CHECKPOINT")
    reported = sidecar.refuses(ExitCode.GAP, "already been removed", "streaming timeline 1 at 0/")
    assert "wal_keep_size" in str(reported["hint"])
    node.stop()
    owner = node.data.stat()
    for path in segments(kept):
        back = node.data / "pg_wal" / path.name
        if not back.exists():
            shutil.copy2(path, back)
            shutil.chown(back, owner.st_uid, owner.st_gid)
    node.configure(reload=False, wal_keep_size="1GB")
    node.start()
    sidecar.start()
    assert set(replayed(change_log(sidecar.catch_up(), "account"))) == set(range(1, 8))


def test_wal_that_the_node_removed_while_the_sidecar_fell_behind_is_a_gap_and_not_damage(
    node: Cluster, sidecar: Sidecar
) -> None:
    sidecar.start()
    sidecar.catch_up()
    assert sidecar.process is not None
    sidecar.process.send_signal(signal.SIGSTOP)
    for _ in range(3):  # unread data stays in the server, which has the segment open
        node.sql(f"SELECT pg_logical_emit_message(false, 'x', repeat('x', {MB})), pg_switch_wal()")
        node.sql("CHECKPOINT")
    sidecar.process.send_signal(signal.SIGCONT)
    reported = sidecar.ended(ExitCode.GAP, "already been removed", "streaming timeline 1 at 0/")
    assert "wal_keep_size" in str(reported["hint"])


def flip(path: Path, offset: int) -> None:
    """Flip one byte, or restore it. NB: in place, since the server continues to write into the file."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def test_wal_that_is_damaged_on_the_node_stops_the_sidecar_at_its_lsn_until_it_is_repaired(
    node: Cluster, sidecar: Sidecar
) -> None:
    at = parse_lsn(node.flush_lsn())
    node.sql("INSERT INTO account SELECT n, repeat('x', 100) FROM generate_series(2, 50) n")
    path = node.data / "pg_wal" / segment_name(TimelineId(1), at // MB, MB)
    flip(path, at % MB + 2000)
    reported = sidecar.refuses(ExitCode.CORRUPT_WAL, format_lsn(at)[:3])
    assert "CRC" in str(reported["error"]) or "invalid" in str(reported["error"])
    flip(path, at % MB + 2000)
    sidecar.start()
    assert set(replayed(change_log(sidecar.catch_up(), "account"))) == set(range(1, 51))


def test_damaged_archives_are_named_by_file_and_decode_completely_once_they_are_repaired(
    node: Cluster, tmp_path: Path
) -> None:
    state, archive = tmp_path / "state", tmp_path / "archive"
    node.configure(wal_keep_size="1GB")
    succeeded(cdcctl("init", "--state", state, "--dsn", node.dsn()))
    for number in range(4):
        node.sql(f"INSERT INTO account VALUES ({number}, 'x'); SELECT pg_switch_wal()")
    node.sql("INSERT INTO account VALUES (9, 'x')")
    node.stop()
    shutil.copytree(node.data / "pg_wal", archive, ignore=shutil.ignore_patterns("archive_status"))
    arguments = ("decode", "--state", state, "--archive", archive, "--format", "test_decoding")
    expected = succeeded(cdcctl(*arguments)).out
    assert expected.count(b"INSERT") == 5
    path = segments(archive)[-4]
    whole = path.read_bytes()
    for code, said, spoilt in (
        (ExitCode.CORRUPT_WAL, "first page is damaged", FOREIGN_MAGIC + whole[2:]),
        (ExitCode.CORRUPT_WAL, "is truncated", whole[:5000]),
        (ExitCode.CORRUPT_WAL, "invalid WAL at 0/", whole[:60] + b"\xff" * 20 + whole[80:]),
        (ExitCode.GAP, "WAL from 0/", None),
    ):
        path.unlink()
        if spoilt is not None:
            path.write_bytes(spoilt)
        done = cdcctl(*arguments)
        assert done.code == code, done.err
        assert said in done.err
        assert (path.name if spoilt is not None else str(archive)) in done.err
        path.write_bytes(whole)
    done = succeeded(cdcctl(*arguments))
    assert done.out == expected
    assert "WAL ends here: invalid WAL at 0/" in done.err  # the unused rest, which looks the same as damage
    for foreign in segments(archive):
        foreign.write_bytes(FOREIGN_MAGIC + foreign.read_bytes()[2:])
    refused(cdcctl(*arguments), ExitCode.NODE_UNFIT, str(archive), "D106")
