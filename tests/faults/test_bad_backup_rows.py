"""Rows of a base backup that is damaged, changed while it is read, or of another branch: an error, never fewer rows."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.servers.backup_seeds import archive_of, archiving
from tests.support.servers.backups import by_copy
from tests.support.servers.postgres import Cluster
from tests.support.servers.recovered_backup import recovered, values_of
from tests.support.servers.standby import standby_of, wait_until_replayed
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.backup.backup import open_backup
from tidemark.io.backup.changed_pages import PageCache, TooManyChangedPages
from tidemark.model.lsn import BlockNumber, Lsn, parse_lsn
from tidemark.model.mapping import DEFAULT_MAPPING
from tidemark.model.table_name import TableName
from tidemark.runtime.backup_rows.table_rows import BackedUpRows, rows_of_tables
from tidemark.runtime.replay.offline import ForeignArchive
from tidemark.wal.data_directory import BackupUnusable
from tidemark.wal.heap_page import new_page
from tidemark.wal.versions import PAGE_BYTES

ROWS = 3000
FILLED = (
    "CREATE TABLE {0} (id int, note text); INSERT INTO {0} SELECT n, repeat('n', 50) FROM generate_series(1, 3000) n"
)


@pytest.fixture
def node(new_cluster: NewCluster) -> Cluster:
    made = archiving(new_cluster, 15)
    for name in ("first", "second"):
        made.sql("VACUUM FREEZE")  # so that pg_xact has the status of the rows alone
        made.sql(FILLED.format(name))
    return made


@pytest.fixture
def backup(node: Cluster) -> Path:
    folder = node.folder / "backup"
    by_copy(node, folder, 1)
    return folder


@contextmanager
def opened_rows(
    archive: ArchiveFolder, backup: Path, *names: str, moment: Lsn | None = None, scratch: Path
) -> Iterator[list[BackedUpRows]]:
    folder = scratch / "scratch"
    folder.mkdir()
    wanted = [TableName.parse(f"public.{name}") for name in names]
    with open_backup(backup) as opened:
        yield rows_of_tables(opened, archive, wanted, moment, scratch=folder, types=DEFAULT_MAPPING)


def count(rows: BackedUpRows) -> int:
    return len(values_of(list(rows.batches())))


def file_of(node: Cluster, backup: Path, name: str) -> Path:
    ((path,),) = node.sql(f"SELECT pg_relation_filepath('{name}')")
    return backup / str(path)


def test_a_backup_that_is_deleted_while_it_is_read_is_an_error(node: Cluster, backup: Path, tmp_path: Path) -> None:
    with opened_rows(archive_of(node), backup, "first", "second", scratch=tmp_path) as (first, second):
        assert count(first) == ROWS
        shutil.rmtree(backup)
        with pytest.raises(BackupUnusable, match=r"has 0 pages; it had [1-9]"):
            count(second)


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(node: Cluster, backup: Path, tmp_path: Path) -> None:
    path = file_of(node, backup, "second")
    with opened_rows(archive_of(node), backup, "second", scratch=tmp_path) as (rows,):
        path.write_bytes(path.read_bytes()[: 2 * PAGE_BYTES])
        with pytest.raises(BackupUnusable, match="has 2 pages; it had"):
            count(rows)


def test_a_backup_without_the_status_of_transactions_is_an_error(node: Cluster, backup: Path, tmp_path: Path) -> None:
    shutil.rmtree(backup / "pg_xact")
    with (
        pytest.raises(BackupUnusable, match="page 0 of pg_xact"),
        opened_rows(archive_of(node), backup, "second", scratch=tmp_path) as (rows,),
    ):
        count(rows)


def test_wal_without_images_of_pages_makes_the_backup_unusable(node: Cluster, backup: Path, tmp_path: Path) -> None:
    node.configure(full_page_writes="off")
    node.sql("CHECKPOINT")
    node.sql("UPDATE first SET note = 'changed'")
    moment = parse_lsn(node.flush_lsn())
    node.sql("CREATE TABLE last ()")
    with (
        pytest.raises(BackupUnusable, match="without an image of it before") as refused,
        opened_rows(archive_of(node), backup, "first", moment=moment, scratch=tmp_path),
    ):
        pass
    assert "full_page_writes" in refused.value.hint


def test_the_backup_of_a_standby_on_a_branch_that_a_failover_left_is_refused(node: Cluster, tmp_path: Path) -> None:
    base, wal = node.folder / "base", tmp_path / "wal"
    by_copy(node, base, 1)
    wal.mkdir()
    with standby_of(node, archive_mode="off") as standby:
        node.sql("CHECKPOINT")
        wait_until_replayed(standby, node)
        standby.sql("CHECKPOINT")
        fork = parse_lsn(node.flush_lsn())
        node.sql("INSERT INTO first SELECT n, 'lost' FROM generate_series(1, 3000) n")
        wait_until_replayed(standby, node)
        backup = standby.folder / "backup"
        by_copy(standby, backup, 2)
        with recovered(node, base, fork) as promoted:
            promoted.sql("INSERT INTO second SELECT n, repeat('n', 50) FROM generate_series(1, 100000) n")
            promoted.sql("CHECKPOINT")
            for path in (*node.data.glob("pg_wal/0000*"), *promoted.data.glob("pg_wal/0000*")):
                if path.is_file():
                    shutil.copy(path, wal / path.name)
        (backup / "standby.signal").unlink(missing_ok=True)
        with (
            pytest.raises(ForeignArchive, match=r"has changes of timeline 1 up to .*, where .* is on 2"),
            opened_rows(ArchiveFolder(wal), backup, "first", scratch=tmp_path),
        ):
            pass


def test_the_bound_of_changed_pages_counts_those_that_exist(tmp_path: Path) -> None:
    file = PageCache(tmp_path, changed_bytes_max=10 * PAGE_BYTES).new_file()
    for _ in range(3):
        file.create()
        for block in range(10):
            file.put(BlockNumber(block), new_page())
        file.truncate(6)
        for block in range(6, 10):
            file.put(BlockNumber(block), new_page())
    with pytest.raises(TooManyChangedPages, match="more than 81920 bytes") as refused:
        file.put(BlockNumber(10), new_page())
    assert "copy.spool_bytes" in refused.value.hint
