"""`cdcctl replay --base-backup`: the rows of a table at a moment, without a server, a state or a lake.

The oracle is a server that recovers from the same backup to the same time.
"""

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pyspark_tidemark.backup_replay import replay_from_backup
from tests.conftest import NewCluster
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.backup_seeds import archive_of, archiving
from tests.support.servers.backups import by_copy, in_tar_format
from tests.support.servers.postgres import Cluster
from tests.support.servers.recovered_backup import clock, recovered
from tests.support.workloads.page_load import page_load
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, format_lsn, parse_lsn

SCRIPTS = 100  # of the load before the backup, during it, and after it
MOMENTS = int(os.environ.get("TIDEMARK_MOMENTS", "3"))  # scripts/recovery: 20
COLUMNS = {"hot": "id, note, n", "big": "id, main, packed, extern, n", "keyless": "id, note, at", "parts": "id, note"}
Rows = list[tuple[object, ...]]


def rows_of(result: Path, table: str) -> Rows:
    """Return the rows of a result."""
    names = COLUMNS[table].split(", ")
    columns = DeltaTable(str(result)).to_pyarrow_table(columns=names).to_pydict()
    return sorted(zip(*(columns[name] for name in names), strict=True), key=repr)


def rows_at(server: Cluster, table: str) -> Rows:
    """Return the rows of a server, in the form of `rows_of`."""
    return sorted((tuple(row) for row in server.sql(f"SELECT {COLUMNS[table]} FROM {table}", "app")), key=repr)


@dataclass(frozen=True)
class BackedUp:
    """A server that was changed during and after its backup, and the times at which it was."""

    node: Cluster
    backup: Path
    begun: CommitTime
    end_lsn: Lsn
    ended: CommitTime
    last: CommitTime

    @property
    def arguments(self) -> tuple[str | Path, ...]:
        return ("replay", "--base-backup", self.backup, "--archive", self.node.data / "pg_wal")


@pytest.fixture(scope="module")
def backed_up(new_module_cluster: NewCluster) -> BackedUp:
    node = archiving(new_module_cluster, 15, max_prepared_transactions=20)
    node.sql("CREATE DATABASE app")
    backup = node.folder / "backup"
    with page_load(node, "app", 1) as load:
        load.wait_for_more(SCRIPTS)
        begun = clock(node)
        by_copy(node, backup, 1, lambda: load.wait_for_more(SCRIPTS))
        end_lsn, ended = parse_lsn(node.flush_lsn()), clock(node)
        load.wait_for_more(3 * SCRIPTS)
        last = clock(node)
    node.sql("CREATE TABLE later ()", "app")
    archive_of(node)
    return BackedUp(node, backup, begun, end_lsn, ended, last)


@pytest.mark.feature("N17")
def test_a_replay_from_a_backup_equals_point_in_time_recovery_at_random_times(
    backed_up: BackedUp, tmp_path: Path
) -> None:
    chance = random.Random(17)
    times = [CommitTime(us) for us in chance.sample(range(backed_up.ended.us, backed_up.last.us), MOMENTS)]
    for number, at in enumerate(times):
        with recovered(backed_up.node, backed_up.backup, at) as server:
            expected = {table: rows_at(server, table) for table in COLUMNS}
        for table, rows in expected.items():
            to = tmp_path / f"{table}-{number}"
            wal = backed_up.node.data / "pg_wal"
            report = replay_from_backup(backed_up.backup, wal, None, f"app.public.{table}", at=str(at), to=str(to))
            assert rows_of(to, table) == rows, (table, str(at))
            assert report["rows"] == len(rows)


def test_the_command_writes_the_rows_at_an_lsn_and_leaves_nothing_else(backed_up: BackedUp, tmp_path: Path) -> None:
    lsn = parse_lsn(backed_up.node.flush_lsn())
    arguments = (*backed_up.arguments, "--table", "big", "--at", format_lsn(lsn))
    succeeded(cdcctl(*arguments, "--to", tmp_path / "rows", TMPDIR=str(tmp_path)))
    assert rows_of(tmp_path / "rows", "big") == rows_at(backed_up.node, "big")
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    refused(cdcctl(*arguments, "--to", tmp_path / "rows"), ExitCode.CONFIG, "rows exists")


@pytest.mark.feature("N17")
def test_a_moment_before_the_end_of_the_backup_or_after_the_archive_is_refused(
    backed_up: BackedUp, tmp_path: Path
) -> None:
    arguments = (*backed_up.arguments, "--table", "app.public.hot", "--to", tmp_path / "rows", "--at")
    early = f"{backed_up.begun} is before the end of {backed_up.backup}"
    refused(cdcctl(*arguments, str(backed_up.begun)), ExitCode.CONFIG, early)
    late = CommitTime(backed_up.last.us + 3_600_000_000)
    refused(cdcctl(*arguments, str(late)), ExitCode.GAP, f"and contains none after {late}")
    refused(cdcctl(*arguments, "FF/0"), ExitCode.GAP, "before FF/0")
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_named_as_it_was_at_the_moment(backed_up: BackedUp, tmp_path: Path) -> None:
    at = format_lsn(backed_up.end_lsn)
    for name, text in (
        ("app.public.later", "no database has a table app.public.later at"),
        ("app.public.hot_pkey", "no database has a table app.public.hot_pkey at"),
        ("nowhere.public.hot", "no database of"),
    ):
        arguments = (*backed_up.arguments, "--table", name, "--at", at, "--to", tmp_path / "rows")
        refused(cdcctl(*arguments), ExitCode.CONFIG, text)


def test_the_source_of_the_rows_is_a_lake_or_a_backup(tmp_path: Path) -> None:
    arguments = ("replay", "--table", "hot", "--at", "0/1", "--to", tmp_path / "rows")
    refused(cdcctl(*arguments), ExitCode.CONFIG, "--lake or --base-backup")
    refused(cdcctl(*arguments, "--lake", "l", "--base-backup", "b"), ExitCode.CONFIG, "--lake or --base-backup")
    refused(cdcctl(*arguments, "--lake", "l", "--archive", "a"), ExitCode.CONFIG, "--archive requires --base-backup")


def test_a_backup_without_a_file_of_the_table_is_refused(backed_up: BackedUp, tmp_path: Path) -> None:
    ((path,),) = backed_up.node.sql("SELECT pg_relation_filepath('quiet')", "app")
    copy = tmp_path / "backup"
    shutil.copytree(backed_up.backup, copy)
    (copy / str(path)).unlink()
    arguments = (
        "replay",
        "--base-backup",
        copy,
        "--archive",
        backed_up.node.data / "pg_wal",
        "--table",
        "app.public.quiet",
    )
    text = f"{copy} lacks file {str(path).rpartition('/')[2]}"
    refused(cdcctl(*arguments, "--at", format_lsn(backed_up.end_lsn), "--to", tmp_path / "rows"), ExitCode.CONFIG, text)


def test_a_backup_in_tar_format_needs_no_archive_for_a_moment_in_its_own_wal(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    node = archiving(new_cluster, 15)
    node.sql("CREATE TABLE public.big (id int, main text, packed text, extern bytea, n int)")
    node.sql("ALTER TABLE big ALTER extern SET STORAGE EXTERNAL")
    node.sql(
        "INSERT INTO big SELECT g, 'main', repeat('p', 9000), repeat('e', 9000)::bytea, g FROM generate_series(1, 99) g"
    )
    in_tar_format(node, node.folder / "backup", "-X", "fetch", "-z")
    node.sql("DELETE FROM big")
    label = next(line for line in archive_of(node).folder.glob("*.backup"))
    ((stop,),) = [line.split()[3:4] for line in label.read_text().splitlines() if line.startswith("STOP WAL")]
    arguments = (
        "replay",
        "--base-backup",
        node.folder / "backup",
        "--table",
        "big",
        "--at",
        stop,
        "--to",
        tmp_path / "rows",
    )
    succeeded(cdcctl(*arguments))
    assert [row[0] for row in rows_of(tmp_path / "rows", "big")] == sorted(range(1, 100), key=lambda n: repr((n,)))
