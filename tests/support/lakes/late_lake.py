"""A lake that got some tables late, one that always had them, and the archived WAL with the earlier changes."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.lakes.changed_tables import DATABASE, DDL, LARGE_ROWS, REWRITTEN, WRITTEN, WRITTEN_LATER
from tests.support.lakes.lake_contents import rows_at_source
from tests.support.lakes.lakes import feed_by_hand
from tests.support.processes.captures import Sidecar, initialised
from tests.support.processes.cdcctl import Done, cdcctl
from tests.support.servers.backups import by_copy
from tests.support.servers.postgres import Cluster, StopMode, new_cluster
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, format_lsn, parse_lsn
from tidemark.model.position import Sequence as OutboxSequence

READER = "lake"
TABLES = ("keyed", "keyless", "parts")
OWN_DDL = """
CREATE TABLE stems_before (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE stems_all PARTITION OF stems_before DEFAULT;
CREATE TABLE large (id int, note text); ALTER TABLE large REPLICA IDENTITY FULL;
"""
EARLIER = (
    "INSERT INTO stems_before VALUES (1, 'under its earlier name')",
    "ALTER TABLE stems_before RENAME TO stems",
    *WRITTEN,
    *REWRITTEN,
)
LATER = (
    *WRITTEN_LATER,
    "INSERT INTO keyless VALUES ('later', 'x')",
    "INSERT INTO stems VALUES (2, 'later')",
    f"INSERT INTO large SELECT g, 'x' FROM generate_series(1, {LARGE_ROWS}) g",
)
TABLES_VARIABLE = "TIDEMARK_SELECT__TABLES"
SELECTED = {
    "TIDEMARK_SELECT__DATABASES": DATABASE,
    TABLES_VARIABLE: "*.*",
    "TIDEMARK_SELECT__PARTITION_ROOTS": "public.parts,public.stems",
    "TIDEMARK_COPY__ENABLED": "false",
}
LANDED = 3  # statements of LATER that the lake has when earlier changes are added


@dataclass(frozen=True)
class Captured:
    """The lakes of a capture that always had all tables and of one that got them late, and the archived WAL."""

    root: Path
    begin: Lsn  # before the first of EARLIER
    after: Mapping[str, Lsn]  # the statements before the tables were selected
    rows: Mapping[str, list[object]]  # of each table at the source, in the end
    archive: Path
    late: StateFolder

    @property
    def always(self) -> Path:
        return self.root / "always" / "lake"

    def late_lake(self, to: Path) -> Path:
        return Path(shutil.copytree(self.root / "late" / "lake", to / "lake"))

    def add(self, lake: Path | str, table: str, *more: str | Path, begin: str = "", **variables: str) -> Done:
        places = ("--state", self.late.root, "--lake", lake, "--archive", self.archive, "--reader", READER)
        arguments = ("--from", begin or format_lsn(self.begin), table, *more)
        return cdcctl("table", "add", *places, *arguments, **{**SELECTED, **variables})

    def land_rest(self, lake: Path, end: OutboxSequence | None = None) -> None:
        feed_by_hand(self.late, lake, READER, confirm=False, end=end)


def flushed(cluster: Cluster) -> Lsn:
    return parse_lsn(cluster.flush_lsn())


def run_all(cluster: Cluster, statements: Sequence[str]) -> dict[str, Lsn]:
    """Run statements; return the LSN after each."""
    after = {}
    for statement in statements:
        cluster.sql(statement, DATABASE)
        after[statement] = flushed(cluster)
    return after


@contextmanager
def captured_beside(cluster: Cluster, root: Path, tables: str) -> Iterator[Sidecar]:
    root.mkdir()
    with initialised(cluster, DATABASE, root, copy=False, **{**SELECTED, TABLES_VARIABLE: tables}) as sidecar:
        sidecar.start()
        yield sidecar


def record_late_tables(root: Path) -> Captured:
    """Run a server and two captures, one of which selects tables only after they have changed."""
    with new_cluster(15, {"wal_keep_size": "1GB"}, initdb=["--wal-segsize=1"]) as cluster:
        cluster.sql(f"CREATE DATABASE {DATABASE}")
        cluster.sql(DDL + OWN_DDL, DATABASE)
        with (
            captured_beside(cluster, root / "always", "*.*") as always,
            captured_beside(cluster, root / "late", "public.other") as late,
        ):
            begin = flushed(cluster)
            by_copy(cluster, root / "backup", seed=1)
            after = run_all(cluster, EARLIER)
            late.catch_up()
            feed_by_hand(late.folder, root / "late" / "lake", READER)
            late.stop()
            late.options[TABLES_VARIABLE] = "*.*"
            late.start()
            late.catch_up()  # it has listed its tables: the lake has all changes from then on
            run_all(cluster, LATER[:LANDED])
            late.catch_up()
            feed_by_hand(late.folder, root / "late" / "lake", READER)
            run_all(cluster, LATER[LANDED:])
            late.catch_up()
            always.catch_up()
            feed_by_hand(always.folder, root / "always" / "lake", READER)
        rows = {table: rows_at_source(cluster, DATABASE, table) for table in TABLES}
        cluster.sql("SELECT pg_switch_wal()")
        cluster.stop(StopMode.FAST)
        shutil.copytree(cluster.data / "pg_wal", root / "archive", ignore=shutil.ignore_patterns("archive_status"))
    return Captured(root, begin, after, rows, root / "archive", StateFolder(root / "late" / "state"))
