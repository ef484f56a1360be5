"""Rows from the pages of a base backup: those of a server that recovered from the same backup to the same moment.

The oracle is COPY on that server, in physical order. The backup is copied file by file, each page torn anywhere, while
sessions change the tables. `TIDEMARK_BACKUP_ROUNDS` makes more backups under load than the one of an ordinary run.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.conftest import NewCluster
from tests.support.samples.made_samples import TYPES_DDL
from tests.support.samples.type_samples import SAMPLES, SINCE
from tests.support.servers.backup_seeds import archive_of, archiving
from tests.support.servers.backups import by_copy
from tests.support.servers.postgres import Cluster
from tests.support.servers.recovered_backup import clock, copied_rows, recovered, table_names, values_of
from tests.support.servers.standby import standby_of, wait_until_replayed
from tests.support.workloads.page_load import page_load
from tests.support.workloads.random_sessions.crew import storm
from tidemark.io.backup.backup import open_backup
from tidemark.model.commit_time import CommitTime
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.model.mapping import DEFAULT_MAPPING
from tidemark.model.table_name import TableName
from tidemark.runtime.backup_rows.table_rows import rows_of_tables
from tidemark.wal.versions import PAGE_BYTES

SAMPLES_SINCE = 15  # earlier majors do not read some of the values
SEGMENT_BYTES = 4 * PAGE_BYTES  # of the files of a backup that is divided further
ROUNDS = int(os.environ.get("TIDEMARK_BACKUP_ROUNDS", "1"))
SCRIPTS = 150  # of the load before the backup, during it, and between the moments
STATEMENTS = 200  # of definitions before the backup begins, during it, and after it
Moment = Lsn | CommitTime | None


def page_rows(
    node: Cluster, backup: Path, database: str, names: Sequence[str], *, moment: Moment, scratch: Path
) -> dict[str, list[str]]:
    """Return what is read without a server."""
    folder = scratch / f"scratch-{len(list(scratch.iterdir()))}"
    folder.mkdir()
    wanted = [TableName.parse(f"{database}.{name}") for name in names]
    with open_backup(backup) as opened:
        tables = rows_of_tables(opened, archive_of(node), wanted, moment, scratch=folder, types=DEFAULT_MAPPING)
        return {name: values_of(list(rows.batches())) for name, rows in zip(names, tables, strict=True)}


def assert_recovered(
    node: Cluster, backup: Path, database: str, moments: Sequence[Moment], scratch: Path
) -> list[dict[str, list[str]]]:
    """Compare all tables at each moment; return their rows."""
    archive_of(node)
    found = []
    for moment in moments:
        with recovered(node, backup, moment) as server:
            names = table_names(server, database)
            expected = {name: copied_rows(server, database, name) for name in names}
        read = page_rows(node, backup, database, names, moment=moment, scratch=scratch)
        for name in names:
            assert read[name] == expected[name], (name, moment)
        found.append(read)
    return found


@pytest.mark.parametrize("number", range(ROUNDS))
def test_the_rows_at_the_end_of_a_backup_and_later_are_those_of_a_recovered_server(
    new_cluster: NewCluster, major: int, number: int, tmp_path: Path
) -> None:
    node = archiving(new_cluster, major, max_prepared_transactions=20)
    node.sql("CREATE DATABASE app")
    backup = node.folder / "backup"
    moments: list[Moment] = [None]
    with page_load(node, "app", number) as load:
        load.wait_for_more(SCRIPTS)
        by_copy(node, backup, number, lambda: load.wait_for_more(SCRIPTS))
        for _ in range(3):
            load.wait_for_more(SCRIPTS)
            moments += [parse_lsn(node.flush_lsn()), clock(node)]
            node.sql("CHECKPOINT")
        load.wait_for_more(SCRIPTS)
    node.sql("CREATE TABLE last ()")
    found = assert_recovered(node, backup, "app", moments, tmp_path)
    assert len({repr(rows) for rows in found}) > len(moments) // 2
    assert all(any("mmm" in row for row in rows["public.big"]) for rows in found)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_rows_are_read_from_the_files_that_tables_have_after_ddl(
    new_cluster: NewCluster, major: int, number: int, tmp_path: Path
) -> None:
    node = archiving(new_cluster, major)
    node.sql("CREATE DATABASE app")
    backup = node.folder / "backup"
    moments: list[Moment] = [None]
    with storm(node, "app", number, rewrites=0.1) as crew:
        crew.wait_for(STATEMENTS)

        def before_end() -> None:
            crew.wait_for(2 * STATEMENTS)
            node.sql("VACUUM FREEZE", "app")

        by_copy(node, backup, number, before_end)
        crew.wait_for(3 * STATEMENTS)
        moments.append(parse_lsn(node.flush_lsn()))
        node.sql("CHECKPOINT")
        crew.wait_for(4 * STATEMENTS)
        moments.append(clock(node))
        crew.wait_for(5 * STATEMENTS)
    node.sql("CREATE TABLE last ()")
    assert_recovered(node, backup, "app", moments, tmp_path)


def test_values_of_all_types_are_those_of_copy(new_cluster: NewCluster, major: int, tmp_path: Path) -> None:
    node = archiving(new_cluster, major)
    node.sql("CREATE DATABASE app")
    with node.connect("app") as session:
        for statement in TYPES_DDL:
            session.execute(statement.encode())
        for number, (declaration, values) in enumerate(SAMPLES.items()):
            if SINCE.get(declaration, 0) <= major:
                session.execute(f"CREATE TABLE t{number} (number serial, value {declaration})".encode())
                for value in (None, *values):
                    try:
                        session.execute(f"INSERT INTO t{number} (value) VALUES (%s)".encode(), [value])
                    except psycopg.DataError:
                        if major >= SAMPLES_SINCE:
                            raise
    by_copy(node, node.folder / "backup", 1, lambda: node.sql("CHECKPOINT"))
    assert_recovered(node, node.folder / "backup", "app", [None], tmp_path)


def test_a_table_of_several_segments_is_read_from_all_of_them(
    new_cluster: NewCluster, major: int, tmp_path: Path
) -> None:
    node = archiving(new_cluster, major)
    node.sql("CREATE TABLE wide (id int, big text, toasted text)")
    node.sql("ALTER TABLE wide ALTER toasted SET STORAGE EXTERNAL")
    node.sql("INSERT INTO wide SELECT g, repeat('x', 1000), repeat(g::text, 3000) FROM generate_series(1, 200) g")
    by_copy(node, node.folder / "backup", 1, lambda: node.sql("UPDATE wide SET id = -id WHERE id % 50 = 0"))
    locators = node.sql(
        "SELECT pg_relation_filepath(oid) FROM pg_class WHERE oid = 'wide'::regclass"
        " OR oid = (SELECT reltoastrelid FROM pg_class WHERE oid = 'wide'::regclass)"
    )
    for (path,) in locators:
        file = node.folder / "backup" / str(path)
        pages = file.read_bytes()
        for number in range(-(-len(pages) // SEGMENT_BYTES)):
            suffix = f".{number}" if number else ""
            file.with_name(file.name + suffix).write_bytes(pages[number * SEGMENT_BYTES : (number + 1) * SEGMENT_BYTES])
        assert file.with_name(f"{file.name}.2").exists()
    expected = copied_rows(node, "postgres", "public.wide")
    with open_backup(node.folder / "backup") as opened:
        opened.control = replace(opened.control, segment_blocks=SEGMENT_BYTES // PAGE_BYTES)
        name = TableName.parse("public.wide")
        (rows,) = rows_of_tables(opened, archive_of(node), [name], None, scratch=tmp_path, types=DEFAULT_MAPPING)
        assert values_of(list(rows.batches())) == expected


def test_rows_under_a_partitioned_table_are_those_of_all_its_partitions(
    new_cluster: NewCluster, major: int, tmp_path: Path
) -> None:
    node = archiving(new_cluster, major)
    node.sql(
        "CREATE TABLE root (id int PRIMARY KEY, note text, n int) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE middle (n int, gone int, note text, id int NOT NULL); ALTER TABLE middle DROP gone;"
        "CREATE TABLE high PARTITION OF root FOR VALUES FROM (20) TO (90) PARTITION BY RANGE (id);"
        "CREATE TABLE highest PARTITION OF high FOR VALUES FROM (20) TO (90);"
        "ALTER TABLE root ATTACH PARTITION middle FOR VALUES FROM (10) TO (20);"
        "INSERT INTO root SELECT g, repeat('long', 900 * g), g FROM generate_series(0, 30) g"
    )
    by_copy(node, node.folder / "backup", 1, lambda: node.sql("DELETE FROM root WHERE id % 5 = 0"))
    read = page_rows(node, node.folder / "backup", "postgres", ["public.root"], moment=None, scratch=tmp_path)[
        "public.root"
    ]
    shown = node.sql("SELECT id, note, n, tableoid::int8 FROM root")
    expected = [{"id": row[0], "note": row[1], "n": row[2], "tableoid": row[3]} for row in shown]
    assert sorted(read) == sorted(map(repr, expected))


def test_rows_of_a_backup_of_a_standby_are_those_of_a_recovered_server(
    new_cluster: NewCluster, major: int, tmp_path: Path
) -> None:
    node = archiving(new_cluster, major, max_prepared_transactions=20)
    node.sql("CREATE DATABASE app")
    with standby_of(node, archive_mode="off") as standby:
        backup = standby.folder / "backup"
        with page_load(node, "app", 2) as load:
            load.wait_for_more(SCRIPTS)
            node.sql("CHECKPOINT")
            wait_until_replayed(standby, node)
            by_copy(standby, backup, 2, lambda: load.wait_for_more(SCRIPTS))
            node.sql("CHECKPOINT")
            load.wait_for_more(SCRIPTS)
            moment = parse_lsn(node.flush_lsn())
            load.wait_for_more(SCRIPTS)
        (backup / "standby.signal").unlink()
        assert_recovered(node, backup, "app", [moment], tmp_path)
