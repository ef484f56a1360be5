"""Databases that are created, dropped and moved during the stream: the lines equal each one's own test_decoding.

Each test has a new cluster: databases, template1 and tablespaces belong to the whole cluster.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.conftest import NewCluster
from tests.support.oracles.oracle import (
    DEADLINE_S,
    FENCE,
    ROLE,
    OurSide,
    ServerSide,
    assert_same_lines,
    emit_fence,
    ensure_role,
)
from tests.support.oracles.oracle_catalogs import catalog_differences, server_catalogs
from tests.support.oracles.plugin_lines import PluginLines
from tests.support.servers.postgres import Cluster, StopMode, sql
from tidemark.decode.catalog.databases import MappedDialects, every_database
from tidemark.io.node.node import Node
from tidemark.model.lsn import Oid
from tidemark.model.mapping import DEFAULT_MAPPING
from tidemark.runtime.seed.live_changes import LiveChanges
from tidemark.runtime.seed.seeding import read_seed

# VACUUM's values for template0, which no session can request: they come with the first image of their page.
UNSEEN_STATISTICS = re.compile(
    r"(?:of_template0_file_copy|latin): pg_class \S+\.(?:relfrozenxid|relminmxid|relpages|reltuples|relall[a-z]+):"
)
LOGGED_SINCE = 15  # CREATE DATABASE ... STRATEGY
OID_SINCE = 15  # CREATE DATABASE ... OID


def strategies(major: int) -> dict[str, str]:
    """Return the strategies of CREATE DATABASE, with the SQL for each."""
    if major < LOGGED_SINCE:
        return {"file_copy": ""}
    return {name.lower(): f"STRATEGY {name}" for name in ("FILE_COPY", "WAL_LOG")}


def user_databases(node: Node) -> list[str]:
    """Return the initial databases of a capture of all databases."""
    rows = node.query("SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate ORDER BY oid")
    return [str(name) for (name,) in rows]


class AllDatabases(OurSide):
    """Our lines for all databases of a cluster, including new ones."""

    def __post_init__(self) -> None:
        ensure_role(self.cluster)
        self.seed = read_seed(self.dsn, user_databases, wait_s=DEADLINE_S)
        self.seed.mirrors.select(every_database)
        self.changes = LiveChanges(self.dsn, self.seed, wait_s=DEADLINE_S)
        self.changes.decoding.decoder.keep_names()
        dialects = MappedDialects(self.seed.mirrors, DEFAULT_MAPPING, self.cluster.major)
        self.renderer = PluginLines(self.cluster.major, dialects, (FENCE,))
        self.lines = defaultdict(list)

    @property
    def dsn(self) -> str:
        return self.cluster.dsn("postgres", ROLE)

    def oid(self, database: str) -> Oid:
        known = self.seed.mirrors.known()
        return next(oid for oid, reported in known.items() if reported.name == database)

    def catch_up(self) -> None:
        self.cluster.sql("CHECKPOINT")
        self.read_until(emit_fence(self.cluster, "postgres"))

    def check_mirrors(self) -> None:
        """Compare the mirrors of all databases with the server's catalogs, row by row."""
        self.catch_up()
        mirrors = self.seed.mirrors
        assert mirrors.left_out_by_name() == {}
        names = {oid: reported.name for oid, reported in mirrors.known().items()}
        with Node(self.dsn) as node:
            assert sorted(names.values()) == sorted(user_databases(node))
        rows = {oid: server_catalogs(self.cluster, name, mirrors[oid]) for oid, name in names.items()}
        self.catch_up()
        bad = [f"{names[oid]}: {line}" for oid in rows for line in catalog_differences(mirrors[oid], rows[oid])]
        bad = [line for line in bad if not UNSEEN_STATISTICS.match(line)]
        assert not bad, "\n".join(bad[:20])


@contextmanager
def decoded_by_the_server(cluster: Cluster, ours: AllDatabases, names: Sequence[str]) -> Iterator[None]:
    """Compare the changes of each database inside the block."""
    ours.catch_up()
    sides = [ServerSide(cluster, name) for name in names]
    ours.catch_up()
    for name in names:
        ours.new_lines(name)
    yield
    ours.catch_up()
    for side in sides:
        lines = side.lines()
        assert lines, side.database
        assert_same_lines(side.database, lines, ours.new_lines(side.database))
        side.drop()


def work_in(cluster: Cluster, database: str) -> None:
    """Write rows and change catalogs: existing tables, new ones, and the catalogs' own files."""
    with cluster.connect(database) as session:
        for statement in (
            "CREATE TABLE IF NOT EXISTS kept (id int PRIMARY KEY, note text)",
            "CREATE TYPE mood AS ENUM ('fine', 'odd')",
            "CREATE TABLE fresh (id int PRIMARY KEY, m mood, a text[])",
            "INSERT INTO kept VALUES (100, 'stream'), (101, NULL)",
            "INSERT INTO fresh VALUES (1, 'odd', '{a,b}')",
            "VACUUM FULL pg_class",
            "VACUUM FULL pg_index",
            "ALTER TABLE kept ADD COLUMN more int DEFAULT 7",
            "UPDATE kept SET note = 'changed' WHERE id = 100",
            "ALTER TYPE mood RENAME VALUE 'odd' TO 'strange'",
            "INSERT INTO fresh VALUES (2, 'strange', NULL)",
            "DELETE FROM kept WHERE id = 101",
            "DROP TYPE mood CASCADE",
        ):
            sql(session, statement)


def prepare_template(cluster: Cluster) -> None:
    """Give a template tables whose catalog rows were never read, and some of aborted transactions."""
    cluster.sql("CREATE DATABASE golden")
    with cluster.connect("golden") as session:
        sql(session, "CREATE TABLE kept (id int PRIMARY KEY, first_name text)")
        sql(session, "CREATE TABLE lost (id int)")
        sql(session, "BEGIN; ALTER TABLE lost RENAME COLUMN id TO never; ROLLBACK")
        sql(session, "BEGIN; CREATE TABLE never (a int, b text); CREATE TYPE never_type AS ENUM ('a'); ROLLBACK")
        sql(session, "BEGIN; DROP TABLE lost; ROLLBACK")
        sql(session, "ALTER TABLE kept RENAME COLUMN first_name TO note")
        sql(session, "INSERT INTO kept VALUES (1, 'from the template')")
    cluster.sql("CHECKPOINT")


@pytest.mark.feature("N03")
@pytest.mark.feature("I37")
def test_databases_of_every_template_and_strategy_are_followed_from_their_creation_on(
    new_cluster: NewCluster, major: int
) -> None:
    cluster = new_cluster(major, autovacuum="off")
    prepare_template(cluster)
    cluster.sql("CREATE DATABASE elder")
    ours = AllDatabases(cluster, ())
    ours.settle()
    with cluster.connect("golden") as session:  # also after the seed
        sql(session, "BEGIN; ALTER TABLE kept RENAME COLUMN note TO never; ROLLBACK")
        sql(session, "CREATE TABLE later (id int)")
        sql(session, "ALTER TABLE later RENAME COLUMN id TO number")
    made = []
    for strategy, reported in strategies(major).items():
        for template in ("template0", "template1", "golden"):
            made.append(name := f"of_{template}_{strategy}")
            cluster.sql(f"CREATE DATABASE {name} TEMPLATE {template} {reported}")
    cluster.sql("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
    cluster.sql(f"CREATE DATABASE grandchild TEMPLATE {made[-1]}")
    made += ["latin", "grandchild"]
    ours.check_mirrors()
    tables = {relation.name for relation in ours.mirror("grandchild").relations()}
    assert tables == {"kept", "lost", "later"}
    with decoded_by_the_server(cluster, ours, ["elder", "golden", *made]):
        for name in ("elder", "golden", *made):
            work_in(cluster, name)
    ours.check_mirrors()
    ours.changes.close()


def test_a_database_that_is_renamed_dropped_and_recreated_is_distinguished(new_cluster: NewCluster, major: int) -> None:
    cluster = new_cluster(major, autovacuum="off")
    prepare_template(cluster)
    ours = AllDatabases(cluster, ())
    ours.settle()
    with pytest.raises(Exception, match="already exists"):
        cluster.sql("CREATE DATABASE golden")
    cluster.sql("ALTER DATABASE golden RENAME TO older")
    cluster.sql("CREATE DATABASE golden TEMPLATE older")
    ours.check_mirrors()
    with decoded_by_the_server(cluster, ours, ["older", "golden"]):
        for name in ("older", "golden"):
            work_in(cluster, name)
    with cluster.connect("older"):
        cluster.sql("DROP DATABASE older WITH (FORCE)")
    cluster.sql("DROP DATABASE golden")
    cluster.sql("CREATE DATABASE golden")
    cluster.restart(StopMode.IMMEDIATE)
    ours.check_mirrors()
    assert [relation.name for relation in ours.mirror("golden").relations()] == []
    with decoded_by_the_server(cluster, ours, ["golden"]):
        work_in(cluster, "golden")
    ours.changes.close()


def test_a_database_that_is_recreated_under_its_oid_has_a_separate_encoding(
    new_cluster: NewCluster, major: int
) -> None:
    cluster = new_cluster(max(major, OID_SINCE), autovacuum="off")
    make = "CREATE DATABASE app OID 60000 TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' ENCODING"
    ours = AllDatabases(cluster, ())
    ours.settle()
    for encoding, text in (("UTF8", "é"), ("LATIN1", "é"), ("EUC_JP", "あ")):
        cluster.sql("DROP DATABASE IF EXISTS app")
        cluster.sql(f"{make} '{encoding}'")
        with decoded_by_the_server(cluster, ours, ["app"]):
            cluster.sql("CREATE TABLE t (a text)", "app")
            cluster.sql(f"INSERT INTO t VALUES ('{text}')", "app")
    ours.changes.close()


def test_databases_and_tables_are_followed_between_tablespaces(new_cluster: NewCluster, major: int) -> None:
    cluster = new_cluster(major, autovacuum="off")
    owner = cluster.data.stat()
    for name in ("one", "two"):
        folder = cluster.folder / name
        folder.mkdir()
        os.chown(folder, owner.st_uid, owner.st_gid)
        cluster.sql(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
    prepare_template(cluster)
    cluster.sql("CREATE TABLE aside (id int PRIMARY KEY) TABLESPACE two", "golden")
    ours = AllDatabases(cluster, ())
    ours.settle()
    cluster.sql("ALTER DATABASE golden SET TABLESPACE one")
    names = ["golden"]
    for strategy, reported in strategies(major).items():
        names += [f"in_one_{strategy}", f"back_{strategy}"]
        cluster.sql(f"CREATE DATABASE in_one_{strategy} TEMPLATE golden {reported}")
        cluster.sql(f"CREATE DATABASE back_{strategy} TEMPLATE golden TABLESPACE pg_default {reported}")
    with decoded_by_the_server(cluster, ours, names):
        for name in names:
            cluster.sql("INSERT INTO aside VALUES (1)", name)
            cluster.sql("ALTER TABLE kept SET TABLESPACE two", name)
            cluster.sql("ALTER TABLE ALL IN TABLESPACE two SET TABLESPACE pg_default", name)
            cluster.sql("INSERT INTO aside VALUES (2)", name)
            work_in(cluster, name)
    ours.check_mirrors()
    cluster.sql("ALTER TABLE ALL IN TABLESPACE pg_default SET TABLESPACE two", "golden")
    cluster.sql("ALTER DATABASE golden SET TABLESPACE pg_default")
    with decoded_by_the_server(cluster, ours, ["golden"]):
        cluster.sql("INSERT INTO aside VALUES (3)", "golden")
        cluster.sql("INSERT INTO kept VALUES (3, 'moved')", "golden")
    ours.check_mirrors()
    ours.changes.close()
