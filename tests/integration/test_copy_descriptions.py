"""The description that a first copy goes by is of after the lock, whatever committed while it was waited for."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from tests.support.postgres import Cluster, Session, sql
from tidemark.decode.catalog.seed import merge
from tidemark.io.copy_source import CopySource
from tidemark.io.node import Node
from tidemark.io.seed import SeedSession
from tidemark.model.lsn import Xid
from tidemark.model.relation import Relation
from tidemark.wal.versions import wal_format

ENUM = "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TABLE t (id int, m mood)"
ENUMS = "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TABLE t (id int, m mood[])"
PAIR = "CREATE TYPE pair AS (x int, y int); CREATE TABLE t (id int, m pair)"
DOMAIN = "CREATE TYPE pair AS (x int); CREATE DOMAIN few AS pair; CREATE TABLE t (id int, m few)"
SPAN = "CREATE DOMAIN day AS date; CREATE TYPE span AS RANGE (subtype = day); CREATE TABLE t (id int, m span)"
PARTITION = (
    "CREATE SCHEMA above; CREATE TABLE above.parent (id int, m int) PARTITION BY LIST (id);"
    " CREATE TABLE t PARTITION OF above.parent FOR VALUES IN (1);"
    " CREATE TABLE grandparent (id int, m int) PARTITION BY LIST (id)"
)
# Whatever a column may lead to: the server's types and row types too, and names that pg_catalog has as well.
DESCRIBED = (
    "CREATE TYPE public.box AS (x int, y int); CREATE TYPE mood AS ENUM ('sad'); CREATE DOMAIN moods AS mood[];"
    " CREATE TYPE span AS RANGE (subtype = int8, multirange_type_name = spans); CREATE DOMAIN shown AS pg_namespace;"
    " CREATE TABLE plain (id int PRIMARY KEY, gone text, n numeric(9, 2), a text[], r int4range, o oidvector);"
    " ALTER TABLE plain DROP gone; ALTER TABLE plain ADD more text DEFAULT 'more', ADD UNIQUE (id, n);"
    " CREATE TABLE made (id int, p public.box, q point, m moods, s spans, t plain, u shown[]);"
    " CREATE TABLE of_system (i information_schema.sql_identifier, n pg_namespace[], r int8multirange, x pg_index);"
    " CREATE TABLE parent (id int, m mood) PARTITION BY LIST (id);"
    " CREATE TABLE child PARTITION OF parent FOR VALUES IN (1) PARTITION BY LIST (m);"
    " CREATE TABLE leaf PARTITION OF child FOR VALUES IN ('sad');"
    " CREATE TABLE empty (); CREATE UNLOGGED TABLE unlogged (id int UNIQUE);"
    " CREATE SEQUENCE s; CREATE VIEW v AS TABLE made"
)
CHANGES = [
    (ENUM, "ALTER TYPE mood RENAME TO humour"),
    (ENUM, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    (ENUM, "ALTER TYPE mood ADD VALUE 'mad'"),
    (ENUM, "CREATE SCHEMA types; ALTER TYPE mood SET SCHEMA types"),
    (ENUMS, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    (PAIR, "ALTER TYPE pair ADD ATTRIBUTE z int"),
    (PAIR, "ALTER TYPE pair RENAME ATTRIBUTE x TO xx"),
    (PAIR, "ALTER TYPE pair DROP ATTRIBUTE x"),
    (DOMAIN, "ALTER TYPE pair ADD ATTRIBUTE z int"),
    (DOMAIN, "ALTER DOMAIN few RENAME TO many"),
    (SPAN, "ALTER DOMAIN day RENAME TO date_of"),
    (PARTITION, "ALTER TABLE above.parent RENAME TO other"),
    (PARTITION, "ALTER SCHEMA above RENAME TO higher"),
    (PARTITION, "ALTER TABLE grandparent ATTACH PARTITION above.parent FOR VALUES IN (1)"),
]


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize(("made", "changed"), CHANGES, ids=[changed for _, changed in CHANGES])
def test_what_commits_while_the_lock_is_waited_for_is_in_the_description(
    cluster: Cluster, database: str, made: str, changed: str, *, is_first: bool
) -> None:
    cluster.sql(f"{made}; CREATE TABLE another (id int)", database)
    with closing(source_of(cluster, database)) as source:
        before = described(source, "t")
    with closing(source_of(cluster, database)) as source:
        if not is_first:
            described(source, "another")
        with cluster.connect(database, autocommit=False) as owner, ThreadPoolExecutor(1) as pool:
            owner.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            found = pool.submit(described, source, "t")
            wait_for_a_waiter(owner)
            owner.execute(changed.encode())
            owner.commit()
            relation = found.result()
    with closing(source_of(cluster, database)) as fresh:
        assert described(fresh, "t") == relation != before


def test_what_is_read_for_a_copy_describes_all_tables_as_all_catalogs_do(cluster: Cluster, database: str) -> None:
    cluster.sql(DESCRIBED, database)
    with Node(cluster.dsn(database), database) as node:
        session = SeedSession(node)
        fresh = partial(session.begin, wal_format(cluster.major), Xid(3), None)
        whole, read = fresh(), fresh()
        merge(whole, session.read(whole, lambda: None))
        merge(read, session.read_tables(read))
    expected = list(whole.relations())
    assert {relation.name for relation in expected} >= {"plain", "made", "of_system", "leaf", "empty", "unlogged"}
    assert list(read.relations()) == expected


def source_of(cluster: Cluster, database: str) -> CopySource:
    return CopySource(cluster.dsn(database), database, wal_format(cluster.major))


def described(source: CopySource, name: str) -> Relation:
    """Hold a table as the first copy does; return its description."""
    (table,) = (table for table in source.tables() if table.name == name)
    with source.held(table) as snapshot:
        return snapshot.relation


def wait_for_a_waiter(owner: Session) -> None:
    waiting = "SELECT count(*), pg_sleep(0.02) FROM pg_locks WHERE relation = 't'::regclass AND NOT granted"
    while sql(owner, waiting)[0][0] == 0:
        pass
