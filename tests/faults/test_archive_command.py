"""archive_command on real servers: WAL arrives whole; whatever happens to the spool, the server keeps no WAL for us."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.archiving import ArchivingServer, archiving
from tests.support.servers.small_disk import needs_mount, small_disk
from tidemark.io.archive.hole_ledger import HoleLedger

HOLD_S = 1.5  # the server tries three times, a second apart, then waits for a minute or the next segment


@pytest.fixture
def traversable() -> Iterator[Path]:
    """Create a folder that the server's user can read."""
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def holes(archive: ArchivingServer) -> list[str]:
    with HoleLedger.open(archive.spool.ledger, writable=False) as ledger:
        return [hole.name for hole in ledger.holes()]


def archived(archive: ArchivingServer) -> set[str]:
    return {path.name for path in archive.spool.folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.feature("I25")
def test_each_segment_arrives_as_the_server_wrote_it(traversable: Path) -> None:
    with archiving(traversable) as archive:
        archive.node.configure(wal_keep_size="100MB")
        names = archive.switch(5)
        archive.wait_until_archived()
        for name in names:
            assert (archive.spool.folder / name).read_bytes() == (archive.node.data / "pg_wal" / name).read_bytes()
        (row,) = archive.node.sql("SELECT failed_count FROM pg_stat_archiver")
        assert row == (0,)
        assert holes(archive) == []


@needs_mount
@pytest.mark.feature("I25")
@pytest.mark.feature("I27")
def test_segments_are_kept_on_a_full_disk_for_a_while_and_then_given_up_one_by_one(traversable: Path) -> None:
    with (
        small_disk(traversable / "disk", 16 << 20) as disk,
        archiving(disk.root, hold_s=HOLD_S, hold_bytes=0, free_bytes_min=0) as archive,
    ):
        before = archive.switch(2)
        archive.wait_until_archived()
        disk.fill()
        lost = archive.switch()
        archive.wait_for(lambda: "exit code 1" in archive.node.log)  # within hold_s; later it gives up and returns 0
        archive.wait_until_archived()
        lost += archive.switch(2)
        archive.wait_until_archived()
        assert "bytes free, less than archive.free_bytes_min" in archive.node.log
        disk.empty()
        after = archive.switch(2)
        archive.wait_until_archived()
        assert holes(archive) == lost
        assert {*before, *after} <= archived(archive)
        assert not archived(archive) & set(lost)


@pytest.mark.feature("I25")
def test_a_file_system_that_hangs_is_left_alone(traversable: Path) -> None:
    with archiving(traversable, hold_s=HOLD_S, hold_bytes=0, copy_s=0.5) as archive:
        archive.switch()
        archive.wait_until_archived()
        sentinel = archive.spool.folder / ".tidemark"
        content = sentinel.read_text()
        sentinel.unlink()
        os.mkfifo(sentinel, 0o666)  # opening it blocks for ever
        lost = archive.switch(3)
        archive.wait_until_archived()
        assert holes(archive) == lost
        sentinel.unlink()
        sentinel.write_text(content)
        sentinel.chmod(0o644)
        (name,) = archive.switch()
        archive.wait_until_archived()
        assert name in archived(archive)


@pytest.mark.feature("I25")
def test_holes_of_a_spool_that_is_gone_are_recorded_in_it_when_it_is_back(traversable: Path) -> None:
    with archiving(traversable, hold_s=HOLD_S, hold_bytes=0) as archive:
        away = archive.spool.folder.rename(traversable / "away")
        lost = archive.switch(2)
        archive.wait_until_archived()
        assert f"{lost[0]} is NOT archived and recorded only in tidemark-archive-" in archive.node.log
        assert not archive.spool.folder.exists()
        away.rename(archive.spool.folder)
        (name,) = archive.switch()
        archive.wait_until_archived()
        assert name in archived(archive)
        assert holes(archive) == lost
        assert not list(archive.node.data.glob("tidemark-archive-*"))
