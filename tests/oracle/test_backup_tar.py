"""Base backups in tar format, and the catalogs of templates in one: the oracle is SQL on the live server."""

import os
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.backup_seeds import archive_of, archiving, differences, follow, mirror_named
from tests.support.servers.backups import by_copy, in_tar_format, packed
from tests.support.servers.postgres import Cluster, StopMode, sql
from tests.support.servers.servers import ServerMissing, server
from tidemark.io.backup.backup import BackupFolder, open_backup
from tidemark.runtime.seed.backup_seeding import seed_from_backup

LOGGED_SINCE = 15  # CREATE DATABASE ... STRATEGY
COMPRESSED_SINCE = 15  # pg_basebackup --compress=METHOD


def has_program(major: int) -> bool:
    """Return whether this machine has pg_basebackup for `major`."""
    try:
        server(major).client("pg_basebackup")
    except ServerMissing:
        return False
    return True


def tablespace(node: Cluster, name: str) -> None:
    folder = node.folder / name
    folder.mkdir()
    owner = node.data.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    node.sql(f"CREATE TABLESPACE {name} LOCATION '{folder}'")


def fill(node: Cluster, database: str, *, rewrite: bool) -> None:
    """Create tables and types, with catalogs in other files than initdb's."""
    with node.connect(database) as session:
        sql(session, "CREATE TYPE mood AS ENUM ('sad', 'ok')")
        sql(session, "CREATE TABLE t (a int PRIMARY KEY, m mood, big text)")
        sql(session, "INSERT INTO t SELECT n, 'ok', repeat(n::text, 500) FROM generate_series(1, 2000) n")
        for catalog in ("pg_class", "pg_attribute", "pg_type", "pg_enum", "pg_database") if rewrite else ():
            sql(session, f"VACUUM FULL {catalog}")


def archives(node: Cluster, folder: Path, options: tuple[str, ...]) -> None:
    """Take a backup as archives, by pg_basebackup if it is installed."""
    if has_program(node.major):
        in_tar_format(node, folder, *options)
    else:
        by_copy(node, node.folder / "copy", 1)
        packed(node.folder / "copy", folder, compressed="-z" in options)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        pytest.param(("-X", "none"), {"base.tar"}, id="plain"),
        pytest.param(("-X", "none", "-z"), {"base.tar.gz"}, id="gzip"),
        pytest.param(("-X", "none", "--compress=server-lz4"), {"base.tar.lz4"}, id="lz4"),
        pytest.param(("-X", "none", "--compress=client-zstd"), {"base.tar.zst"}, id="zstd"),
    ],
)
def test_the_catalogs_are_read_out_of_archives_without_unpacking_them(
    new_cluster: NewCluster, major: int, options: tuple[str, ...], names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--compress" in options[-1] and major != COMPRESSED_SINCE:
        options = ("-X", "none")  # no other major's server here is built with lz4 and zstd
        names = {"base.tar"}
    node = archiving(new_cluster, major)
    spaces = {"aside"} if has_program(major) else set()  # a copy has no tablespaces
    for name in spaces:
        tablespace(node, name)
    node.sql("CREATE DATABASE app")
    node.sql(f"CREATE DATABASE moved TABLESPACE {min(spaces, default='pg_default')}")
    fill(node, "app", rewrite=True)
    fill(node, "moved", rewrite=True)
    folder = node.folder / "backup"
    archives(node, folder, options)
    found = {path.name for path in folder.iterdir() if path.name[0] == "b" and ".tar" in path.name}
    assert found == names
    copied = node.folder / "copied"
    copied.mkdir()
    monkeypatch.setenv("TMPDIR", str(copied))
    monkeypatch.setattr("tempfile.tempdir", None)
    with open_backup(folder) as backup:
        seed = seed_from_backup(backup, archive_of(node), lambda _: True)
        kept = {path.name for path in copied.rglob("*") if path.is_file()}
    assert not list(copied.iterdir())
    user_files = {
        str(row[0]) for row in node.sql("SELECT pg_relation_filenode(oid) FROM pg_class WHERE relname = 't'", "app")
    }
    assert not kept & user_files
    assert "1259" in kept  # template0's
    for name in ("app", "moved", "postgres", "template1"):
        assert differences(node, seed, name) == []
    fill_more = "ALTER TABLE t ADD COLUMN more int DEFAULT 7"
    for name in ("app", "moved"):
        node.sql(fill_more, name)
    follow(node, seed)
    for name in ("app", "moved"):
        assert differences(node, seed, name) == []


def test_a_state_is_created_from_archives_alone_if_they_contain_their_wal(
    new_cluster: NewCluster, major: int, tmp_path: Path
) -> None:
    node = archiving(new_cluster, major)
    fill(node, "postgres", rewrite=False)
    folder = node.folder / "backup"
    if has_program(major):
        in_tar_format(node, folder, "-X", "fetch" if major % 2 else "stream", "-z")
    else:
        by_copy(node, node.folder / "copy", 1)
        node.sql("SELECT pg_switch_wal()")
        (node.folder / "copy" / "pg_wal").mkdir()
        for segment in (node.data / "pg_wal").glob("0000000100*"):
            (node.folder / "copy" / "pg_wal" / segment.name).write_bytes(segment.read_bytes())
        packed(node.folder / "copy", folder)
    node.sql("INSERT INTO t VALUES (3000, 'sad', 'behind the backup')")
    node.sql("SELECT pg_switch_wal()")
    end = node.flush_lsn()
    node.stop(StopMode.FAST)
    state = tmp_path / "state"
    succeeded(cdcctl("init", "--state", state, "--from-backup", folder))
    decoded = succeeded(
        cdcctl(
            "decode", "--state", state, "--archive", node.data / "archived", "--to", end, "--format", "test_decoding"
        )
    )
    rows = [line for line in decoded.lines if line.startswith("table ")]
    assert rows == ["table public.t: INSERT: a[integer]:3000 m[mood]:'sad' big[text]:'behind the backup'"]


@pytest.mark.feature("I37")
def test_databases_that_are_created_behind_a_backup_are_followed_from_their_templates(
    new_cluster: NewCluster, major: int
) -> None:
    node = archiving(new_cluster, major)
    node.sql("CREATE DATABASE golden IS_TEMPLATE true")
    node.sql("CREATE DATABASE late IS_TEMPLATE true")
    for name in ("followed", "unknown"):
        node.sql(f"CREATE DATABASE {name}")
    fill(node, "golden", rewrite=True)
    with node.connect("golden") as session:
        sql(session, "BEGIN; ALTER TABLE t RENAME COLUMN m TO never; ROLLBACK")
    by_copy(node, node.folder / "backup", 1, lambda: node.sql("ALTER DATABASE late RENAME TO later"))
    seed = seed_from_backup(
        BackupFolder(node.folder / "backup"), archive_of(node), "postgres".__eq__, "followed".__eq__
    )
    assert set(seed.databases.values()) == {"postgres"}
    for name in ("later", "unknown"):
        with pytest.raises(KeyError):
            mirror_named(seed, name)
    made = ["followed"]
    node.sql("CREATE TABLE fresh (id int PRIMARY KEY)", "followed")
    for strategy in ("FILE_COPY", "WAL_LOG") if major >= LOGGED_SINCE else ("",):
        reported = strategy and f"STRATEGY {strategy}"
        for template in ("template0", "template1", "golden"):
            made.append(f"of_{template}_{strategy.lower()}")
            node.sql(f"CREATE DATABASE {made[-1]} TEMPLATE {template} {reported}")
            node.sql("CREATE TABLE fresh (id int PRIMARY KEY)", made[-1])
    follow(node, seed)
    for name in made:
        assert differences(node, seed, name) == []
