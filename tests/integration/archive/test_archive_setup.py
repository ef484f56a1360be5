"""`cdcctl init` and the archive: an empty folder becomes a spool, one with WAL is foreign or refused."""

import grp
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.cdcctl import Done, cdcctl, contents, refused, succeeded
from tests.support.servers.archiving import ArchivingServer, archive_script, segment_bytes
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.io.archive.archive_setup import archive_setting
from tidemark.io.archive.spool import Spool
from tidemark.io.process.config import ArchiveConfig, Config
from tidemark.model.errors import ExitCode

NAME = "000000010000000000000001"


@pytest.fixture
def traversable() -> Iterator[Path]:
    """Create a folder that the server's user can read."""
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def setting(done: Done) -> str:
    (line,) = [line for line in done.err.splitlines() if line.startswith("archive_command")]
    return line


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_archive_command_that_init_prints_fills_a_spool_that_a_group_shares(traversable: Path) -> None:
    with new_cluster(15, {"archive_mode": "on"}, initdb=["--wal-segsize=1"]) as node:
        group = grp.getgrgid(node.folder.stat().st_gid).gr_name
        folder = traversable / "it's 100% ours"
        options = ("--state", traversable / "state", "--dsn", node.dsn(), "--archive", folder)
        chosen = {"TIDEMARK_CAPTURE__GROUP": group, "TIDEMARK_ARCHIVE__PROGRAM": str(archive_script())}
        done = succeeded(cdcctl("init", *options, **chosen))
        assert mode(folder) == 0o2770
        assert "can write there and run the program" in done.err
        assert "archive_mode = on" in done.err
        line = setting(done)
        assert "--hold-s 60 --hold-bytes 4294967296 --free-bytes-min 1073741824 %p %f'" in line
        assert line.startswith(f"archive_command = '{archive_script()} --spool ")
        with (node.data / "postgresql.conf").open("a") as conf:
            conf.write(line + "\n")
        node.reload()
        archive = ArchivingServer(node, Spool(folder))
        (name,) = archive.switch()
        archive.wait_until_archived()
        archived = folder / name
        assert (mode(archived), archived.group()) == (0o640, group)
        again = succeeded(cdcctl("init", *options, **chosen))
        assert setting(again) == line


@pytest.mark.parametrize("there", ["missing", "empty", "mounted"])
def test_a_vacant_folder_becomes_a_spool_and_stays_one(cluster: Cluster, tmp_path: Path, there: str) -> None:
    folder, state = tmp_path / "spool", tmp_path / "state"
    if there != "missing":
        folder.mkdir(mode=0o700)
    if there == "mounted":
        (folder / "lost+found").mkdir()
    options = ("--state", state, "--dsn", cluster.dsn(), "--archive", folder)
    by_us = {"TIDEMARK_ARCHIVE__FILLED_BY": "pg_receivewal"}
    succeeded(cdcctl("init", *options, **by_us))
    assert Spool(folder).is_ours
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir() if path.is_file()} == {0o600}
    before = contents(folder)
    key = (state / "marker.key").read_text()
    done = succeeded(cdcctl("init", *options, **by_us))
    assert contents(folder) == before
    assert (state / "marker.key").read_text() == key
    assert key.strip() not in done.err + done.out.decode()
    refused(cdcctl("init", *options[:-1], tmp_path / "other", **by_us), ExitCode.CONFIG, "--archive")


def test_a_foreign_archive_is_read_and_never_changed(cluster: Cluster, tmp_path: Path) -> None:
    folder, state = tmp_path / "backup", tmp_path / "state"
    folder.mkdir()
    (row,) = cluster.sql("SELECT system_identifier FROM pg_control_system()")
    (folder / NAME).write_bytes(segment_bytes(int(str(row[0]))))
    before = contents(folder)
    done = succeeded(cdcctl("init", "--state", state, "--dsn", cluster.dsn(), "--archive", folder))
    assert f"{folder} is filled by another program" in done.err
    assert "archive_command" not in done.err
    assert contents(folder) == before


def test_a_folder_of_another_cluster_or_without_wal_is_refused_before_anything_is_created(
    cluster: Cluster, tmp_path: Path
) -> None:
    foreign, spool, other = tmp_path / "foreign", tmp_path / "spool", tmp_path / "other"
    for folder in (foreign, other):
        folder.mkdir()
    (foreign / NAME).write_bytes(segment_bytes(5))
    Spool(spool).create(5)
    (other / "letter.txt").write_text("mine")
    for folder, reported in (
        (foreign, f"{foreign} contains WAL of cluster 5"),
        (spool, f"{spool} is the spool of cluster 5"),
        (other, f"{other} contains no WAL segment"),
        (other / "letter.txt", f"{other}/letter.txt"),
    ):
        options = ("--state", tmp_path / "state", "--dsn", cluster.dsn(), "--archive", folder)
        refused(cdcctl("init", *options), ExitCode.CONFIG, reported)
        assert not (tmp_path / "state").exists()


def test_the_setting_quotes_for_shell_server_and_configuration_file() -> None:
    line = archive_setting(
        Config(archive=ArchiveConfig(folder="/a b/it's/50%", hold_s=1.5, hold_bytes=9, free_bytes_min=7))
    )
    assert line.endswith("""--spool ''/a b/it''"''"''s/50%%'' --hold-s 1.5 --hold-bytes 9 --free-bytes-min 7 %p %f'""")
