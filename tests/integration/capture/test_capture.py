"""A sidecar over a real server: committed changes are in the outbox, in order, once; restarts continue exactly."""

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.processes.captures import Sidecar, change_log, replayed, running
from tests.support.servers.postgres import Cluster, StopMode
from tidemark.engine.batching import BURST
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.change import ChangeBatch, GroupItem, LogicalMessage, SchemaEvent, Truncation
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import parse_lsn
from tidemark.model.position import NO_SEQUENCE

RATE_MAX = 2  # far below the rate of the commits on any machine
COMMITS = 1000
WRITER_PAUSE_S = 0.005  # so that a capture on shared CPUs can catch up with it


@pytest.fixture
def sidecar(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Sidecar]:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
    with running(cluster, database, tmp_path) as started:
        yield started


def table_of(sidecar: Sidecar, name: str = "account") -> dict[object, dict[str, object]]:
    with sidecar.cluster.connect(sidecar.database) as session:
        rows = session.execute(f"SELECT id, note FROM {name}".encode()).fetchall()
    return {number: {"id": number, "note": note} for number, note in rows}


def test_changes_reach_the_outbox_complete_and_in_order(sidecar: Sidecar, cluster: Cluster, database: str) -> None:
    with cluster.connect(database) as session:
        session.execute("INSERT INTO account SELECT n, 'a' || n FROM generate_series(1, 100) n")
        session.execute("UPDATE account SET note = 'b' WHERE id % 3 = 0")
        session.execute("UPDATE account SET id = id + 1000 WHERE id % 10 = 0")
        session.execute("DELETE FROM account WHERE id < 20")
    items = sidecar.catch_up()
    assert replayed(change_log(items, "account")) == table_of(sidecar)


def test_commits_that_keep_arriving_are_delivered_together_and_in_order(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
    pacing = {"TIDEMARK_DELIVER__RATE_MAX": str(RATE_MAX), "TIDEMARK_DELIVER__LINGER_MS": "60000"}
    with running(cluster, database, tmp_path, copy=False, **pacing) as sidecar:
        began_s = time.monotonic()
        with cluster.connect(database) as session:
            for number in range(COMMITS):
                session.execute("INSERT INTO account VALUES (%s, 'x')", (number,))
        items = sidecar.catch_up()
        most = RATE_MAX * (time.monotonic() - began_s) + BURST + 1
    assert [row["id"] for row in replayed(change_log(items, "account")).values()] == list(range(COMMITS))
    assert sum(isinstance(item, ChangeBatch) for item in items) <= most < COMMITS


def test_ddl_and_messages_are_between_the_rows_that_they_separate(
    sidecar: Sidecar, cluster: Cluster, database: str
) -> None:
    with cluster.connect(database) as session:
        session.execute("INSERT INTO account VALUES (1, 'x')")
        session.execute("ALTER TABLE account ADD COLUMN more int DEFAULT 7")
        session.execute("INSERT INTO account VALUES (2, 'y', 8)")
        session.execute("SELECT pg_logical_emit_message(true, 'app', 'hello')")
        session.execute("TRUNCATE account")
    items = sidecar.catch_up()
    kinds = [type(item).__name__ for item in items if not isinstance(item, LogicalMessage)]
    assert kinds == ["ChangeBatch", "SchemaEvent", "ChangeBatch", "Truncation"]
    (event,) = [item for item in items if isinstance(item, SchemaEvent)]
    assert event.after is not None
    assert [column.name for column in event.after.columns] == ["id", "note", "more"]
    assert [item.content for item in items if isinstance(item, LogicalMessage)] == [b"hello"]
    assert sum(isinstance(item, Truncation) for item in items) == 1


@pytest.mark.feature("I18")
@pytest.mark.feature("P03")
def test_a_killed_sidecar_continues_exactly_where_it_was(sidecar: Sidecar, cluster: Cluster, database: str) -> None:
    stop = threading.Event()

    def work() -> None:
        number = 0
        with cluster.connect(database, autocommit=False) as session:
            while not stop.wait(WRITER_PAUSE_S):
                number += 1
                session.execute("INSERT INTO account SELECT %s * 10 + n, 'w' FROM generate_series(0, 9) n", (number,))
                session.execute("SAVEPOINT s")
                session.execute("UPDATE account SET note = 'no' WHERE id = %s", (number * 10,))
                session.execute("ROLLBACK TO s")
                session.execute("UPDATE account SET note = 'yes' WHERE id = %s", (number * 10 - 5,))
                if number % 40 == 0:
                    session.execute(f"ALTER TABLE account ADD COLUMN c{number} int DEFAULT {number}".encode())
                    session.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, note text)".encode())
                session.commit()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(4):
            sidecar.catch_up()
            sidecar.kill()
            sidecar.start()
    finally:
        stop.set()
        worker.join()
    rows = change_log(sidecar.catch_up(), "account")
    assert {key: {"id": row["id"], "note": row["note"]} for key, row in replayed(rows).items()} == table_of(sidecar)
    (first, *_) = rows
    assert len({(row["_commit_lsn"], row["_ordinal"]) for row in rows}) == len(rows), first


def test_a_prepared_transaction_survives_a_kill_between_prepare_and_commit(
    sidecar: Sidecar, cluster: Cluster, database: str
) -> None:
    gid = f"g-{uuid.uuid4().hex}"
    with cluster.connect(database) as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO account VALUES (1, 'prepared')")
        session.execute(f"PREPARE TRANSACTION '{gid}'".encode())
        session.execute("INSERT INTO account VALUES (2, 'between')")
    sidecar.catch_up()
    sidecar.kill()
    cluster.sql(f"COMMIT PREPARED '{gid}'", database)
    sidecar.start()
    rows = change_log(sidecar.catch_up(), "account")
    assert [row["_after"] for row in rows] == [{"id": 2, "note": "between"}, {"id": 1, "note": "prepared"}]


@pytest.mark.feature("I39")
def test_a_stop_ends_in_order_and_the_next_start_repeats_nothing(
    sidecar: Sidecar, cluster: Cluster, database: str
) -> None:
    cluster.sql("INSERT INTO account VALUES (1, 'x')", database)
    sidecar.catch_up()
    assert sidecar.stop() == ExitCode.SUCCESS
    cluster.sql("INSERT INTO account VALUES (2, 'y')", database)
    sidecar.start()
    assert [row["_after"] for row in change_log(sidecar.catch_up(), "account")] == [
        {"id": 1, "note": "x"},
        {"id": 2, "note": "y"},
    ]


@pytest.mark.feature("I38")
def test_a_second_sidecar_on_the_same_state_is_refused(sidecar: Sidecar, tmp_path: Path) -> None:
    second = Sidecar(sidecar.cluster, sidecar.database, tmp_path)
    second.log_path = tmp_path / "second.log"
    with pytest.raises(AssertionError):
        second.start()
    assert second.process is not None
    assert second.process.wait(timeout=120) == ExitCode.FENCED
    (last,) = [event for event in second.events() if event["event"] == "sidecar ends"]
    assert last["kind"] == "AlreadyRunning"
    assert sidecar.process is not None
    assert sidecar.process.poll() is None


def test_a_node_that_restarts_is_connected_to_again(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(15)
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    with running(cluster, "postgres", tmp_path) as sidecar:
        cluster.sql("INSERT INTO account VALUES (1, 'before')")
        sidecar.catch_up()
        cluster.restart()
        cluster.sql("INSERT INTO account VALUES (2, 'after')")
        assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {1, 2}
    assert "lost the connection to the node" in [event["event"] for event in sidecar.events()]


def test_a_node_that_stays_away_ends_the_process_after_the_configured_attempts(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster(15)
    few = {"TIDEMARK_RETRY__FIRST_S": "0.01", "TIDEMARK_RETRY__ATTEMPTS_MAX": "3"}
    with running(cluster, "postgres", tmp_path, copy=False, **few) as sidecar:
        cluster.stop(StopMode.IMMEDIATE)
        sidecar.ended(ExitCode.NODE_UNREACHABLE, "cannot connect to")
        lost = [event for event in sidecar.events() if event["event"] == "lost the connection to the node"]
        assert len(lost) == 2


@pytest.mark.feature("P10")
def test_messages_are_emitted_with_prefix_and_bytes_and_transactional_ones_only_if_they_commit(
    sidecar: Sidecar, cluster: Cluster, database: str
) -> None:
    with cluster.connect(database) as session:
        for ending in ("COMMIT", "ROLLBACK"):
            session.execute("BEGIN")
            session.execute("SELECT pg_logical_emit_message(true, 'with', %s::bytea)", (b"\x00\xff" + ending.encode(),))
            session.execute("SELECT pg_logical_emit_message(false, 'at once', %s)", (ending,))
            session.execute(ending.encode())
    reported = [item for item in sidecar.catch_up() if isinstance(item, LogicalMessage)]
    assert [(item.prefix, bytes(item.content), item.transactional) for item in reported] == [
        ("at once", b"COMMIT", False),
        ("with", b"\x00\xffCOMMIT", True),
        ("at once", b"ROLLBACK", False),
    ]


def test_a_forced_segment_switch_leaves_nothing_open_when_its_padding_arrives_in_many_slices(
    sidecar: Sidecar, cluster: Cluster, database: str
) -> None:
    for number in range(3):
        cluster.sql(f"INSERT INTO account VALUES ({number}, 'x')", database)
        sidecar.catch_up()
        cluster.sql("SELECT pg_switch_wal()")
    assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {0, 1, 2}


def test_the_control_socket_reports_the_status_of_capture(sidecar: Sidecar) -> None:
    sidecar.catch_up()
    status = sidecar.status()
    assert status["ok"] is True
    assert status["link"] == "streaming"
    assert status["ring_bytes"] == 256 << 20


@pytest.mark.feature("I11")
def test_the_ring_drains_while_the_reader_is_slow(cluster: Cluster, database: str, tmp_path: Path) -> None:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
    cluster.sql("ALTER TABLE account ALTER note SET STORAGE EXTERNAL", database)
    bound, count = 4 << 20, 20
    started = Sidecar(cluster, database, tmp_path)
    started.init(bytes_max=bound)
    try:
        started.start()
        with OutboxReader.open(started.folder) as reader:
            reader.register("slow")
            with cluster.connect(database) as session:
                for number in range(count):
                    session.execute("INSERT INTO account VALUES (%s, %s)", (number, uuid.uuid4().hex * (1 << 15)))
            (row,) = cluster.sql("SELECT pg_current_wal_flush_lsn()")
            end_lsn = parse_lsn(str(row[0]))
            seen = NO_SEQUENCE

            def is_decoded_with_an_empty_ring() -> bool:
                status = started.status()
                return parse_lsn(str(status["decoded_lsn"])) >= end_lsn and status["ring_used_bytes"] == 0

            started.wait_until(is_decoded_with_an_empty_ring, "an empty ring")
            received: list[GroupItem] = []
            assert reader.ledger().byte_count <= bound < count << 20
            while len(change_log(received, "account")) < count:
                started.wait_until(lambda: reader.head() > seen, "more")  # noqa: B023 - called at once
                end = reader.plan(seen, bound // 2)
                received += [value.item() for value in reader.read(seen, end) if value.header.relation]
                reader.confirm("slow", end, end)
                seen = end
        assert set(replayed(change_log(received, "account"))) == set(range(count))
    finally:
        started.close()
