"""Workloads for the oracle: scripts of SQL for several sessions, and pgbench."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg

from tests.support.servers.postgres import Cluster, Session, sql

SCRIPTS = Path(__file__).parents[2] / "oracle" / "scripts"
_SINCE = re.compile(r"^-- since (\d+)$")


def statements(script: str, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield the statements of a script for a cluster, each with the session that runs it.

    A statement ends with a line that ends with a semicolon. `\\session b` switches; `-- since 15` leaves the next
    statement out before that major, `-- with lz4` where the server was built without.
    """
    session, wanted, collected = "a", True, ""
    for line in (SCRIPTS / f"{script}.sql").read_text().splitlines():
        if line.startswith("\\session "):
            session = line.split()[1]
        elif found := _SINCE.match(line):
            wanted = cluster.major >= int(found[1])
        elif line == "-- with lz4":
            wanted = "lz4" in choices(cluster, "default_toast_compression")
        elif line.startswith("--") or not line.strip():
            continue
        else:
            collected += line + "\n"
            if line.endswith(";"):
                if wanted:
                    yield session, collected.rstrip(";\n")
                wanted, collected = True, ""
    assert not collected, f"{script}.sql ends in the middle of {collected!r}"


def choices(cluster: Cluster, setting: str) -> list[str]:
    """Return the values that an enum setting accepts on this server; `on` and `off` for a boolean one."""
    ((values,),) = cluster.sql(f"SELECT enumvals FROM pg_settings WHERE name = '{setting}'")
    return [str(value) for value in values or ("on", "off")]


def run_script(
    cluster: Cluster, database: str, script: str, *, every: int = 0, between: Callable[[], object] | None = None
) -> None:
    """Run a script; call `between` after each `every` statements."""
    with ExitStack() as stack:
        sessions: dict[str, Session] = {}
        for number, (name, statement) in enumerate(statements(script, cluster), 1):
            if name not in sessions:
                sessions[name] = stack.enter_context(cluster.connect(database))
            try:
                sql(sessions[name], statement)
            except psycopg.Error as error:
                raise AssertionError(f"{script}.sql: {statement}\n{error}") from error
            if between is not None and every and number % every == 0:
                between()


def pgbench(cluster: Cluster, database: str, *, transactions: int, clients: int = 4, seed: int = 1) -> None:
    """Run TPC-B; create the tables if necessary."""
    if not cluster.sql("SELECT 1 FROM pg_class WHERE relname = 'pgbench_accounts'", database):
        cluster.client("pgbench", "-i", "-q", "-s", "1", database)
    each = str(transactions // clients)
    cluster.client("pgbench", "-n", "-c", str(clients), "-j", "2", "-t", each, "--random-seed", str(seed), database)


def savepoint_storm(cluster: Cluster, database: str, operations: int = 220) -> None:
    """Nest, release and roll back savepoints in one large transaction with DDL, past the 64 of an assignment."""
    with cluster.connect(database, autocommit=False) as session:
        sql(session, "CREATE TABLE storm (id int PRIMARY KEY, v text)")
        depth = 0
        for number in range(operations):
            match number % 7:
                case 0 | 1 | 3:
                    sql(session, f"SAVEPOINT s{depth}")
                    depth += 1
                case 2 if depth:
                    depth -= 1
                    sql(session, f"RELEASE s{depth}")
                case 4 if depth > 1:
                    depth -= 1
                    sql(session, f"ROLLBACK TO s{depth}")
                case 5:
                    sql(session, f"ALTER TABLE storm ADD COLUMN c{number} int DEFAULT {number}")
                case _:
                    sql(session, f"CREATE TABLE storm_{number} (a int)")
                    sql(session, f"INSERT INTO storm_{number} VALUES ({number})")
            sql(session, f"INSERT INTO storm (id, v) VALUES ({number}, 'n{number}')")
            if number % 3 == 0:
                sql(session, f"UPDATE storm SET v = v || '!' WHERE id % 5 = {number % 5}")
        session.commit()
    with cluster.connect(database, autocommit=False) as session:
        for number in range(operations):  # all at one level, half of them rolled back
            sql(session, "SAVEPOINT s")
            sql(session, f"INSERT INTO storm (id, v) VALUES ({1000 + number}, 'flat')")
            sql(session, "ROLLBACK TO s" if number % 2 else "RELEASE s")
        session.commit()
