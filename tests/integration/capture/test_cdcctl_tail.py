"""`cdcctl tail` on any node: from now on with only a DSN, or from the past with a state folder."""

import json
import re
import signal
import subprocess
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.oracles.oracle import ROLE, ServerSide, ensure_role
from tests.support.processes.cdcctl import cdcctl, command, environment, refused, running, succeeded
from tests.support.servers.postgres import Cluster, sql
from tidemark.model.errors import ExitCode

FOLLOWING = "changes follow from here on"
INTERRUPTED = 130


@pytest.fixture
def database(cluster: Cluster, database: str) -> str:
    ensure_role(cluster)
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
    cluster.sql("CHECKPOINT")  # a seed replays WAL from here
    return database


def insert(cluster: Cluster, database: str, number: int, note: str = "x") -> None:
    cluster.sql(f"INSERT INTO account VALUES ({number}, '{note}')", database)


def test_the_first_line_is_the_first_commit_after_the_start(cluster: Cluster, database: str, tmp_path: Path) -> None:
    insert(cluster, database, 1, "before")
    with running(tmp_path, "tail", cluster.dsn(database, ROLE)) as tail:
        tail.wait_for_err(FOLLOWING)
        insert(cluster, database, 2, "after")
        cluster.sql("ALTER TABLE account ADD COLUMN more int DEFAULT 7", database)
        insert(cluster, database, 3)
        items = [json.loads(line) for line in tail.wait_for_lines(3)]
        assert tail.stop() == INTERRUPTED
    assert [item["op"] for item in items] == ["i", "schema", "i"]
    assert items[0]["after"] == {"id": 2, "note": "after"}
    assert items[2]["after"] == {"id": 3, "note": "x", "more": 7}
    assert "Traceback" not in tail.err


def test_it_says_that_no_table_matches_at_present(cluster: Cluster, database: str, tmp_path: Path) -> None:
    with running(tmp_path, "tail", cluster.dsn(database, ROLE), "--table", "later") as tail:
        tail.wait_for_err(FOLLOWING)
        assert "no table matches later at present" in tail.err
        cluster.sql("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (4)", database)
        items = [json.loads(line) for line in tail.wait_for_lines(2)]
        tail.stop()
    assert [item["op"] for item in items] == ["schema", "i"]
    with running(tmp_path, "tail", cluster.dsn(database, ROLE), "--table", "account") as other:
        other.wait_for_err(FOLLOWING)
        other.stop()
    assert "no table matches" not in other.err


def test_until_ends_it_before_the_first_commit_at_that_lsn(cluster: Cluster, database: str, tmp_path: Path) -> None:
    """The LSN is ahead of WAL when tail starts: two segments are skipped, so that a commit is surely after it."""
    ((ahead,),) = cluster.sql("SELECT pg_current_wal_insert_lsn() + 2 * 16 * 1024 * 1024")
    arguments = ("tail", cluster.dsn(database, ROLE), "--format", "test_decoding", "--until", str(ahead))
    with running(tmp_path, *arguments) as tail:
        tail.wait_for_err(FOLLOWING)
        insert(cluster, database, 1, "below")
        for _ in range(3):
            cluster.sql("SELECT pg_logical_emit_message(true, 'filler', ''), pg_switch_wal()")
        insert(cluster, database, 2, "beyond")
        done = succeeded(tail.ended())
    kept = [line for line in done.lines if line.startswith("table ")]
    assert kept == ["table public.account: INSERT: id[integer]:1 note[text]:'below'"]


def test_it_names_the_older_transactions_that_it_waits_for(cluster: Cluster, database: str, tmp_path: Path) -> None:
    gid = f"left over {uuid.uuid4().hex[:8]}"
    cluster.sql(f"BEGIN; INSERT INTO account VALUES (1, 'prepared'); PREPARE TRANSACTION '{gid}'", database)
    try:
        with (
            cluster.connect(database, autocommit=False) as session,
            running(tmp_path, "tail", cluster.dsn(database, ROLE)) as tail,
        ):
            sql(session, "INSERT INTO account VALUES (2, 'open')")
            tail.wait_for_err(f"prepared transaction '{gid}'")
            assert f"process {session.info.backend_pid} (" in tail.err
            session.commit()
            tail.wait_for(lambda: len(reported_waits(tail.err)) > 1, "that one is left")
            assert tail.out == []
            cluster.sql(f"COMMIT PREPARED '{gid}'", database)
            tail.wait_for_err(FOLLOWING)
            insert(cluster, database, 3)
            (line,) = tail.wait_for_lines(1)
            tail.stop()
    finally:
        for (left,) in cluster.sql("SELECT gid FROM pg_prepared_xacts", database):
            cluster.sql(f"ROLLBACK PREPARED '{left}'", database)
    assert json.loads(line)["after"]["id"] == 3  # the others had ended before the changes began
    both, one = reported_waits(tail.err)
    assert "process" in both
    assert "process" not in one


def reported_waits(err: str) -> list[str]:
    """Return the lines about waits: one for each set of transactions, not one a second."""
    return re.findall("^waiting for older transactions to end: (.*)$", err, re.MULTILINE)


def test_a_wait_that_takes_too_long_ends_with_the_names(cluster: Cluster, database: str) -> None:
    with cluster.connect(database, autocommit=False) as session:
        sql(session, "INSERT INTO account VALUES (1, 'open')")
        done = cdcctl("tail", cluster.dsn(database, ROLE), "--wait-s", "0.2")
        refused(done, ExitCode.NODE_UNFIT, f"process {session.info.backend_pid}")


def test_a_state_shows_the_past_and_then_the_present(cluster: Cluster, database: str, tmp_path: Path) -> None:
    state, dsn = tmp_path / "state", cluster.dsn(database, ROLE)
    server = ServerSide(cluster, database)
    succeeded(cdcctl("init", "--state", state, "--dsn", dsn))
    server.lines()
    insert(cluster, database, 1, "skipped")
    skipped = server.lines()
    ((begin,),) = cluster.sql("SELECT pg_current_wal_insert_lsn()")
    with cluster.connect(database) as session:
        sql(session, "BEGIN; INSERT INTO account VALUES (2, 'past'); SAVEPOINT s; DELETE FROM account")
        sql(session, "ROLLBACK TO s; UPDATE account SET id = 5 WHERE id = 2; COMMIT")
        sql(session, "ALTER TABLE account ADD COLUMN more int DEFAULT 7")
        sql(session, "INSERT INTO account VALUES (3, 'past', 8)")
    past = server.lines()
    until = cluster.flush_lsn()
    in_the_past = ("tail", "--state", state, "--from", str(begin), "--format", "test_decoding")
    assert succeeded(cdcctl(*in_the_past, "--until", until)).lines == past
    with running(tmp_path, "tail", "--state", state, "--format", "test_decoding") as tail:
        assert tail.wait_for_lines(len(skipped + past)) == skipped + past
        insert(cluster, database, 4, "present")
        present = server.lines()
        assert tail.wait_for_lines(len(skipped + past + present)) == skipped + past + present
        assert tail.stop() == INTERRUPTED
    server.drop()


def test_wal_removed_before_the_first_change_makes_tail_begin_again(new_cluster: NewCluster, tmp_path: Path) -> None:
    node = new_cluster(15, wal_keep_size=0, max_wal_size="32MB", min_wal_size="32MB")
    node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    node.sql("CHECKPOINT")
    with ExitStack() as stack:
        session = stack.enter_context(node.connect(autocommit=False))
        sql(session, "INSERT INTO account VALUES (1, 'open')")  # the seed does not wait for it, but the changes do
        tail = stack.enter_context(running(tmp_path, "tail", node.dsn()))
        tail.wait_for_err("waiting for older transactions")
        tail.process.send_signal(signal.SIGSTOP)
        node.sql(f"SELECT pg_logical_emit_message(false, 'x', repeat('x', {8 << 20}))")
        for _ in range(3):
            node.sql("SELECT pg_logical_emit_message(true, 'x', 'x'), pg_switch_wal()")
            node.sql("CHECKPOINT")
        tail.process.send_signal(signal.SIGCONT)
        tail.wait_for_err("attempt 1 of ")
        session.commit()
        tail.wait_for(lambda: tail.err.count("seeded at") > 1, "another seed")
        tail.wait_for_err(FOLLOWING)
        insert(node, "postgres", 2)
        (line,) = tail.wait_for_lines(1)
        assert tail.stop() == INTERRUPTED
    assert json.loads(line)["after"]["id"] == 2


def test_a_stream_that_breaks_is_reported_and_opened_again(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(15)
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    with running(tmp_path, "tail", cluster.dsn()) as tail:
        tail.wait_for_err(FOLLOWING)
        cluster.restart()
        tail.wait_for_err("the stream was interrupted, reconnecting: ")
        insert(cluster, "postgres", 1)
        (line,) = tail.wait_for_lines(1)
        tail.stop()
    assert json.loads(line)["after"]["id"] == 1


def test_a_start_far_behind_the_end_of_the_nodes_wal_is_refused(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    succeeded(cdcctl("init", "--dsn", cluster.dsn(database, ROLE), "--state", state))
    done = cdcctl("tail", "--state", state, "--from", "F/7000000")
    refused(done, ExitCode.CONFIG, "--from F/7000000 is after the end of the node's WAL, which is 0/")


@pytest.mark.parametrize("form", ["jsonl", "debezium"])
def test_changes_have_the_name_that_their_database_has_then(new_cluster: NewCluster, tmp_path: Path, form: str) -> None:
    node = new_cluster()
    for name in ("blue", "green"):
        node.sql(f"CREATE DATABASE {name}")
        node.sql("CREATE TABLE account (id int PRIMARY KEY)", name)
    node.sql("CHECKPOINT")
    options = ("--database", "blue", "--database", "green", "--format", form)
    with running(tmp_path, "tail", node.dsn("postgres"), *options) as tail:
        tail.wait_for_err(FOLLOWING)
        node.sql("INSERT INTO account VALUES (1)", "blue")
        node.sql("ALTER DATABASE blue RENAME TO old")
        node.sql("ALTER DATABASE green RENAME TO blue")
        node.sql("INSERT INTO account VALUES (2)", "blue")
        node.sql("INSERT INTO account VALUES (3)", "old")
        lines = [json.loads(line) for line in tail.wait_for_lines(3)]
        tail.stop()
    names = [line["source"]["db"] if form == "debezium" else line["database"] for line in lines]
    assert [line["after"]["id"] for line in lines] == [1, 2, 3]
    assert names == ["blue", "blue", "old"]


def test_a_reader_that_has_read_enough_ends_it_without_an_error(cluster: Cluster, database: str) -> None:
    tail = subprocess.Popen(
        command("tail", cluster.dsn(database, ROLE)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert tail.stdout is not None
    assert tail.stderr is not None
    try:
        while FOLLOWING.encode() not in tail.stderr.readline():
            assert tail.poll() is None
        tail.stdout.close()
        insert(cluster, database, 1)
        assert tail.wait(timeout=120) == ExitCode.SUCCESS
        assert tail.stderr.read() == b""
    finally:
        tail.kill()
        tail.wait(timeout=120)
        tail.stderr.close()


@pytest.mark.parametrize(
    ("dsn", "reported"),
    [
        ("postgresql://cdc@::1:7401/shop", "the connection string has the port ':1:7401'"),
        ("postgresql://cdc@db:70000/shop", "the connection string has the port '70000'"),
        ("host=db port=5432,x", "the connection string has the port 'x'"),
        ("postgresql://cdc@db/shop?replication=database", "the connection string contains replication"),
    ],
)
def test_a_dsn_with_which_no_connection_can_be_made_is_refused(dsn: str, reported: str) -> None:
    refused(cdcctl("tail", dsn), ExitCode.CONFIG, reported)


@pytest.mark.parametrize("time", ["-1", "nan", "inf"])
def test_a_time_without_an_end_is_refused(time: str) -> None:
    for arguments in (("tail", "host=db", "--wait-s"), ("check", "--state", ".", "--deadline-s")):
        done = cdcctl(*arguments, time)
        assert done.code == ExitCode.CONFIG, done.err
        assert "Invalid value for" in done.err


def test_arguments_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    refused(cdcctl("tail"), ExitCode.CONFIG, "no node is named")
    refused(cdcctl("tail", "dbname=x", "--from", "0/1000000"), ExitCode.CONFIG, "--from requires --state")
    refused(cdcctl("tail", "dbname=x", "--until", "here"), ExitCode.CONFIG, "not an LSN: 'here'")
    refused(cdcctl("tail", "--state", tmp_path, "--database", "x"), ExitCode.CONFIG, "--database")
