"""Changes of partitions under their root's name (P23): the replica equals SQL's result for the root."""

import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.support.lakes.routed import Routing, lake_rows, source_rows
from tests.support.servers.postgres import Cluster, database_in
from tidemark.model.change import ChangeBatch, PartitionEvent, SchemaEvent, Truncation

DATABASE = "partition_roots"
LONG = "repeat(md5({}::text), 300)"
MAKE = """
BEGIN;
CREATE TABLE root (a int, b text, doc text, PRIMARY KEY (a, b)) PARTITION BY LIST (b);
ALTER TABLE root ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE leaf_x PARTITION OF root FOR VALUES IN ('x');
CREATE TABLE leaf_y (gone int, doc text, extra int, b text NOT NULL, a int NOT NULL, PRIMARY KEY (a, b));
ALTER TABLE leaf_y ALTER doc SET STORAGE EXTERNAL;
ALTER TABLE leaf_y DROP gone, DROP extra;
ALTER TABLE root ATTACH PARTITION leaf_y FOR VALUES IN ('y');
CREATE TABLE middle PARTITION OF root FOR VALUES IN ('z') PARTITION BY RANGE (a);
CREATE TABLE leaf_low PARTITION OF middle FOR VALUES FROM (0) TO (100);
CREATE TABLE leaf_high PARTITION OF middle FOR VALUES FROM (100) TO (1000);
COMMIT;
-- No key of its own: each partition has another.
BEGIN;
CREATE TABLE rootless_key (k int NOT NULL, v text, w int NOT NULL DEFAULT 0) PARTITION BY HASH (v);
CREATE TABLE first_half PARTITION OF rootless_key FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE second_half PARTITION OF rootless_key FOR VALUES WITH (MODULUS 2, REMAINDER 1);
ALTER TABLE first_half ADD PRIMARY KEY (k);
CREATE UNIQUE INDEX second_key ON second_half (w, k);
ALTER TABLE second_half REPLICA IDENTITY USING INDEX second_key;
COMMIT;
CREATE TABLE other_root (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE other_leaf PARTITION OF other_root FOR VALUES FROM (0) TO (100)
"""
FILL = f"INSERT INTO root SELECT n, (ARRAY['x','y','z'])[n % 3 + 1], {LONG.format('n')} FROM generate_series(1, 150) n"
STEPS = [
    FILL,
    "INSERT INTO other_root SELECT generate_series(1, 5)",
    "INSERT INTO rootless_key SELECT n, 'v' || n, n / 2 FROM generate_series(1, 40) n",
    "INSERT INTO rootless_key SELECT n, 'w' || n, 100 + n FROM generate_series(1, 40) n ON CONFLICT DO NOTHING",
    "UPDATE root SET a = a + 500 WHERE a % 7 = 0",  # within middle, from one partition to the other
    "UPDATE root SET b = CASE b WHEN 'x' THEN 'y' ELSE 'x' END WHERE a % 10 = 1 AND b <> 'z'",  # TOASTed values move
    "UPDATE leaf_y SET b = b, a = a + 1000",  # the key in another order of columns; the long values do not change
    "DELETE FROM root WHERE a % 11 = 3",
    "UPDATE rootless_key SET w = w + 1, k = k + 1000 WHERE k % 5 = 0",
    "UPDATE rootless_key SET v = 'moved' || k, k = k + 5000 + w * 100 WHERE k < 10",
    "TRUNCATE rootless_key",
    "INSERT INTO rootless_key SELECT n, 'again' || n, n FROM generate_series(1, 20) n",
    "ALTER TABLE rootless_key DETACH PARTITION first_half",
    "UPDATE rootless_key SET w = w + 1 WHERE k % 2 = 0",
    "BEGIN; TRUNCATE leaf_low; INSERT INTO root VALUES (5, 'z', 'after'); COMMIT",
    "BEGIN; SAVEPOINT s; TRUNCATE root; ROLLBACK TO s; INSERT INTO root VALUES (6, 'z', 'kept'); COMMIT",
    "ALTER TABLE root ADD c_null int, ADD c_const text DEFAULT 'constant'",
    "UPDATE root SET c_null = a WHERE a % 2 = 0",
    "ALTER TABLE root RENAME doc TO document",
    "UPDATE root SET c_const = NULL WHERE b = 'y'",
    "ALTER TABLE root ADD c_volatile float8 DEFAULT random()",
    "ALTER TABLE root ALTER c_null TYPE text USING 'n' || c_null",
    "ALTER TABLE root ALTER c_null TYPE int USING length(c_null)",
    "ALTER TABLE root DROP c_const",
    (
        "BEGIN; ALTER TABLE root ADD c_more int DEFAULT 7; UPDATE root SET c_more = a WHERE b = 'x'; "
        "SAVEPOINT s; ALTER TABLE root DROP c_more; ROLLBACK TO s; DELETE FROM root WHERE a = 6; COMMIT"
    ),
    "CREATE TABLE leaf_w PARTITION OF root FOR VALUES IN ('w')",
    "INSERT INTO root (a, b) SELECT n, 'w' FROM generate_series(1, 20) n",
    "ALTER TABLE root DETACH PARTITION leaf_w",
    "INSERT INTO leaf_w (a, b) VALUES (21, 'w')",
    (
        "BEGIN; ALTER TABLE root DETACH PARTITION leaf_x; DELETE FROM leaf_x WHERE a % 2 = 0; "
        "ALTER TABLE root ATTACH PARTITION leaf_x FOR VALUES IN ('x'); ROLLBACK"
    ),
    "ALTER TABLE root DETACH PARTITION leaf_y CONCURRENTLY",
    "ALTER TABLE root DETACH PARTITION middle",
    "INSERT INTO middle (a, b) VALUES (50, 'z')",
    "TRUNCATE middle",
    "ALTER TABLE root ATTACH PARTITION middle FOR VALUES IN ('z')",  # without rows, two levels
    "INSERT INTO root (a, b, document) SELECT n, 'z', 'again' FROM generate_series(1, 200) n",
    (
        "BEGIN; CREATE TABLE late (LIKE root INCLUDING ALL); INSERT INTO late (a, b) VALUES (1, 'l'); "
        "TRUNCATE late; COMMIT"
    ),
    "DROP TABLE leaf_high",
    "ALTER TABLE leaf_low SET UNLOGGED; ALTER TABLE leaf_low SET LOGGED",
    "UPDATE root SET document = 'last' WHERE a % 4 = 0",
    "ALTER TABLE leaf_x REPLICA IDENTITY FULL",
    "UPDATE root SET a = a + 2000 WHERE a % 3 = 0 AND b = 'x'",
    "ALTER TABLE root RENAME TO root_renamed; ALTER TABLE root_renamed RENAME TO root",
    "TRUNCATE root",
    "INSERT INTO root (a, b) SELECT n, 'x' FROM generate_series(1, 10) n",
]


@pytest.fixture
def session(oracle_cluster: Cluster) -> Iterator[psycopg.Connection[TupleRow]]:
    with database_in(oracle_cluster, DATABASE), oracle_cluster.connect(DATABASE) as opened:
        yield opened


@pytest.mark.feature("P23")
def test_the_replica_of_a_root_is_what_sql_shows_of_it_through_ddl_and_moves(
    oracle_cluster: Cluster, session: psycopg.Connection[TupleRow], tmp_path: Path
) -> None:
    ours = Routing(oracle_cluster, [DATABASE])
    ours.settle()
    session.execute(MAKE.encode())
    ours.feed(tmp_path)
    roots = ["root"]
    for step in STEPS:
        if "INTO rootless_key" in step and "rootless_key" not in roots:
            roots.append("rootless_key")  # it has a replica from its first row on, by the key of that row's partition
        oracle_cluster.sql(step, DATABASE)
        ours.feed(tmp_path)
        for root in roots:
            assert lake_rows(tmp_path, root) == source_rows(oracle_cluster, DATABASE, root), (step, root)
    names = {item.relation.name for item in ours.items if isinstance(item, ChangeBatch)}
    assert names == {"root", "rootless_key", "other_leaf", "leaf_w", "late"} | {"leaf_low"}, (
        "a partition of a root has no changes of its own"
    )
    ours.changes.close()


@pytest.mark.feature("P23")
def test_rows_of_a_root_are_delivered_in_stream_order_across_partitions_and_transactions(
    oracle_cluster: Cluster, session: psycopg.Connection[TupleRow], tmp_path: Path
) -> None:
    session.execute(MAKE.encode())
    ours = Routing(oracle_cluster, [DATABASE])
    ours.settle()
    chance = random.Random(23)
    sessions = [oracle_cluster.connect(DATABASE, autocommit=False) for _ in range(3)]
    for number in range(200):
        at = chance.choice(sessions)
        key = sessions.index(at) * 1000 + chance.randrange(40)  # each session has its own keys: no lock waits
        b, other = chance.choice("xyz"), chance.choice("xyz")
        low = key % 900 if "z" in (b, other) else key
        statement = chance.choice(
            (
                f"INSERT INTO root VALUES ({low}, '{b}', '{number}') ON CONFLICT (a, b) DO NOTHING",
                f"UPDATE root SET doc = '{number}' WHERE a = {low}",
                (
                    f"UPDATE root SET b = '{other}' WHERE a = {low} AND b = '{b}' AND NOT EXISTS"
                    f" (SELECT FROM root r WHERE r.a = {low} AND r.b = '{other}')"
                ),
                f"DELETE FROM root WHERE a = {low} AND b = '{b}'",
            )
        )
        at.execute("SET LOCAL lock_timeout = 200")
        try:
            at.execute(statement.encode())
        except psycopg.Error:
            at.rollback()
        if chance.random() < 0.3:
            at.rollback() if chance.random() < 0.2 else at.commit()
    for at in sessions:
        at.commit()
        at.close()
    found = ours.feed(tmp_path)
    places = [
        place
        for item in found
        if isinstance(item, ChangeBatch) and item.relation.name == "root"
        for place in zip(
            item.rows.column("_commit_lsn").to_pylist(), item.rows.column("_ordinal").to_pylist(), strict=True
        )
    ]
    assert places == sorted(set(places))
    assert len(places) > 30
    assert lake_rows(tmp_path, "root") == source_rows(oracle_cluster, DATABASE, "root")
    ours.changes.close()


@pytest.mark.feature("P23")
def test_events_of_a_partition_are_reported_for_its_root(
    oracle_cluster: Cluster, session: psycopg.Connection[TupleRow]
) -> None:
    ours = Routing(oracle_cluster, [DATABASE])
    ours.settle()
    session.execute(MAKE.encode())
    session.execute("INSERT INTO root VALUES (1, 'x')")
    ours.news()

    def reported(statement: str) -> list[str]:
        oracle_cluster.sql(statement, DATABASE)
        found = []
        for item in ours.news():
            match item:
                case PartitionEvent():
                    found.append(f"{item.change.value} {item.partition.name} of {item.relation.name}")
                case SchemaEvent():
                    described = item.after or item.before
                    assert described is not None
                    rows = " with rows" if item.brings_rows else ""
                    found.append(f"{item.change.value} {described.name} {item.effect.value}{rows}")
                case Truncation():
                    found.append(f"truncate {item.relation.name} {'part' if item.partition else 'whole'}")
                case _:
                    pass
        return found

    assert reported("CREATE TABLE leaf_q PARTITION OF root FOR VALUES IN ('q')") == ["create leaf_q of root"]
    assert reported("ALTER TABLE root ADD more int DEFAULT 1") == ["alter root constant"]
    assert reported("ALTER TABLE root ALTER more TYPE text") == ["alter root rewrite"]
    assert reported("TRUNCATE leaf_x") == ["truncate root part"]
    assert reported("ALTER TABLE root DETACH PARTITION leaf_q") == [
        "create leaf_q metadata with rows",
        "detach leaf_q of root",
    ]
    assert reported("ALTER TABLE root ATTACH PARTITION leaf_q FOR VALUES IN ('q')") == [
        "drop leaf_q metadata",
        "attach leaf_q of root",
    ]
    assert reported("DROP TABLE leaf_q") == ["drop leaf_q of root"]
    assert reported("ALTER TABLE root DETACH PARTITION middle") == [
        "create leaf_low metadata with rows",
        "detach leaf_low of root",
        "create leaf_high metadata with rows",
        "detach leaf_high of root",
        "create middle metadata",
    ]
    assert reported("DROP TABLE root") == ["drop root metadata"]
    ours.changes.close()
