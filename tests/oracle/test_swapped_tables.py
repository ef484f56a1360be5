"""Tables that exchange their names under load: each row is emitted under the table's name at the time of writing."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.oracles.oracle import Oracle
from tests.support.servers.postgres import Cluster, sql

DATABASE = "swapped"
JOIN_S = 60
SETUP = """
CREATE SCHEMA aside;
CREATE TABLE hot (id serial PRIMARY KEY, made_as text DEFAULT 'hot');
CREATE TABLE cold (id serial PRIMARY KEY, extra int DEFAULT 7, made_as text DEFAULT 'cold')
"""
SWAP = (
    "ALTER TABLE hot RENAME TO spare",
    "INSERT INTO spare DEFAULT VALUES",
    "ALTER TABLE cold RENAME TO hot",
    "ALTER TABLE spare RENAME TO cold",
    "INSERT INTO hot DEFAULT VALUES",
)
BETWEEN = (
    ("VACUUM FULL hot",),
    (
        "ALTER TABLE cold SET SCHEMA aside",
        "INSERT INTO aside.cold DEFAULT VALUES",
        "ALTER TABLE aside.cold SET SCHEMA public",
    ),
    ("TRUNCATE hot", "ALTER TABLE hot RENAME made_as TO called", "ALTER TABLE hot RENAME called TO made_as"),
    ("CLUSTER hot USING {0}",),
    ("ALTER TABLE hot ALTER id TYPE bigint", "ALTER TABLE hot ALTER id TYPE int"),
)
ROUNDS = 2 * len(BETWEEN)
ROWS = 6  # in each round at least; in three of them the other table is called hot


@pytest.fixture
def database(oracle_cluster: Cluster) -> Iterator[str]:
    oracle_cluster.sql(f"CREATE DATABASE {DATABASE}")
    oracle_cluster.sql(SETUP, DATABASE)
    yield DATABASE
    oracle_cluster.sql(f"DROP DATABASE {DATABASE} WITH (FORCE)")


@contextmanager
def writing(cluster: Cluster) -> Iterator[threading.Semaphore]:
    """Write rows to the table that is called hot, one a transaction; count each."""
    counted, stop = threading.Semaphore(0), threading.Event()

    def run() -> None:
        with cluster.connect(DATABASE) as session:
            while not stop.is_set():
                sql(session, "INSERT INTO hot DEFAULT VALUES")
                counted.release()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield counted
    finally:
        stop.set()
        thread.join(JOIN_S)


@pytest.mark.feature("P07")
def test_rows_of_tables_that_swap_names_under_load_have_the_name_of_their_time(
    oracle_cluster: Cluster, database: str
) -> None:
    with Oracle(oracle_cluster, database) as oracle:
        with writing(oracle_cluster) as counted, oracle_cluster.connect(database) as session:
            for number in range(ROUNDS):
                while counted.acquire(blocking=False):
                    pass  # a row from before the last swap
                for _ in range(ROWS):
                    assert counted.acquire(timeout=JOIN_S)
                sql(session, "BEGIN")
                for statement in SWAP:
                    sql(session, statement)
                sql(session, "COMMIT" if number % 3 else "ROLLBACK")
                ((index,),) = session.execute(
                    "SELECT relname FROM pg_class JOIN pg_index ON oid = indexrelid WHERE indrelid = 'hot'::regclass"
                ).fetchall()
                for statement in BETWEEN[number % len(BETWEEN)]:
                    sql(session, statement.format(index))
        lines = oracle.check("swaps")
    for made_as in ("hot", "cold"):
        reported = [line for line in lines if line.startswith("table public.hot: INSERT") and f"'{made_as}'" in line]
        assert len(reported) > ROUNDS, made_as
