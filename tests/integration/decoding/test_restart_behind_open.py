"""Reading again from the first record of a long transaction, where other transactions have ended since."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.processes.captures import change_log, replayed, running
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, sql
from tidemark.model.errors import ExitCode

MB = 1 << 20
HALF_WAY = 5  # the row at which the rewrite waits
GATE = 711  # an advisory lock
TABLES = """
    CREATE TABLE slow (id int PRIMARY KEY, note text);
    CREATE TABLE account (id int PRIMARY KEY, note text);
    CREATE TABLE wide (id int PRIMARY KEY, note text);
    ALTER TABLE wide ALTER note SET STORAGE EXTERNAL;
    CREATE TABLE narrow (id int PRIMARY KEY, note text);
    INSERT INTO narrow SELECT n, n FROM generate_series(1, 10) n;
    CREATE FUNCTION gated(text) RETURNS int LANGUAGE plpgsql AS $$
        BEGIN
            IF $1::int = %d THEN PERFORM pg_advisory_xact_lock_shared(%d); END IF;
            RETURN $1::int;
        END $$;
    CREATE PROCEDURE one_by_one(first int, count int) LANGUAGE plpgsql AS $$
        BEGIN
            FOR id IN first..first + count LOOP
                BEGIN INSERT INTO account VALUES (id, 'many'); EXCEPTION WHEN unique_violation THEN NULL; END;
            END LOOP;
        END $$
""" % (HALF_WAY, GATE)  # noqa: UP031 - braces would be doubled in an f-string

# The actions of each session before and after the first record of the long transaction.
SPLIT = {
    "a table made in a savepoint": (
        "SAVEPOINT s; CREATE TABLE made_{n} (id int PRIMARY KEY, note text)",
        "INSERT INTO made_{n} VALUES (1, 'sub'); RELEASE s; INSERT INTO made_{n} VALUES (2, 'top')",
    ),
    "a table made outside": (
        "CREATE TABLE made_{n} (id int PRIMARY KEY, note text)",
        "SAVEPOINT s; INSERT INTO made_{n} VALUES (1, 'sub'); ROLLBACK TO s; INSERT INTO made_{n} VALUES (2, 'top')",
    ),
    "a table made in a savepoint that was begun": (
        "SAVEPOINT s; INSERT INTO account VALUES ({n}00, 'before')",
        "CREATE TABLE made_{n} (id int PRIMARY KEY, note text); RELEASE s; INSERT INTO made_{n} VALUES (1, 'top')",
    ),
    "a column more": (
        "SAVEPOINT s; INSERT INTO account VALUES ({n}00, 'before')",
        "ALTER TABLE altered ADD more text; RELEASE s; INSERT INTO altered VALUES (1, 'x', repeat('y', 5000))",
    ),
    "savepoints that are rolled back": (
        "SAVEPOINT s; INSERT INTO account VALUES ({n}00, 'no'); SAVEPOINT t; INSERT INTO account VALUES ({n}01, 'no')",
        "CREATE TABLE made_{n} (id int); INSERT INTO made_{n} VALUES (1); ROLLBACK TO s",
    ),
    "more savepoints than one record names": (
        "CALL one_by_one({n}00, 70); SAVEPOINT s; INSERT INTO account VALUES ({n}80, 'before')",
        "INSERT INTO account VALUES ({n}81, 'sub'); CALL one_by_one({n}82, 15); RELEASE s",
    ),
}


@pytest.fixture
def database(cluster: Cluster, database: str) -> str:
    cluster.sql(TABLES, database)
    cluster.sql("CREATE TABLE altered (id int PRIMARY KEY, note text)", database)
    return database


def table_of(cluster: Cluster, database: str, name: str) -> dict[object, dict[str, object]]:
    rows = cluster.sql(f"SELECT id, note FROM {name}", database)
    return {number: {"id": number, "note": note} for number, note in rows}


@contextmanager
def in_background(session: psycopg.Connection, statement: str) -> Iterator[threading.Thread]:
    """Run a statement in the background, and commit."""

    def run() -> None:
        sql(session, statement)
        session.commit()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


@contextmanager
def rewrite_half_done(cluster: Cluster, database: str, session: psycopg.Connection) -> Iterator[None]:
    """Rewrite a table, and block the rewrite half way."""
    with cluster.connect(database) as gate:
        sql(gate, f"SELECT pg_advisory_lock({GATE})")
        with in_background(session, "ALTER TABLE narrow ALTER note TYPE int USING gated(note)"):
            waits = f"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {session.info.backend_pid}"
            wait_until(lambda: bool(cluster.sql(waits)[0][0]))
            yield
            sql(gate, f"SELECT pg_advisory_unlock({GATE})")


@contextmanager
def value_half_written(cluster: Cluster, session: psycopg.Connection, number: int) -> Iterator[threading.Thread]:
    """Write a value so large that other sessions write within it."""

    def written() -> int:
        return int(str(cluster.sql("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0]))

    before = written()
    with in_background(session, f"INSERT INTO wide SELECT {number}, repeat('x', 80000000)") as thread:
        wait_until(lambda: written() > before + 4 * MB)
        yield thread


def begin_split(cluster: Cluster, database: str, stack: ExitStack) -> dict[str, psycopg.Connection]:
    sessions = {}
    for number, (name, (before, _)) in enumerate(SPLIT.items(), 1):
        sessions[name] = stack.enter_context(cluster.connect(database, autocommit=False))
        sql(sessions[name], before.replace("{n}", str(number)))
    return sessions


def end_split(sessions: dict[str, psycopg.Connection]) -> None:
    for number, (name, (_, after)) in enumerate(SPLIT.items(), 1):
        sql(sessions[name], after.replace("{n}", str(number)))
        sessions[name].commit()


@pytest.mark.feature("P03")
def test_a_restart_reads_into_the_middle_of_any_transaction_that_is_delivered_already(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    with running(cluster, database, tmp_path) as sidecar, ExitStack() as stack:
        slow = stack.enter_context(cluster.connect(database, autocommit=False))
        rewriter = stack.enter_context(cluster.connect(database, autocommit=False))
        sessions = begin_split(cluster, database, stack)
        with rewrite_half_done(cluster, database, rewriter):
            sql(slow, "INSERT INTO slow VALUES (1, 'long open')")  # a restart begins here
        end_split(sessions)
        cluster.sql("INSERT INTO slow VALUES (2, 'delivered')", database)
        sidecar.catch_up()
        sidecar.kill()
        sidecar.start()
        sql(slow, "UPDATE slow SET note = 'long done' WHERE id = 1")
        sql(slow, "INSERT INTO account VALUES (1, 'of the long one')")
        slow.commit()
        cluster.sql("INSERT INTO narrow VALUES (11, 11)", database)
        items = sidecar.catch_up()
        for name in ("slow", "account", "made_1", "made_2", "made_3"):
            rows = replayed(change_log(items, name))
            assert rows == table_of(cluster, database, name), name
        assert [row["_op"] for row in change_log(items, "narrow")] == ["r"] * 10 + ["i"]
        assert sidecar.stop() == ExitCode.SUCCESS


def test_a_restart_reads_into_the_middle_of_a_value(cluster: Cluster, database: str, tmp_path: Path) -> None:
    with running(cluster, database, tmp_path) as sidecar, ExitStack() as stack:
        slow = stack.enter_context(cluster.connect(database, autocommit=False))
        writer = stack.enter_context(cluster.connect(database, autocommit=False))
        sql(slow, "SELECT 1")
        for number in itertools.count(1):
            with value_half_written(cluster, writer, number) as thread:
                sql(slow, "INSERT INTO slow VALUES (1, 'long open')")
                if thread.is_alive():
                    break
            slow.rollback()  # the value existed already
        cluster.sql("INSERT INTO slow VALUES (2, 'delivered')", database)
        sidecar.catch_up()
        sidecar.kill()
        sidecar.start()
        slow.commit()
        items = sidecar.catch_up()
        assert set(replayed(change_log(items, "slow"))) == {1, 2}
        assert set(replayed(change_log(items, "wide"))) == set(range(1, number + 1))


@pytest.mark.feature("N04")
def test_decoding_an_archive_begins_in_the_middle_of_any_transaction_that_is_not_requested(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    with (
        running(cluster, database, tmp_path, TIDEMARK_HISTORY__BASE_EVERY_BYTES=str(MB)) as sidecar,
        ExitStack() as stack,
    ):
        slow = stack.enter_context(cluster.connect(database, autocommit=False))
        rewriter = stack.enter_context(cluster.connect(database, autocommit=False))
        sessions = begin_split(cluster, database, stack)
        with rewrite_half_done(cluster, database, rewriter):
            sql(slow, "INSERT INTO slow VALUES (1, 'long open')")
        end_split(sessions)
        bases = len(list(sidecar.folder.history.glob("base-*")))
        cluster.sql("INSERT INTO wide SELECT n, repeat('x', 1000) FROM generate_series(1, 4000) n", database)
        wait_until(lambda: len(list(sidecar.folder.history.glob("base-*"))) > bases)
        sidecar.catch_up()
        from_lsn = cluster.sql("SELECT pg_current_wal_insert_lsn()::text")[0][0]
        cluster.sql("INSERT INTO account VALUES (9999, 'asked for')", database)
        slow.commit()
        sidecar.catch_up()
        assert sidecar.stop() == ExitCode.SUCCESS
    asked = ("decode", "--state", sidecar.folder.root, "--archive", cluster.data / "pg_wal", "--from", str(from_lsn))
    done = succeeded(cdcctl(*asked, "--format", "test_decoding"))
    changes = [line for line in done.lines if line.startswith("table ")]
    assert changes == [
        "table public.account: INSERT: id[integer]:9999 note[text]:'asked for'",
        "table public.slow: INSERT: id[integer]:1 note[text]:'long open'",
    ]


def test_waiting_for_wal_while_it_is_read_again_never_moves_delivered_back(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    with (
        running(cluster, database, tmp_path, TIDEMARK_DELIVER__IDLE_POINTER_S="0.001") as sidecar,
        ExitStack() as stack,
    ):
        slow = stack.enter_context(cluster.connect(database, autocommit=False))
        sql(slow, "INSERT INTO slow VALUES (0, 'long open')")
        cluster.sql("INSERT INTO slow SELECT n, repeat('x', 500) FROM generate_series(1, 30000) n", database)
        sidecar.catch_up()
        sidecar.kill()
        sidecar.start()
        slow.commit()
        assert len(replayed(change_log(sidecar.catch_up(), "slow"))) == 30_001
