"""The format `tidemark.archive` with a base backup in place of a state (N07), without Spark."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidemark.archive_source import ArchiveSource
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.backups import by_copy
from tests.support.servers.postgres import StopMode, new_cluster
from tidemark.model.errors import ConfigError, StateError

Row = dict[str, object]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("backup")
    with new_cluster(15, {"wal_keep_size": "1GB"}, initdb=["--wal-segsize=1"]) as cluster:
        cluster.sql("CREATE DATABASE app")
        cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", "app")
        cluster.sql("INSERT INTO account SELECT g, 'before' FROM generate_series(1, 50) g", "app")
        by_copy(cluster, root / "base", seed=1)
        cluster.sql("UPDATE account SET note = 'changed' WHERE id < 20", "app")
        cluster.sql("ALTER TABLE account ADD COLUMN extra int DEFAULT 3", "app")
        cluster.sql("DELETE FROM account WHERE id > 40", "app")
        cluster.sql("SELECT pg_switch_wal()")
        cluster.stop(StopMode.FAST)
        shutil.copytree(cluster.data / "pg_wal", root / "archive", ignore=shutil.ignore_patterns("archive_status"))
    return {"archive": str(root / "archive"), "baseBackup": str(root / "base")}


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for states: their sockets have a limit."""
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        yield Path(folder)


def read(options: dict[str, str]) -> list[Row]:
    source = ArchiveSource({**options, "table": "account"})
    reader = source.reader(source.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.feature("N07")
def test_the_rows_are_those_of_a_state_that_was_made_from_the_backup(folders: dict[str, str], short_path: Path) -> None:
    made, state = short_path / "made", short_path / "state"
    words = ("--from-backup", folders["baseBackup"], "--archive", folders["archive"])
    succeeded(cdcctl("init", "--state", state, *words))
    expected = read({"archive": folders["archive"], "state": str(state)})
    assert [row["_op"] for row in expected].count("d") == 10
    assert read({**folders, "state": str(made)}) == expected
    before = made.stat().st_ino

    assert read({**folders, "state": str(made)}) == expected
    assert made.stat().st_ino == before
    assert made.stat().st_mode & 0o077 == 0
    assert [path.name for path in short_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.feature("N07")
def test_without_a_state_it_is_kept_among_the_temporary_files_of_the_user(
    folders: dict[str, str], short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    rows = read(folders)
    (kept,) = short_path.iterdir()
    (state,) = kept.iterdir()
    assert rows == read({"archive": folders["archive"], "state": str(state)}) == read(folders)
    assert kept.stat().st_mode & 0o077 == 0


def test_a_backup_that_is_none_and_a_place_that_cannot_be_written_are_refused(
    folders: dict[str, str], short_path: Path
) -> None:
    with pytest.raises(ConfigError, match="requires the option state, or baseBackup"):
        read({"archive": folders["archive"]})
    with pytest.raises(ConfigError, match=str(short_path)):
        read({**folders, "baseBackup": str(short_path), "state": str(short_path / "made")})
    (short_path / "file").touch()
    with pytest.raises(StateError, match="cannot be made"):
        read({**folders, "state": str(short_path / "file" / "made")})
    (short_path / "other").mkdir()
    (short_path / "other" / "something").touch()
    with pytest.raises(StateError, match="exists, and is no state"):
        read({**folders, "state": str(short_path / "other")})
