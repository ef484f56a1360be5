"""Random sessions against a server: DDL, row changes, savepoints, two-phase and catalog rewrites, all at once.

Each session has its own generator, seeded: a failing run's seed gives the same statements again, though not the same
interleaving. Statements fail as they like (a table is gone, a lock is not to be had): the transaction is rolled back
and the next begins. A session that loses its server waits for the next one.
"""

import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psycopg

from tests.support.postgres import Cluster, Session, sql

TABLES = 8
COLUMNS = 6
COLUMN_TYPES = (
    "int",
    "bigint",
    "text",
    "numeric(12,3)",
    "timestamptz",
    "bool",
    "int[]",
    "jsonb",
    "uuid",
    "float8",
    "date",
    "int4range",
    "point",
    "tsvector",
    "pair",
)
CATALOGS = ("pg_class", "pg_attribute", "pg_type", "pg_index", "pg_enum", "pg_namespace", "pg_inherits", "pg_range")
JOIN_TIMEOUT_S = 30
SETTINGS = ("SET lock_timeout = '150ms'", "SET statement_timeout = '5s'", "SET deadlock_timeout = '100ms'")


class FuzzSession:
    """One session's statements, by its own random generator."""

    def __init__(self, cluster: Cluster, database: str, seed: int, *, messages: bool = True) -> None:
        self._cluster = cluster
        self._database = database
        self._random = random.Random(seed)
        self._messages = messages
        self._number = seed * 1_000_000
        self._schema = ""
        self.transactions = 0
        self.failures = 0

    def run(self, stopped: Callable[[], bool]) -> None:
        """Run transactions until told to stop."""
        session: Session | None = None
        while not stopped():
            try:
                session = session or self._connect()
                self._transaction(session)
                self.transactions += 1
            except psycopg.errors.SyntaxError:
                raise  # ours
            except psycopg.Error:
                self.failures += 1
                if session is None:
                    time.sleep(0.05)  # the server is down: try again, until told to stop
                elif not _rolled_back(session):
                    session.close()
                    session = None
        if session is not None:
            session.close()

    def _connect(self) -> Session:
        session = self._cluster.connect(self._database)
        for setting in SETTINGS:
            sql(session, setting)
        return session

    def _transaction(self, session: Session) -> None:
        choice = self._random.random()
        if choice < 0.03:
            sql(session, self._alone())
        elif choice < 0.35:
            sql(session, self._statement())
        else:
            self._block(session)

    def _block(self, session: Session) -> None:
        sql(session, "BEGIN")
        savepoints = 0
        for _ in range(self._random.randint(1, 8)):
            choice = self._random.random()
            if choice < 0.15:
                sql(session, f"SAVEPOINT s{savepoints}")
                savepoints += 1
            elif choice < 0.25 and savepoints:
                savepoints -= 1
                sql(session, f"{self._random.choice(('RELEASE', 'ROLLBACK TO'))} s{savepoints}")
            else:
                sql(session, self._statement())
        choice = self._random.random()
        if choice < 0.1:
            sql(session, "ROLLBACK")
        elif choice < 0.2:
            self._prepare(session)
        else:
            sql(session, "COMMIT")

    def _prepare(self, session: Session) -> None:
        self._number += 1
        gid = f"fuzz_{self._number}"
        sql(session, f"PREPARE TRANSACTION '{gid}'")
        try:
            if self._random.random() < 0.3:
                sql(session, self._insert())
        finally:
            # Left behind, it would hold its locks and every seed for good.
            sql(session, "SET statement_timeout = 0")
            sql(session, f"{self._random.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} PREPARED '{gid}'")
            sql(session, SETTINGS[1])

    def _alone(self) -> str:
        return self._random.choice(
            (
                f"VACUUM FULL {self._random.choice(CATALOGS)}",
                f"VACUUM {self._table()}",
                f"VACUUM FULL {self._table()}",
                "ANALYZE",
                "CHECKPOINT",
                f"VACUUM {self._random.choice(CATALOGS)}",
                f"REINDEX TABLE {self._random.choice(('pg_class', 'pg_attribute'))}",
            )
        )

    def _statement(self) -> str:
        kind = self._random.random()
        if kind < 0.45:
            return self._insert()
        if kind < 0.6:
            which = f"id % 7 = {self._random.randrange(7)}"
            return f"UPDATE {self._table()} SET {self._column()} = {self._value()} WHERE {which}"
        if kind < 0.67:
            return f"DELETE FROM {self._table()} WHERE id % 11 = {self._random.randrange(11)}"
        if kind < 0.7 and self._messages:
            transactional = self._random.choice(("true", "false"))
            return f"SELECT pg_logical_emit_message({transactional}, 'fuzz', 'message {self._random.random()}')"
        return self._ddl()

    def _insert(self) -> str:
        self._number += 1
        rows = self._random.choice((1, 1, 1, 5, 80))
        ids = f"generate_series({self._number}, {self._number + rows - 1})"
        self._number += rows
        conflict = self._random.choice(("", "", f" ON CONFLICT (id) DO UPDATE SET {self._column()} = {self._value()}"))
        filled = self._column()
        return f"INSERT INTO {self._table()} (id, {filled}) SELECT i, {self._value()} FROM {ids} i{conflict}"

    def _ddl(self) -> str:
        table, column, random_ = self._table(), self._column(), self._random
        type_ = random_.choice(COLUMN_TYPES)
        return random_.choice(
            (
                f"CREATE TABLE {table} (id bigint PRIMARY KEY, {column} text)",
                f"CREATE TABLE {table} (id bigint PRIMARY KEY, {column} {type_})",
                f"CREATE TABLE IF NOT EXISTS {table} AS SELECT 1::bigint AS id, 'x'::text AS {column}",
                f"DROP TABLE {table}",
                f"ALTER TABLE {table} ADD COLUMN {column} {type_}",
                f"ALTER TABLE {table} ADD COLUMN {column} text DEFAULT 'default'",
                f"ALTER TABLE {table} ADD COLUMN {column} int DEFAULT (random() * 9)::int",
                f"ALTER TABLE {table} ADD COLUMN {column} mood DEFAULT 'ok'",
                f"ALTER TABLE {table} DROP COLUMN {column}",
                f"ALTER TABLE {table} ALTER COLUMN {column} TYPE text",
                f"ALTER TABLE {table} RENAME COLUMN {column} TO {self._column()}",
                f"ALTER TABLE {table} RENAME TO {self._table()}",
                f"ALTER TABLE {table} REPLICA IDENTITY {random_.choice(('FULL', 'DEFAULT', 'NOTHING'))}",
                f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL",
                f"TRUNCATE {table}",
                f"CREATE INDEX ON {table} ({column})",
                f"CLUSTER {table} USING {table}_pkey",
                f"ALTER TYPE mood ADD VALUE 'mood {random_.random()}'",
                f"CREATE TEMP TABLE temp_{random_.randrange(1000)} (a int) ON COMMIT DROP",
                f"SELECT 1 FROM pg_class WHERE relname = '{table}' FOR UPDATE",
                f"GRANT SELECT ON {table} TO public",
                f"COMMENT ON TABLE {table} IS 'random'",
            )
        )

    def _table(self) -> str:
        return f"t{self._random.randrange(TABLES)}"

    def _column(self) -> str:
        return f"c{self._random.randrange(COLUMNS)}"

    def _value(self) -> str:
        return self._random.choice(
            (
                "NULL",
                f"'{self._random.randrange(1000)}'",
                "'2024-01-01'",
                "repeat('pglz', 2000)",
                "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 200) n)",
                "'{1,2}'",
                "'true'",
                "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
                "'ok'",
                "'[1,5)'",
                "'(1,2)'",
            )
        )


class Fuzz:
    """Sessions in threads, from `with` to its end."""

    def __init__(self, cluster: Cluster, database: str, seed: int, sessions: int = 4, *, messages: bool = True) -> None:
        self.cluster = cluster
        self.database = database
        self.sessions = [
            FuzzSession(cluster, database, seed * 100 + number, messages=messages) for number in range(sessions)
        ]
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=session.run, args=(self._stop.is_set,), daemon=True) for session in self.sessions
        ]

    def __enter__(self) -> Self:
        prepare(self.cluster, self.database)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def transactions(self) -> int:
        return sum(session.transactions for session in self.sessions)

    def stop(self) -> None:
        """Stop the sessions and commit what they left prepared; may be called again."""
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT_S)
            assert not thread.is_alive(), "a session does not end"
        if self.cluster.running:
            query = f"SELECT gid FROM pg_prepared_xacts WHERE database = '{self.database}'"
            for (gid,) in self.cluster.sql(query, self.database):
                self.cluster.sql(f"COMMIT PREPARED '{gid}'", self.database)


def prepare(cluster: Cluster, database: str) -> None:
    """Make what the sessions start from."""
    cluster.sql("DROP TYPE IF EXISTS mood CASCADE", database)
    cluster.sql("CREATE TYPE mood AS ENUM ('sad', 'ok')", database)
    cluster.sql("CREATE TYPE pair AS (a int, b text)", database)
    for number in range(TABLES // 2):
        cluster.sql(f"CREATE TABLE IF NOT EXISTS t{number} (id bigint PRIMARY KEY, c0 text, c1 text, c2 int)", database)


def _rolled_back(session: Session) -> bool:
    try:
        sql(session, "ROLLBACK")
    except psycopg.Error:
        return False
    return True
