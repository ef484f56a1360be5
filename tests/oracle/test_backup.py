"""A seed from a base backup and the archive alone: the server's catalogs at the end of the backup, and later changes.

The oracle is SQL on the live server at that LSN, row by row and TID by TID, and test_decoding from there on.
`TIDEMARK_BACKUP_ROUNDS` makes more backups under load than the one of an ordinary run.
"""

import os
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.oracles.oracle import ServerSide, assert_same_lines
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.backup_seeds import archive_of, archiving, differences, follow, mirror_named
from tests.support.servers.backups import by_copy, by_copy_in, by_program
from tests.support.servers.postgres import Cluster, StopMode, sql
from tests.support.servers.servers import ServerMissing
from tests.support.servers.standby import standby_of, wait_until_replayed
from tests.support.workloads.random_sessions.crew import storm
from tidemark.decode.catalog.seeding.bootstrap import attribute_layout
from tidemark.io.backup.backup import BackupFolder
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.runtime.seed.backup_seeding import seed_from_backup

ROUNDS = int(os.environ.get("TIDEMARK_BACKUP_ROUNDS", "1"))
STATEMENTS = 120  # before the backup begins, and during it


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_backup_copied_file_by_file_under_ddl_gives_the_catalogs_that_sql_shows_at_its_end(
    new_cluster: NewCluster, major: int, number: int
) -> None:
    node = archiving(new_cluster, major)
    for name in ("app", "idle"):
        node.sql(f"CREATE DATABASE {name}")
    backup = node.folder / "backup"
    with (
        storm(node, "app", number, rewrites=0.1) as crew,
        node.connect("app", autocommit=False) as lasting,
        node.connect("app", autocommit=False) as undone,
    ):
        for session, name in ((lasting, "lasting"), (undone, "undone")):
            sql(session, f"CREATE TABLE {name} (id int PRIMARY KEY, note text)")
            sql(session, f"SAVEPOINT a; ALTER TABLE {name} ADD COLUMN more int DEFAULT 7")
        crew.wait_for(STATEMENTS)

        def calm_down() -> None:
            crew.wait_for(2 * STATEMENTS)
            crew.stop()
            node.sql("VACUUM", "app")

        by_copy(node, backup, number, calm_down)
        seed = seed_from_backup(BackupFolder(backup), archive_of(node), lambda _: True)
        for name in (*seed.databases.values(), "template1"):
            assert differences(node, seed, name) == []
        assert set(seed.databases.values()) == {"app", "idle", "postgres"}
        lasting.commit()
        undone.rollback()
    node.sql("ALTER TABLE lasting DROP COLUMN more", "app")
    follow(node, seed)
    assert differences(node, seed, "app") == []
    assert "lasting" in {relation.name for relation in mirror_named(seed, "app").relations()}


def test_catalogs_that_are_rewritten_during_the_backup_are_read_from_their_new_files(
    new_cluster: NewCluster, major: int
) -> None:
    node = archiving(new_cluster, major)
    node.sql("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    node.sql("CREATE TABLE t (a int PRIMARY KEY, m mood)")
    tracked = ("pg_enum", "pg_class", "pg_attribute", "pg_type", "pg_index", "pg_namespace", "pg_database")

    def rewrite() -> None:
        for _ in range(2):
            for catalog in tracked:
                node.sql(f"VACUUM FULL {catalog}")
                node.sql("ALTER TYPE mood ADD VALUE IF NOT EXISTS 'happy'")
                node.sql("CREATE TABLE IF NOT EXISTS later (a mood)")

    by_copy(node, node.folder / "backup", 1, rewrite)
    seed = seed_from_backup(BackupFolder(node.folder / "backup"), archive_of(node), lambda _: True)
    assert differences(node, seed, "postgres") == []


def test_a_half_dropped_database_is_not_in_a_backup(new_cluster: NewCluster, major: int) -> None:
    node = archiving(new_cluster, major)
    node.sql("CREATE DATABASE half")
    node.sql("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'half'")
    ((folder,),) = node.sql("SELECT 'base/' || oid FROM pg_database WHERE datname = 'half'")
    by_copy(node, node.folder / "backup", 1)
    (node.folder / "backup" / folder / "pg_filenode.map").unlink()
    seed = seed_from_backup(BackupFolder(node.folder / "backup"), archive_of(node), lambda _: True)
    assert set(seed.databases.values()) == {"postgres"}


def test_a_catalog_that_was_being_rewritten_when_the_backup_began_is_read_from_its_new_file(
    new_cluster: NewCluster, major: int
) -> None:
    node = archiving(new_cluster, major)
    node.sql("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    with node.connect() as session, node.connect(autocommit=False) as rewriter:
        sql(rewriter, "CLUSTER pg_enum USING pg_enum_oid_index")
        sql(rewriter, "ALTER TYPE mood RENAME VALUE 'ok' TO 'well'")
        by_copy_in(session, node, node.folder / "backup", 1, rewriter.commit)
    seed = seed_from_backup(BackupFolder(node.folder / "backup"), archive_of(node), lambda _: True)
    assert differences(node, seed, "postgres") == []


def test_a_row_that_a_member_of_a_multixact_has_changed_is_seen_as_the_server_sees_it(
    new_cluster: NewCluster, major: int
) -> None:
    """A row of pg_type is locked by one transaction and replaced by another: pg_multixact says by which."""
    node = archiving(new_cluster, major)
    for name in ("kept", "gone", "open"):
        node.sql(f"CREATE DOMAIN {name} AS int")
    changed = "ALTER DOMAIN {0} SET NOT NULL"  # no key of an index changes: the lock does not conflict
    with node.connect(autocommit=False) as holder, node.connect(autocommit=False) as pending:
        sql(holder, "SELECT 1 FROM pg_type WHERE typname IN ('kept', 'gone', 'open') FOR KEY SHARE")
        node.sql(changed.format("gone"))
        with node.connect(autocommit=False) as undoing:
            sql(undoing, changed.format("kept"))
            undoing.rollback()
        sql(pending, changed.format("open"))
        by_copy(node, node.folder / "backup", 1)
        seed = seed_from_backup(BackupFolder(node.folder / "backup"), archive_of(node), lambda _: True)
        assert differences(node, seed, "postgres") == []
        pending.commit()
    follow(node, seed)
    assert differences(node, seed, "postgres") == []


def test_a_backup_of_a_standby_is_followed_to_the_end_in_its_pg_control(new_cluster: NewCluster, major: int) -> None:
    node = archiving(new_cluster, major)
    node.sql("CREATE DATABASE app")
    with standby_of(node) as standby:
        with storm(node, "app", 3) as crew:
            crew.wait_for(STATEMENTS)
            node.sql("CHECKPOINT")
            wait_until_replayed(standby, node)
            by_copy(standby, standby.folder / "backup", 3)
            crew.wait_for(sum(len(session.log) for session in crew.sessions) + STATEMENTS // 2)
        node.sql("CHECKPOINT")
        backup = BackupFolder(standby.folder / "backup")
        assert backup.label.from_standby
        seed = seed_from_backup(backup, archive_of(node), lambda name: name == "app")
    assert seed.lsn >= backup.control.min_recovery_lsn
    follow(node, seed)
    assert differences(node, seed, "app") == []


def test_the_layout_of_pg_attribute_is_the_servers(oracle_cluster: Cluster, major: int) -> None:
    rows = oracle_cluster.sql(
        "SELECT attname::text, attnum, atttypid::int8, attlen, attnotnull FROM pg_attribute"
        " WHERE attrelid = 'pg_attribute'::regclass AND attnum > 0 ORDER BY attnum"
    )
    columns = attribute_layout(major).columns
    assert rows == [(c.name, c.number, c.type_oid, c.length, c.not_null) for c in columns]


@pytest.mark.feature("N04")
def test_a_state_from_a_backup_decodes_the_archive_as_test_decoding_did(
    new_cluster: NewCluster, major: int, tmp_path: Path
) -> None:
    node = archiving(new_cluster, major)
    node.sql("CREATE DATABASE app")
    server = ServerSide(node, "app")
    backup, state = node.folder / "backup", tmp_path / "state"
    with storm(node, "app", 5) as crew:
        crew.wait_for(STATEMENTS)
        try:
            by_program(node, backup)
        except ServerMissing:
            by_copy(node, backup, 5)
        crew.wait_for(sum(len(session.log) for session in crew.sessions) + 2 * STATEMENTS)
    lines = server.lines()
    node.sql("SELECT pg_switch_wal()")
    end = node.flush_lsn()
    node.stop(StopMode.FAST)
    archive = node.data / "archived"
    succeeded(cdcctl("init", "--state", state, "--from-backup", backup, "--archive", archive, "--database", "app"))
    with StateStore.open(StateFolder(state)) as store:
        beginning = store.view().beginning
    assert beginning is not None
    assert list(beginning.databases.values()) == ["app"]
    decoded = succeeded(
        cdcctl("decode", "--state", state, "--archive", archive, "--to", end, "--format", "test_decoding")
    )
    expected = transactions_from(lines, beginning.complete_from)
    assert len(expected) > 20
    assert_same_lines("from a backup", expected, transactions_from(decoded.lines, 0))
    before = format_lsn(Lsn(beginning.lsn - 8))
    refused(
        cdcctl("decode", "--state", state, "--archive", archive, "--from", before),
        ExitCode.STATE,
        f"no catalog base for {before}",
    )


def transactions_from(lines: list[str], first_xid: int) -> list[str]:
    """Return the transactions from `first_xid` on, without messages outside transactions."""
    kept: list[str] = []
    wanted = False
    for line in lines:
        if line.startswith("BEGIN "):
            wanted = int(line.split()[1]) >= first_xid
        if wanted and not line.startswith("message: "):
            kept.append(line)
    return kept
