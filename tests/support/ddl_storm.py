"""Sessions that change the catalogs at random, side by side: DDL, savepoints, two-phase, rewrites, checkpoints.

What they do is drawn from a seeded generator; how they interleave is the server's affair. Statements may fail (a table
that another session dropped, a deadlock): a session then rolls back and goes on, and after a crash it connects again.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.rows import TupleRow

from tests.support.postgres import Cluster, sql

TABLES = 12
STATEMENT_TIMEOUT_MS = 5_000
LOCK_TIMEOUT_MS = 500
CATALOGS = ("pg_class", "pg_attribute", "pg_type", "pg_namespace", "pg_index", "pg_enum", "pg_range", "pg_inherits")
TYPES = (
    "int",
    "bigint",
    "text",
    "numeric(10,2)",
    "timestamptz",
    "int[]",
    "mood",
    "pair",
    "positive",
    "mood[]",
    "jsonb",
)
PREPARE = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN positive AS int CHECK (value > 0)",
    "CREATE SCHEMA app",
    "CREATE TABLE parent (k int, v text) PARTITION BY LIST (k)",
)


class Session(threading.Thread):
    """One connection's random work until told to stop."""

    def __init__(self, cluster: Cluster, database: str, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.done = 0
        self.failed: list[str] = []
        self._cluster = cluster
        self._database = database
        self._random = random.Random(seed)
        self._stop_event = stop
        self._number = seed
        self._gids: list[str] = []

    def run(self) -> None:
        while not self._stop_event.is_set():
            try:
                with self._cluster.connect(self._database) as session:
                    sql(session, f"SET statement_timeout = {STATEMENT_TIMEOUT_MS}")
                    sql(session, f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
                    while not self._stop_event.is_set():
                        self._work(session)
            except psycopg.OperationalError as error:
                self.failed.append(str(error))
                self._stop_event.wait(0.1)

    def _work(self, session: psycopg.Connection[TupleRow]) -> None:
        statements = [self._ddl()]
        draw = self._random.random()
        if draw < 0.6:
            statements = self._transaction()
        elif draw < 0.7:
            statements = [
                self._random.choice(("CHECKPOINT", f"VACUUM {self._catalog()}", f"VACUUM FULL {self._table()}"))
            ]
        for statement in statements:
            try:
                sql(session, statement)
                self.done += 1
            except psycopg.Error as error:
                if session.closed:
                    raise psycopg.OperationalError(str(error)) from error
                self.failed.append(f"{statement}: {str(error).splitlines()[0]}")
                if session.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
                    sql(session, "ROLLBACK")
                    return

    def _transaction(self) -> list[str]:
        statements = ["BEGIN"]
        for number in range(self._random.randint(1, 5)):
            if self._random.random() < 0.4:
                statements += [f"SAVEPOINT s{number}", self._ddl(), self._ddl()]
                statements.append(f"{self._random.choice(('ROLLBACK TO', 'RELEASE'))} s{number}")
            statements += [self._ddl(), f"INSERT INTO {self._table()} DEFAULT VALUES"]
        end = self._random.random()
        if end < 0.15:
            gid = f"g{self._number}_{self.done}"
            finish = self._random.choice(("COMMIT", "ROLLBACK"))
            return [*statements, f"PREPARE TRANSACTION '{gid}'", f"{finish} PREPARED '{gid}'"]
        return [*statements, "COMMIT" if end < 0.75 else "ROLLBACK"]

    def _catalog(self) -> str:
        return self._random.choice(CATALOGS)

    def _table(self) -> str:
        return f"t{self._random.randrange(TABLES)}"

    def _ddl(self) -> str:
        choose = self._random
        table, number, kind = self._table(), choose.randrange(5), choose.choice(TYPES)
        name = f"x{self._number}_{choose.randrange(10**9)}"
        return choose.choice(
            (
                f"CREATE TABLE IF NOT EXISTS {table} (id serial PRIMARY KEY, c0 text DEFAULT 'x')",
                f"CREATE TABLE IF NOT EXISTS {table} (id serial PRIMARY KEY, c0 text DEFAULT 'x')",
                f"DROP TABLE IF EXISTS {table}",
                f"ALTER TABLE IF EXISTS {table} ADD COLUMN IF NOT EXISTS c{number} {kind}",
                f"ALTER TABLE IF EXISTS {table} ADD COLUMN IF NOT EXISTS c{number} int NOT NULL DEFAULT {number}",
                f"ALTER TABLE IF EXISTS {table} DROP COLUMN IF EXISTS c{number}",
                f"ALTER TABLE IF EXISTS {table} RENAME COLUMN c{number} TO c{choose.randrange(5)}",
                f"ALTER TABLE IF EXISTS {table} ALTER COLUMN c0 TYPE varchar({choose.randint(10, 99)})",
                f"ALTER TABLE IF EXISTS {table} RENAME TO {self._table()}",
                f"ALTER TABLE IF EXISTS {table} REPLICA IDENTITY {choose.choice(('FULL', 'DEFAULT', 'NOTHING'))}",
                f"ALTER TABLE IF EXISTS {table} SET SCHEMA app",
                f"ALTER TABLE IF EXISTS app.{table} SET SCHEMA public",
                f"CREATE INDEX ON {table} (c0)",
                f"TRUNCATE {table}",
                f"GRANT SELECT (c0, ctid) ON {table} TO PUBLIC",
                f"ALTER TYPE mood ADD VALUE '{name}'",
                f"ALTER TYPE pair ADD ATTRIBUTE {name} int",
                f"CREATE TYPE {name} AS RANGE (subtype = int)",
                f"CREATE TABLE {name} PARTITION OF parent FOR VALUES IN ({choose.randrange(10**6)})",
                f"CREATE TABLE {name} AS SELECT generate_series(1, 3) AS a, 'b'::text AS b",
                f"CREATE TEMP TABLE {name} (a int)",
                f"COMMENT ON TABLE {table} IS '{name}'",
            )
        )


class Rewriter(Session):
    """Rewrites catalogs, one after the other, now and then inside a transaction with DDL after it."""

    def _work(self, session: psycopg.Connection[TupleRow]) -> None:
        catalog = self._random.choice(CATALOGS)
        work = [f"VACUUM FULL {catalog}"]
        if self._random.random() < 0.4:
            name = f"r{self._number}_{self.done}"
            cluster = "CLUSTER pg_class USING pg_class_oid_index"
            end = self._random.choice(("COMMIT", "ROLLBACK"))
            work = [
                "BEGIN",
                f"CREATE TABLE {name} (a int, b mood)",
                cluster,
                f"ALTER TABLE {name} ADD COLUMN c int",
                end,
            ]
        for statement in work:
            try:
                sql(session, statement)
                self.done += 1
            except psycopg.Error as error:
                if session.closed:
                    raise psycopg.OperationalError(str(error)) from error
                self.failed.append(f"{statement}: {str(error).splitlines()[0]}")
                if session.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
                    sql(session, "ROLLBACK")
                return


@contextmanager
def storm(
    cluster: Cluster, database: str, seed: int, *, sessions: int = 3, rewriters: int = 0
) -> Iterator[list[Session]]:
    """Let sessions work while the block runs; all have ended when it is left, prepared transactions included."""
    with cluster.connect(database) as session:
        for statement in PREPARE:
            sql(session, statement)
    stop = threading.Event()
    threads: list[Session] = [Session(cluster, database, seed + number, stop) for number in range(sessions)]
    threads += [Rewriter(cluster, database, seed + 100 + number, stop) for number in range(rewriters)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        with cluster.connect(database) as session:
            for (gid,) in sql(session, "SELECT gid FROM pg_prepared_xacts"):
                sql(session, f"ROLLBACK PREPARED '{gid}'")


def until_done(threads: list[Session], statements: int, timeout_s: float = 60) -> None:
    """Wait until the sessions have done so many statements together."""
    deadline = time.monotonic() + timeout_s
    while sum(thread.done for thread in threads) < statements:
        assert time.monotonic() < deadline, [thread.failed[-3:] for thread in threads]
        time.sleep(0.05)
