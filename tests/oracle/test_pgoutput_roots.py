"""Changes under a partitioned table's name (P23), compared with the server's pgoutput, which has the same option."""

import random
from collections.abc import Iterator, Mapping

import pytest

from tests.oracle.test_partition_roots import LONG, MAKE
from tests.support.lakes.group_collector import GroupCollector
from tests.support.lakes.routed import ROOTS
from tests.support.oracles.pgoutput import UNCHANGED, PgOutput, Row, RowChange
from tests.support.servers.postgres import Cluster, database_in, sql
from tidemark.engine.selection import Selection
from tidemark.wire.control import Json

DATABASE = "pgoutput_roots"
TABLES = ("root", "rootless_key")
STEPS = (
    f"INSERT INTO root SELECT n, (ARRAY['x','y','z'])[n % 3 + 1], {LONG.format('n')} FROM generate_series(1, 60) n",
    "INSERT INTO rootless_key SELECT n, 'v' || n, n / 2 FROM generate_series(1, 40) n",
    "UPDATE root SET a = a + 500 WHERE a % 7 = 0",  # within middle, from one partition to the other
    "UPDATE root SET b = CASE b WHEN 'x' THEN 'y' ELSE 'x' END WHERE a % 10 = 1 AND b <> 'z'",
    "UPDATE leaf_y SET b = b, a = a + 1000",  # the key in another order of columns; the long values do not change
    "UPDATE root SET b = b",  # WAL has nothing of a long value
    "DELETE FROM root WHERE a % 11 = 3",
    "UPDATE rootless_key SET w = w + 1, k = k + 1000 WHERE k % 5 = 0",
    "UPDATE rootless_key SET v = 'moved' || k, k = k + 5000 + w * 100 WHERE k < 10",
    "BEGIN; SAVEPOINT s; DELETE FROM root; ROLLBACK TO s; INSERT INTO root VALUES (6, 'z', 'kept'); COMMIT",
    "ALTER TABLE root ADD c_null int, ADD c_const text DEFAULT 'constant'",
    "UPDATE root SET c_null = a WHERE a % 2 = 0",
    "ALTER TABLE root RENAME doc TO document",
    "BEGIN; ALTER TABLE root DROP c_const; UPDATE root SET c_null = NULL, a = a + 5000 WHERE b = 'y'; COMMIT",
    "CREATE TABLE leaf_w (document text, c_null int, b text NOT NULL, a int NOT NULL, PRIMARY KEY (a, b))",
    "ALTER TABLE root ATTACH PARTITION leaf_w FOR VALUES IN ('w')",
    "INSERT INTO root (a, b) SELECT n, 'w' FROM generate_series(1, 20) n",
    "UPDATE root SET b = 'x', a = a + 3000 WHERE b = 'w' AND a % 2 = 0",
    "ALTER TABLE root DETACH PARTITION leaf_w",
    "ALTER TABLE leaf_x REPLICA IDENTITY FULL",
    "UPDATE root SET document = 'last' WHERE b = 'x'",
    "DELETE FROM root WHERE b = 'x' AND a % 3 = 0",
    "TRUNCATE root",
    "INSERT INTO root (a, b) SELECT n, 'x' FROM generate_series(1, 10) n",
)


@pytest.fixture
def database(oracle_cluster: Cluster) -> Iterator[str]:
    with database_in(oracle_cluster, DATABASE, MAKE) as name:
        yield name


def in_their_terms(line: Mapping[str, Json]) -> RowChange:
    """Return a line of ours in pgoutput's form."""
    unchanged = line.get("unchanged", ())
    assert isinstance(unchanged, (list, tuple))
    new = _row(line.get("after"))
    if new is not None:
        new.update((str(column), UNCHANGED) for column in unchanged)
    return RowChange(str(line["op"]), str(line["table"]), _row(line.get("before")), new)


def _row(reported: Json) -> Row | None:
    if reported is None:
        return None
    assert isinstance(reported, dict)
    return {name: value if value is None else str(value) for name, value in reported.items() if name != "tableoid"}


def known(change: RowChange) -> RowChange:
    """Remove the columns of an old row that have no value: pgoutput sends NULL for columns outside the key."""
    if change.old is None:
        return change
    return change._replace(old={name: value for name, value in change.old.items() if value is not None})


def compared(ours: GroupCollector, theirs: PgOutput) -> list[RowChange]:
    """Check that both have the same changes of the roots since the last call; return them."""
    lines = [line for line in ours.lines_to_now() if str(line["op"]) in "iudt" and "tableoid" not in line]
    found = [known(in_their_terms(line)) for line in lines if line["table"] in TABLES]
    expected = [known(change) for change in theirs.changes() if change.table in TABLES]
    assert found == expected
    return found


def free(a: int, b: str) -> str:
    """Return the condition that no row has this key."""
    return f"NOT EXISTS (SELECT FROM root r WHERE r.a = {a} AND r.b = '{b}')"


@pytest.mark.feature("P23")
def test_changes_of_a_root_are_those_that_pgoutput_publishes_via_it(oracle_cluster: Cluster, database: str) -> None:
    with PgOutput(oracle_cluster, database) as theirs:
        ours = GroupCollector(oracle_cluster, [database], selection=Selection(partition_roots=ROOTS))
        ours.settle()
        compared(ours, theirs)
        silent = []
        for step in STEPS:
            oracle_cluster.sql(step, database)
            if not compared(ours, theirs):
                silent.append(step.split()[0])
        assert set(silent) == {"ALTER", "CREATE"}
        ours.changes.close()


@pytest.mark.feature("P23")
def test_random_moves_between_partitions_by_several_sessions_are_those_that_pgoutput_publishes(
    oracle_cluster: Cluster, database: str
) -> None:
    chance = random.Random(6)
    with PgOutput(oracle_cluster, database) as theirs:
        ours = GroupCollector(oracle_cluster, [database], selection=Selection(partition_roots=ROOTS))
        ours.settle()
        compared(ours, theirs)
        sessions = [oracle_cluster.connect(database, autocommit=False) for _ in range(3)]
        for _ in range(400):
            number = chance.randrange(len(sessions))
            key = number * 30 + chance.randrange(10)  # each session has its own keys: no lock waits
            b, other = chance.sample("xyz", 2)
            statement = chance.choice(
                (
                    f"INSERT INTO root VALUES ({key}, '{b}', {LONG.format(key)}) ON CONFLICT DO NOTHING",
                    f"UPDATE root SET doc = '{b}' WHERE a = {key}",
                    f"UPDATE root SET b = '{other}' WHERE a = {key} AND b = '{b}' AND {free(key, other)}",
                    f"UPDATE root SET a = a + 100 WHERE a = {key} AND b = 'z' AND {free(key + 100, 'z')}",
                    f"DELETE FROM root WHERE a = {key} AND b = '{b}'",
                )
            )
            sql(sessions[number], statement)
            if chance.random() < 0.3:
                sessions[number].rollback() if chance.random() < 0.2 else sessions[number].commit()
        for session in sessions:
            session.commit()
            session.close()
        assert len(compared(ours, theirs)) > 100
        ours.changes.close()
