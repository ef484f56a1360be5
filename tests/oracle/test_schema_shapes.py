"""DDL as events, from WAL alone (N08): each has the table's description by SQL before and after it."""

from collections.abc import Iterator, Mapping

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.support.lakes.group_collector import GroupCollector
from tests.support.servers.postgres import Cluster, database_in
from tidemark.wire.control import Json

DATABASE = "schema_shapes"
SETUP = """
CREATE SCHEMA app;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE item (id int PRIMARY KEY, note varchar(20), price numeric(10,2) NOT NULL);
CREATE TABLE beat (n serial PRIMARY KEY)
"""
# Each is followed by a row, so that its event is emitted before the next one.
DDL: list[tuple[str, ...]] = [  # a transaction each
    (
        "CREATE TABLE app.made (a int, b mood, PRIMARY KEY (b, a))",
        "ALTER TABLE app.made ADD c text[] NOT NULL DEFAULT '{}'",
    ),
    (
        "ALTER TABLE item ADD more timestamptz(3), DROP note",
        "ALTER TABLE item RENAME more TO at_last",
        "ALTER TABLE item ALTER price TYPE text USING price::text",
        "ALTER TABLE item RENAME TO article",
        "ALTER TABLE article SET SCHEMA app",
        "ALTER TABLE app.article DROP CONSTRAINT item_pkey, ADD PRIMARY KEY (price)",
        "ALTER TABLE app.article REPLICA IDENTITY FULL",
    ),
    (
        "SAVEPOINT s",
        "ALTER TABLE app.article ADD never int",
        "CREATE TABLE never (a int)",
        "ROLLBACK TO s",
        "ALTER TABLE app.article ALTER id DROP NOT NULL",
        "SAVEPOINT s",
        "ALTER TABLE app.made ALTER a TYPE bigint",
        "RELEASE s",
        "ALTER TABLE app.made DROP b",
    ),
    ("CREATE TABLE short (a int)", "ALTER TABLE short ADD b int", "DROP TABLE short"),
    ("ALTER SCHEMA app RENAME TO shop", "DROP TABLE shop.made", "ALTER TYPE mood RENAME TO humour"),
    ("DROP TABLE shop.article",),
]
SHAPES = """
SELECT c.oid::int8, n.nspname, c.relname,
  ARRAY(SELECT a.attnum || ' ' || a.attname || ' ' || format_type(a.atttypid, NULL) || ' ' || a.atttypmod || ' '
    || a.attnotnull FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum),
  ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k (attnum, place)
    JOIN pg_attribute a ON a.attnum = k.attnum WHERE a.attrelid = c.oid AND i.indrelid = c.oid AND i.indisprimary
    ORDER BY k.place),
  CASE c.relreplident WHEN 'd' THEN 'default' WHEN 'f' THEN 'full' END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname IN ('public', 'app', 'shop')
"""
Shape = tuple[str, str, list[str], list[str], str]


@pytest.fixture
def session(oracle_cluster: Cluster) -> Iterator[psycopg.Connection[TupleRow]]:
    with database_in(oracle_cluster, DATABASE, SETUP), oracle_cluster.connect(DATABASE) as opened:
        yield opened


def shapes(session: psycopg.Connection[TupleRow]) -> dict[int, Shape]:
    found: dict[int, Shape] = {}
    for oid, namespace, name, columns, key, identity in session.execute(SHAPES.encode()).fetchall():
        found[int(oid)] = (str(namespace), str(name), list(columns), list(key), str(identity))
    return found


def reported(shown: Json) -> Shape | None:
    if shown is None:
        return None
    assert isinstance(shown, dict)
    columns, key = shown["columns"], shown["primary_key"]
    assert isinstance(columns, list)
    assert isinstance(key, list)
    texts = [
        f"{column['number']} {column['name']} {column['type']} {column['typmod']} {str(column['not_null']).lower()}"
        for column in columns
        if isinstance(column, dict)
    ]
    return str(shown["schema"]), str(shown["table"]), texts, list(map(str, key)), str(shown["replica_identity"])


@pytest.mark.feature("N08")
@pytest.mark.feature("P07")
def test_each_event_contains_what_sql_showed_before_and_after_it(
    oracle_cluster: Cluster, session: psycopg.Connection[TupleRow]
) -> None:
    ours = GroupCollector(oracle_cluster, [DATABASE])
    ours.settle()
    expected: list[tuple[Shape | None, Shape | None]] = []
    changes: list[str] = []
    for transaction in DDL:
        session.execute("BEGIN")
        before = kept = shapes(session)
        since: list[tuple[Shape | None, Shape | None]] = []
        for statement in transaction:
            session.execute(statement.encode())
            if statement == "SAVEPOINT s":
                kept, since = before, []
                continue
            if statement == "ROLLBACK TO s":
                del expected[len(expected) - len(since) :], changes[len(changes) - len(since) :]
                before = kept
                continue
            session.execute("INSERT INTO beat DEFAULT VALUES")
            after = shapes(session)
            news = [
                (before.get(oid), after.get(oid))
                for oid in sorted(before.keys() | after.keys())
                if before.get(oid) != after.get(oid)
            ]
            expected += news
            since += news
            changes += ["create" if old is None else "drop" if new is None else "alter" for old, new in news]
            before = after
        session.execute("COMMIT")
    lines = ours.lines_to_now()
    events: list[Mapping[str, Json]] = [line for line in lines if line["op"] == "schema"]
    assert [(reported(event["before"]), reported(event["after"])) for event in events] == expected
    assert [event["change"] for event in events] == changes
    assert {"create", "alter", "drop"} == set(changes)
    assert len(events) > 15
    beats = [index for index, line in enumerate(lines) if line["op"] == "i"]
    first = [index for index, line in enumerate(lines) if line["op"] == "schema"]
    assert first[0] < beats[0], "what is needed to read a row comes before it"
    ours.changes.close()
