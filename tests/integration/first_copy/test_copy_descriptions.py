"""The description that a first copy uses: it is read after the lock, whatever committed during the wait for it.

Rows are printed with the types of the moment, not of the snapshot: a table is copied again if a type's form changed in
between. Otherwise the stream's schema event would be applied to rows that already have the new form.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from tests.support.servers.postgres import Cluster, Session, sql
from tidemark.decode.catalog.seeding.seed import merge
from tidemark.io.node.copy_source import CopySource, TableChanging
from tidemark.io.node.copy_stream import BlockBounds
from tidemark.io.node.node import Node
from tidemark.io.node.seed import SeedSession
from tidemark.io.node.source_tables import SourceTable, source_tables
from tidemark.model.lsn import Oid, Xid
from tidemark.model.relation import Relation
from tidemark.wal.versions import wal_format

ENUM = "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TABLE t (id int, m mood)"
ENUMS = "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TABLE t (id int, m mood[])"
PAIR = "CREATE TYPE pair AS (x int, y int); CREATE TABLE t (id int, m pair)"
DOMAIN = "CREATE TYPE pair AS (x int); CREATE DOMAIN few AS pair; CREATE TABLE t (id int, m few)"
SPAN = "CREATE DOMAIN day AS date; CREATE TYPE span AS RANGE (subtype = day); CREATE TABLE t (id int, m span)"
OF_ROW = "CREATE TABLE other (x int, y int); CREATE TABLE t (id int, m other[])"
PARTITION = (
    "CREATE SCHEMA above; CREATE TABLE above.parent (id int, m int) PARTITION BY LIST (id);"
    " CREATE TABLE t PARTITION OF above.parent FOR VALUES IN (1);"
    " CREATE TABLE grandparent (id int, m int) PARTITION BY LIST (id)"
)
# All relations and types that a column may refer to: the server's types and row types, and names like pg_catalog's.
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
FILLED = {
    ENUM: "INSERT INTO t SELECT n, 'sad' FROM generate_series(1, 4) n",
    ENUMS: "INSERT INTO t SELECT n, '{sad}' FROM generate_series(1, 4) n",
    PAIR: "INSERT INTO t SELECT n, ROW(n, n)::pair FROM generate_series(1, 4) n",
    DOMAIN: "INSERT INTO t SELECT n, ROW(n)::pair FROM generate_series(1, 4) n",
    OF_ROW: "INSERT INTO t SELECT n, ARRAY[ROW(n, n)::other] FROM generate_series(1, 4) n",
}
OTHER_FORMS = [
    (ENUM, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    (ENUMS, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    (PAIR, "ALTER TYPE pair DROP ATTRIBUTE x"),
    (PAIR, "ALTER TYPE pair DROP ATTRIBUTE x, ADD ATTRIBUTE z int"),
    (DOMAIN, "ALTER TYPE pair ADD ATTRIBUTE z int"),
    (OF_ROW, "ALTER TABLE other DROP COLUMN x"),
]
SAME_FORMS = [
    (ENUM, "ALTER TYPE mood ADD VALUE 'mad'"),
    (ENUM, "ALTER TYPE mood RENAME TO humour"),
    (PAIR, "ALTER TYPE pair RENAME ATTRIBUTE x TO xx"),
    (OF_ROW, "ALTER TABLE other ALTER x SET NOT NULL"),
    (OF_ROW, "CREATE INDEX ON t (id)"),
]
ROW_BY_ROW = BlockBounds(1, 1 << 20)


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize(("made", "changed"), CHANGES, ids=[changed for _, changed in CHANGES])
def test_ddl_that_commits_during_the_wait_for_the_lock_is_in_the_description(
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


@pytest.mark.parametrize("rows_before", [0, 2])
@pytest.mark.parametrize(("made", "changed"), OTHER_FORMS, ids=[changed for _, changed in OTHER_FORMS])
def test_a_table_is_copied_again_if_a_type_of_its_values_changed_after_the_snapshot(
    cluster: Cluster, database: str, made: str, changed: str, rows_before: int
) -> None:
    cluster.sql(f"{made}; {FILLED[made]}", database)
    with closing(source_of(cluster, database)) as source:
        with source.locked_snapshot(table_of(source, "t")) as snapshot:
            rows = source.rows(snapshot.relation, ROW_BY_ROW)
            for _ in range(rows_before):
                next(rows)
            cluster.sql(changed, database)
            with pytest.raises(TableChanging):
                list(rows)
        assert copied_ids(source) == list("1234")


def test_a_table_is_copied_again_if_the_change_of_a_type_was_open_at_the_snapshot(
    cluster: Cluster, database: str
) -> None:
    """The server prints no value of the type before the change has ended, and then in the new form."""
    cluster.sql(f"{PAIR}; {FILLED[PAIR]}", database)
    with closing(source_of(cluster, database)) as source:
        with cluster.connect(database, autocommit=False) as owner, ThreadPoolExecutor(1) as pool:
            owner.execute("ALTER TYPE pair DROP ATTRIBUTE x")
            copied = pool.submit(copied_ids, source)
            wait_for_a_waiter(owner, "pair")
            owner.commit()
            with pytest.raises(TableChanging):
                copied.result()
        assert copied_ids(source) == list("1234")


@pytest.mark.parametrize(("made", "changed"), SAME_FORMS, ids=[changed for _, changed in SAME_FORMS])
def test_a_copy_continues_if_no_value_prints_differently(
    cluster: Cluster, database: str, made: str, changed: str
) -> None:
    cluster.sql(f"{made}; {FILLED[made]}", database)
    with closing(source_of(cluster, database)) as source, source.locked_snapshot(table_of(source, "t")) as snapshot:
        cluster.sql(changed, database)
        assert len([block for block in source.rows(snapshot.relation, ROW_BY_ROW) if block.rows]) == 4


def test_a_table_that_is_dropped_while_tables_are_listed_is_not_listed(cluster: Cluster, database: str) -> None:
    """The server reports no privilege on a dropped table: that is not a missing privilege."""
    cluster.sql("CREATE TABLE gone (id int); CREATE TABLE stays (id int)", database)
    with Node(cluster.dsn(database)) as node, node.repeatable_read():
        node.snapshot()
        cluster.sql("DROP TABLE gone", database)
        assert [(table.name, table.denial) for table in source_tables(node, cluster.major)] == [("stays", None)]


def test_catalogs_read_for_a_copy_describe_all_tables_as_all_catalogs_do(cluster: Cluster, database: str) -> None:
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


def test_a_key_that_was_created_and_dropped_during_the_reading_of_the_catalogs_is_in_no_description(
    cluster: Cluster, database: str
) -> None:
    """A dropped key leaves no trace in the remaining rows: the fingerprint is the same as before it was added."""
    cluster.sql("CREATE TABLE t (id int NOT NULL); CREATE TABLE another (id int)", database)
    with closing(source_of(cluster, database)) as source:
        another = table_of(source, "another")
        cluster.sql("ALTER TABLE t ADD CONSTRAINT t_key PRIMARY KEY (id)", database)
        with source.locked_snapshot(another):
            pass
        cluster.sql("ALTER TABLE t DROP CONSTRAINT t_key", database)
        table = source.table(oid_of(cluster, database, "t"))
        assert table is not None
        with source.locked_snapshot(table) as snapshot:
            assert snapshot.relation.primary_key == ()


def source_of(cluster: Cluster, database: str) -> CopySource:
    return CopySource(cluster.dsn(database), database, wal_format(cluster.major))


def described(source: CopySource, name: str) -> Relation:
    """Lock a table as the first copy does; return its description."""
    with source.locked_snapshot(table_of(source, name)) as snapshot:
        return snapshot.relation


def table_of(source: CopySource, name: str) -> SourceTable:
    (table,) = (table for table in source.tables() if table.name == name)
    return table


def oid_of(cluster: Cluster, database: str, name: str) -> Oid:
    ((oid,),) = cluster.sql(f"SELECT '{name}'::regclass::oid::int8", database)
    return Oid(oid)


def copied_ids(source: CopySource) -> list[str]:
    """Copy the table; return the first field of each row."""
    with source.locked_snapshot(table_of(source, "t")) as snapshot:
        lines = b"".join(block.lines for block in source.rows(snapshot.relation)).decode().splitlines()
    return [line.split("\t")[0] for line in lines]


def wait_for_a_waiter(owner: Session, name: str = "t") -> None:
    waiting = f"SELECT count(*), pg_sleep(0.02) FROM pg_locks WHERE relation = '{name}'::regclass AND NOT granted"
    while sql(owner, waiting)[0][0] == 0:
        pass
