"""The first copy from a base backup: replicas equal the source, and the node is not asked for a row."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.lakes.lakes import feed_by_hand, rows_by_key
from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.failover import Archiver
from tests.support.servers.backup_seeds import archive_of, archiving
from tests.support.servers.backups import by_copy
from tests.support.servers.postgres import Cluster, sql
from tests.support.workloads.page_load import page_load
from tidemark.io.process.config import SelectConfig
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.wire.state.copy_progress import CopyPhase

SCRIPTS = 100  # of the load before the backup, during it, and after it
KEYED = {"hot": "id, note, n", "big": "id, main, packed, extern, n", "pets": "id, owner, name", "parts_low": "id, note"}
Replicas = Mapping[str, Mapping[object, list[object]]]


def source(node: Cluster) -> Replicas:
    """Return the rows of the tables with keys."""
    rows = {table: node.sql(f"SELECT {columns} FROM {table}", "app") for table, columns in KEYED.items()}
    return {table: {row[0]: list(row[1:]) for row in found} for table, found in rows.items()}


def replicas(lake: Path) -> Replicas:
    """Return the same of a lake, without columns that DDL has added."""
    return {
        table: {key: values[: columns.count(",")] for key, values in rows_by_key(lake, table).items()}
        for table, columns in KEYED.items()
    }


@pytest.fixture
def node(new_cluster: NewCluster) -> Cluster:
    made = archiving(new_cluster, 15, max_prepared_transactions=20)
    made.sql("CREATE DATABASE app")
    return made


def back_up(node: Cluster, number: int) -> Path:
    """Change tables before, during and after a backup; return it. Its WAL is in pg_wal."""
    backup = node.folder / "backup"
    with page_load(node, "app", number) as load:
        load.wait_for_more(SCRIPTS)
        by_copy(node, backup, number, lambda: load.wait_for_more(SCRIPTS))
        load.wait_for_more(SCRIPTS)
    for (gid,) in node.sql("SELECT gid FROM pg_prepared_xacts", "app"):
        node.sql(f"COMMIT PREPARED '{gid}'", "app")
    return backup


def delivered_lsn(state: Sidecar) -> Lsn:
    with StateStore.open(state.folder) as store:
        marks = store.marks()
    assert marks.delivered is not None
    return marks.delivered.pointer.position.commit_lsn


@pytest.mark.feature("N18")
def test_rows_from_a_backup_and_changes_from_the_archive_make_replicas_while_the_node_is_down(
    node: Cluster, tmp_path: Path
) -> None:
    backup = back_up(node, 3)
    node.sql("CHECKPOINT")  # logs RUNNING_XACTS
    node.sql("UPDATE hot SET note = 'later'; DELETE FROM pets WHERE id < 20", "app")
    expected = source(node)
    ((emitted,),) = node.sql("SELECT pg_logical_emit_message(true, 'last', '')::text", "app")
    last = parse_lsn(str(emitted))
    archive_of(node)
    node.stop()
    config = tmp_path / "tidemark.toml"
    config.write_text(
        f'[capture]\ndsn = "{node.dsn("app")}"\n[select]\ndatabases = ["app"]\n[metrics]\nenabled = false\n'
        f'[archive]\nfolder = "{node.data}/archived"\n[copy]\nbase_backup = "{backup}"\n'
    )
    succeeded(cdcctl("init", "--state", tmp_path / "state", "--config", config, "--from-backup", backup))
    options = {"TIDEMARK_COPY__BASE_BACKUP": str(backup), "TIDEMARK_ARCHIVE__FOLDER": f"{node.data}/archived"}
    archiver = Archiver(node, "app", tmp_path, copy=True, **options)
    try:
        archiver.start()
        archiver.wait_until(lambda: delivered_lsn(archiver) > last, "the end of the archive")
        assert archiver.stop() == ExitCode.SUCCESS
    finally:
        archiver.close()
    feed_by_hand(archiver.folder, tmp_path / "lake", "lake")
    assert replicas(tmp_path / "lake") == expected
    assert not (archiver.folder.root / "copy-pages").exists()


def select_less_sidecar(node: Cluster, root: Path, backup: Path, **options: str) -> Sidecar:
    """Return a sidecar whose role may read no table of the database."""
    node.sql("CREATE ROLE reader LOGIN REPLICATION")
    sidecar = Sidecar(
        node,
        "app",
        root,
        copy=True,
        TIDEMARK_CAPTURE__DSN=node.dsn("app", "reader"),
        TIDEMARK_COPY__BASE_BACKUP=str(backup),
        TIDEMARK_ARCHIVE__FOLDER=f"{node.data}/archived",
        **options,
    )
    sidecar.init()
    return sidecar


def test_a_running_capture_copies_from_a_backup_by_a_role_that_may_read_no_table(node: Cluster, tmp_path: Path) -> None:
    """The state was created from the node after the backup: the rows are those at a later place of WAL."""
    backup = back_up(node, 4)
    again = "CREATE TABLE again (id int PRIMARY KEY); INSERT INTO again VALUES ({})"
    node.sql(again.format(1), "app")
    node.sql("SELECT pg_switch_wal()")  # the capture begins in a segment that is not archived
    node.configure(log_statement="all")
    sidecar = select_less_sidecar(node, tmp_path, backup)
    with node.connect("app", autocommit=False) as lasting:
        sql(lasting, "UPDATE hot SET note = 'open during the copy'; DELETE FROM pets WHERE id < 40")
        try:
            sidecar.start(wait=False)
            sidecar.wait_for_event("first copy from a backup waits")
            for statement in ("INSERT INTO again VALUES (2)", "DROP TABLE again", again.format(3)):
                node.sql(statement, "app")
            node.sql("CHECKPOINT")
            node.sql("SELECT pg_switch_wal()")
            sidecar.wait_for_event("first copy done")
            lasting.commit()
            node.sql("UPDATE big SET main = 'later' WHERE id % 3 = 0; CREATE TABLE made (id int PRIMARY KEY)", "app")
            node.sql("INSERT INTO made VALUES (1); DELETE FROM parts_low WHERE id < 5", "app")
            sidecar.catch_up()
        finally:
            sidecar.close()
    read = [line for line in node.log.splitlines() if " COPY (" in line and "public" in line]
    feed_by_hand(sidecar.folder, tmp_path / "lake", "lake")
    assert replicas(tmp_path / "lake") == source(node)
    assert rows_by_key(tmp_path / "lake", "made") == {1: []}
    assert rows_by_key(tmp_path / "lake", "again") == {3: []}
    assert len(list((tmp_path / "lake").glob("*/public/again*"))) == 1, "nothing of the one that was gone before"
    assert read == []


def test_a_copy_from_a_backup_that_was_killed_begins_again_and_no_row_is_lost_or_repeated(
    node: Cluster, tmp_path: Path
) -> None:
    sidecar = slow_copy(node, tmp_path, back_up(node, 5))
    try:
        for generation in range(1, 4):
            sidecar.start(wait=False)
            sidecar.wait_until(partial(is_within, sidecar, generation), "a part of the rows")
            sidecar.kill()
        (sidecar.folder.root / "copy-pages" / "of a killed process").touch()
        node.sql("UPDATE hot SET note = 'after the kills' WHERE id % 2 = 0", "app")
        sidecar.start()
        sidecar.catch_up()
    finally:
        sidecar.close()
    feed_by_hand(sidecar.folder, tmp_path / "lake", "lake")
    assert replicas(tmp_path / "lake") == source(node)


def test_a_copy_that_continues_from_a_later_backup_expects_no_table_that_was_dropped_before_it(
    node: Cluster, tmp_path: Path
) -> None:
    sidecar = killed_in_copy(node, tmp_path)
    try:
        planned = open_tables(sidecar)
        ((dropped, name),) = node.sql(
            f"SELECT oid::int, relname FROM pg_class WHERE oid = {max(planned)} AND NOT relispartition", "app"
        )
        node.sql(f"DROP TABLE {name}", "app")
        later = node.folder / "later"
        by_copy(node, later, 6)
        node.sql("CHECKPOINT")
        node.sql("SELECT pg_switch_wal()")
        sidecar.options["TIDEMARK_COPY__BASE_BACKUP"] = str(later)
        sidecar.start(wait=False)
        sidecar.wait_for_event("first copy done")
        assert dropped in planned
        assert open_tables(sidecar) == set()
        sidecar.catch_up()
    finally:
        sidecar.close()


def test_a_copy_from_a_backup_that_continues_with_a_selection_of_fewer_tables_expects_the_others_no_longer(
    node: Cluster, tmp_path: Path
) -> None:
    sidecar = killed_in_copy(node, tmp_path)
    try:
        excluded = max(open_tables(sidecar))
        ((name,),) = node.sql(f"SELECT relname FROM pg_class WHERE oid = {excluded}", "app")
        sidecar.options["TIDEMARK_SELECT__EXCLUDE_TABLES"] = f"public.{name}"
        sidecar.start(wait=False)
        sidecar.wait_for_event("first copy done")
        assert open_tables(sidecar) == set()
        with StateStore.open(sidecar.folder, read_only=True) as store:
            assert {copy.phase for (_, oid), copy in store.view().copies.items() if oid == excluded} == {CopyPhase.LEFT}
        sidecar.catch_up()
    finally:
        sidecar.close()


def slow_copy(node: Cluster, tmp_path: Path, backup: Path) -> Sidecar:
    """Return a sidecar, not started, whose copy from a backup has many small groups, so that it can be killed in it."""
    node.sql("INSERT INTO hot SELECT g, 'more', 0 FROM generate_series(10000, 29999) g", "app")
    sidecar = select_less_sidecar(node, tmp_path, backup, TIDEMARK_DELIVER__GROUP_ROWS_MAX="20")
    node.sql("CHECKPOINT")
    node.sql("SELECT pg_switch_wal()")
    return sidecar


def killed_in_copy(node: Cluster, tmp_path: Path) -> Sidecar:
    """Return a sidecar that was killed when a part of the rows was copied from a backup."""
    sidecar = slow_copy(node, tmp_path, back_up(node, 6))
    try:
        sidecar.start(wait=False)
        sidecar.wait_until(partial(is_within, sidecar, 1), "a part of the rows")
        sidecar.kill()
    except BaseException:
        sidecar.close()
        raise
    return sidecar


def open_tables(sidecar: Sidecar) -> set[int]:
    """Return the OIDs of the tables whose copies are planned and not complete."""
    with StateStore.open(sidecar.folder) as store:
        return {relation for (_, relation), copy in store.view().copies.items() if copy.is_open}


def is_within(sidecar: Sidecar, generation: int) -> bool:
    """Return whether a table is being copied for that time."""
    with StateStore.open(sidecar.folder) as store:
        copies = store.view().copies.values()
    return any(
        copy.phase is CopyPhase.COPYING and copy.row_count > 0 and copy.generation == generation for copy in copies
    )


def test_a_backup_of_another_cluster_or_without_a_captured_database_ends_the_process(
    node: Cluster, new_cluster: NewCluster, tmp_path: Path
) -> None:
    backup = node.folder / "backup"
    by_copy(node, backup, 1)
    node.sql("CREATE DATABASE later")
    archive_of(node)
    options = {"TIDEMARK_COPY__BASE_BACKUP": str(backup), "TIDEMARK_ARCHIVE__FOLDER": f"{node.data}/archived"}
    both = {"TIDEMARK_SELECT__DATABASES": "later,postgres"}
    too_old = Sidecar(node, "later", tmp_path / "later", copy=True, **options, **both)
    too_old.config = replace(too_old.config, select=SelectConfig(databases=("later", "postgres")))
    other = new_cluster(15)
    foreign = Sidecar(other, "postgres", tmp_path / "foreign", copy=True, **options)
    for sidecar, text in ((too_old, "does not have the captured databases later"), (foreign, "is of system")):
        sidecar.folder.root.parent.mkdir()
        sidecar.init()
        sidecar.refuses(ExitCode.CONFIG, text)
