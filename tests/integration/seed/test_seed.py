"""The seed and the stream after it: its waits, that it needs no SQL afterwards, and that it survives crashes."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.conftest import NewCluster
from tests.support.oracles.oracle import (
    ROLE,
    Oracle,
    OurSide,
    ServerSide,
    assert_same_lines,
    emit_fence,
    ensure_role,
)
from tests.support.oracles.oracle_catalogs import catalog_differences, server_catalogs
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import HBA_REPLICATION, Cluster, StopMode, sql
from tests.support.workloads.workloads import pgbench, run_script
from tidemark.io.node.node import Blocker, Node, RoleLacksReplication
from tidemark.io.node.node_errors import NoHbaLine, WalRemoved
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Lsn
from tidemark.runtime.seed.older_transactions import OlderTransactions
from tidemark.runtime.seed.seed_observer import SilentObserver
from tidemark.runtime.seed.seeding import ATTEMPTS_MAX, REMOVED_ATTEMPTS_MAX, Seed, read_seed, wait_for_start

DEADLINE_S = 120
UNREAD_BYTES = 6 << 20
SENT_BYTES = 128 << 10  # in an attempt before its WAL is removed: one message of the server


class Recorder(SilentObserver):
    """An observer that records the awaited transactions, and then ends them."""

    def __init__(self, release: threading.Event | None = None) -> None:
        self.blockers: list[Blocker] = []
        self._release = release

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        assert waited_s > 0
        self.blockers.extend(blockers)
        if self._release is not None and blockers:
            self._release.set()


def test_a_seed_names_the_sessions_and_prepared_transactions_that_it_waits_for(new_cluster: NewCluster) -> None:
    node = new_cluster()
    ensure_role(node)
    with node.connect(autocommit=False) as session, node.connect(autocommit=False) as preparing:
        sql(preparing, "CREATE TABLE prepared (a int)")
        sql(preparing, "PREPARE TRANSACTION 'forgotten'")
        sql(session, "CREATE TABLE open (a int)")
        node.sql("CHECKPOINT")  # both are older than it
        recorder = Recorder()
        with pytest.raises(OlderTransactions, match=f"'forgotten'.*process {session.info.backend_pid} ") as caught:
            read_seed(node.dsn(user=ROLE), wait_s=0.3, observer=recorder)
        assert "ROLLBACK PREPARED" in caught.value.hint
        assert {blocker.gid for blocker in recorder.blockers} == {None, "forgotten"}
        assert session.info.backend_pid in {blocker.pid for blocker in recorder.blockers}


def test_a_seed_continues_when_the_transactions_that_it_waits_for_have_ended(new_cluster: NewCluster) -> None:
    node = new_cluster()
    ensure_role(node)
    with node.connect(autocommit=False) as session:
        sql(session, "CREATE TABLE open (a int)")
        node.sql("CHECKPOINT")
        reported = threading.Event()
        recorder = Recorder(reported)

        def commit_when_told() -> None:
            assert reported.wait(DEADLINE_S)
            session.commit()

        thread = threading.Thread(target=commit_when_told)
        thread.start()
        seed = read_seed(node.dsn(user=ROLE), wait_s=DEADLINE_S, observer=recorder)
        thread.join(DEADLINE_S)
    assert recorder.blockers
    (mirror,) = seed.mirrors.values()
    assert [relation.name for relation in mirror.relations()] == ["open"]


def test_changes_begin_behind_transactions_that_were_open_and_none_is_lost_or_doubled(new_cluster: NewCluster) -> None:
    node = new_cluster()
    ensure_role(node)
    node.sql("CREATE TABLE t (v text PRIMARY KEY)")
    with node.connect(autocommit=False) as before, node.connect(autocommit=False) as between:
        node.sql("CHECKPOINT")
        sql(before, "INSERT INTO t VALUES ('open during the seed')")
        ours = OurSide(node, ["postgres"])
        sql(between, "INSERT INTO t VALUES ('begun after the seed')")
        node.sql("INSERT INTO t VALUES ('committed before the snapshot, seen by it')")
        between.commit()
        before.commit()
        ours.settle()
    snapshot_rows = {str(value) for (value,) in node.sql("SELECT v FROM t")}
    node.sql("INSERT INTO t VALUES ('after')")
    ours.read_until(emit_fence(node, "postgres"))
    changes = [line for line in ours.new_lines("postgres") if line.startswith("table")]
    ours.changes.close()
    assert len(snapshot_rows) == 3
    assert changes == ["table public.t: INSERT: v[text]:'after'"]


def test_a_transaction_that_wrote_before_the_seed_was_exact_is_waited_for_and_never_emitted_by_half(
    new_cluster: NewCluster,
) -> None:
    """X2 (`seeding`): it began after the checkpoint, so the seed itself does not wait for it; S2 must."""
    node = new_cluster()
    ensure_role(node)
    node.sql("CREATE TABLE t (v text PRIMARY KEY)")
    with node.connect(autocommit=False) as session:
        node.sql("CHECKPOINT")
        for statement in ("SAVEPOINT a", "INSERT INTO t VALUES ('before the seed')", "RELEASE a"):
            sql(session, statement)
        ours = OurSide(node, ["postgres"])
        sql(session, "INSERT INTO t VALUES ('behind the seed')")
        with Node(ours.dsn, "postgres") as asked, pytest.raises(OlderTransactions):
            wait_for_start(asked, ours.seed, wait_s=0)
        session.commit()
        ours.settle()
    node.sql("INSERT INTO t VALUES ('after')")
    ours.read_until(emit_fence(node, "postgres"))
    assert [line for line in ours.new_lines("postgres") if line.startswith("table")] == [
        "table public.t: INSERT: v[text]:'after'"
    ]
    ours.changes.close()


@pytest.mark.feature("P02")
def test_after_the_seed_physical_replication_is_all_that_is_needed(new_cluster: NewCluster) -> None:
    """The mirror is not a cache of live queries: after the seed, the role cannot connect to any database."""
    node = new_cluster()
    node.sql("CREATE DATABASE app")
    run_script(node, "app", "before_seed")
    with Oracle(node, "app") as oracle:
        node.hba(f"local replication {ROLE} trust\nlocal all postgres trust\n")
        with pytest.raises(psycopg.OperationalError, match="pg_hba"):
            node.sql("SELECT 1", "app", ROLE)
        for script, mode in (("after_seed", StopMode.IMMEDIATE), ("toast", StopMode.FAST), ("edges", StopMode.KILL)):
            run_script(node, "app", script)
            assert oracle.check(script)
            node.restart(mode)
        node.sql("ALTER TABLE toggled ADD COLUMN a int DEFAULT 5", "app")
        node.sql("INSERT INTO toggled DEFAULT VALUES", "app")
        assert len(oracle.check("after three restarts")) == 3


def test_a_stream_continues_across_crashes_in_the_middle_of_transactions(new_cluster: NewCluster) -> None:
    node = new_cluster()
    with Oracle(node, "postgres") as oracle:
        node.sql("CREATE TABLE t (id int PRIMARY KEY, v text)")
        for round_ in range(3):
            with node.connect(autocommit=False) as prepared:
                sql(prepared, f"INSERT INTO t (id, v) VALUES ({round_}, 'prepared')")
                sql(prepared, f"ALTER TABLE t ADD COLUMN c{round_} int DEFAULT {round_}")
                sql(prepared, f"PREPARE TRANSACTION 'p{round_}'")
            lost = node.connect(autocommit=False)
            sql(lost, f"CREATE TABLE lost{round_} AS SELECT generate_series(1, 20000) AS a")
            node.sql("SELECT pg_logical_emit_message(true, 'x', 'flush what the lost one wrote')")
            node.restart(StopMode.IMMEDIATE)
            lost.close()
            node.sql(f"COMMIT PREPARED 'p{round_}'")
            node.sql(f"INSERT INTO t (id, v) VALUES ({round_ + 100}, 'after')")
            oracle.check(f"crash {round_}")


def test_several_databases_are_captured_from_one_stream(new_cluster: NewCluster) -> None:
    node = new_cluster()
    for name in ("one", "two", "three"):
        node.sql(f"CREATE DATABASE {name}")
    servers = {name: ServerSide(node, name) for name in ("one", "two")}
    ours = OurSide(node, ["one", "two"])
    ours.settle()
    run_script(node, "one", "two_phase")
    pgbench(node, "three", transactions=40)  # not captured
    run_script(node, "two", "missing_values")
    node.sql("CREATE DATABASE four")
    for name, server in servers.items():
        ours.read_until(emit_fence(node, name))
        expected = server.lines()
        assert expected
        assert_same_lines(name, expected, ours.new_lines(name))
    ours.changes.close()


def test_a_seed_refuses_before_it_waits(new_cluster: NewCluster) -> None:
    node = new_cluster()
    ensure_role(node)
    node.sql("CREATE ROLE plain LOGIN")
    with pytest.raises(RoleLacksReplication):
        read_seed(node.dsn(user="plain"))
    node.hba("local all all trust\n")
    with pytest.raises(NoHbaLine, match="replication"):
        read_seed(node.dsn(user=ROLE))
    node.hba(HBA_REPLICATION)
    with pytest.raises(NoHbaLine):
        read_seed(node.dsn(user=ROLE))


def test_a_seed_survives_a_rewrite_of_the_catalogs_that_it_reads(new_cluster: NewCluster) -> None:
    node = new_cluster()
    ensure_role(node)
    node.sql("CREATE TABLE t (a int)")
    stop = threading.Event()

    def rewrite() -> None:
        with node.connect() as session:
            while not stop.is_set():
                for catalog in ("pg_class", "pg_type", "pg_enum", "pg_attribute"):
                    sql(session, f"VACUUM FULL {catalog}")
                stop.wait(0.3)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        _seed_and_check(node, rounds=4)
    finally:
        stop.set()
        thread.join(DEADLINE_S)


def test_a_seed_determines_its_end_again_if_a_catalog_is_rewritten_right_behind_it(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = new_cluster()
    ensure_role(node)
    node.sql("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    left = 2 * ATTEMPTS_MAX
    flush = Node.flush_all

    def flush_before_a_rewrite(asked: Node) -> Lsn:
        nonlocal left
        lsn = flush(asked)
        if left:
            left -= 1
            node.sql("VACUUM FULL pg_enum")
        return lsn

    monkeypatch.setattr(Node, "flush_all", flush_before_a_rewrite)
    assert_catalogs_equal(node, read_seed(node.dsn(user=ROLE), wait_s=DEADLINE_S))
    assert left == 0


class Finisher(SilentObserver):
    """An observer that ends the transaction for which the seed waits."""

    def __init__(self, session: psycopg.Connection, *statements: str) -> None:
        self.rounds = 0
        self._session = session
        self._statements = statements

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        assert waited_s > 0
        if not blockers:
            return
        self.rounds += 1
        for statement in self._statements:
            sql(self._session, statement)
        self._session.commit()


def test_a_seed_outlasts_a_catalog_that_is_locked_for_longer_than_a_statement_waits(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.io.node.node.LOCK_TIMEOUT_S", 1)
    node = new_cluster()
    ensure_role(node)
    node.sql("CREATE TABLE t (a int)")
    with node.connect(autocommit=False) as rewriter:
        sql(rewriter, "LOCK TABLE pg_inherits IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor(1) as pool:
            seeding = pool.submit(read_seed, node.dsn(user=ROLE))
            try:
                wait_until(lambda: "lock timeout" in node.log, "a statement that waited too long", within_s=DEADLINE_S)
            finally:
                rewriter.rollback()
            seed = seeding.result(DEADLINE_S)
    assert [relation.name for mirror in seed.mirrors.values() for relation in mirror.relations()] == ["t"]


class Remover(SilentObserver):
    """An observer that lets the node remove the WAL that is being read, while the node sends it."""

    def __init__(self, node: Cluster, rounds: int) -> None:
        self.repeated: list[tuple[type[TidemarkError], int]] = []
        self.progress: list[tuple[Lsn, Lsn, Lsn]] = []
        self._node = node
        self._rounds = rounds

    def replaying(self, start_lsn: Lsn, lsn: Lsn, end_lsn: Lsn) -> None:
        self.progress.append((start_lsn, lsn, end_lsn))
        if len(self.repeated) == self._rounds or lsn < start_lsn + SENT_BYTES:
            return
        for _ in range(2):
            self._node.sql("SELECT pg_logical_emit_message(true, 'x', 'x'), pg_switch_wal()")
            self._node.sql("CHECKPOINT")

    def repeating(self, error: TidemarkError, attempt: int, attempts_max: int) -> None:
        assert attempts_max == REMOVED_ATTEMPTS_MAX
        self.repeated.append((type(error), attempt))
        write_since_checkpoint(self._node)


def write_since_checkpoint(node: Cluster) -> None:
    """Write more WAL after a checkpoint than a connection can buffer."""
    node.sql("CHECKPOINT")
    node.sql(f"SELECT pg_logical_emit_message(false, 'x', repeat('x', {UNREAD_BYTES}))")


def test_a_seed_whose_wal_is_removed_begins_again_at_a_newer_checkpoint(new_cluster: NewCluster) -> None:
    node = new_cluster(15, wal_keep_size=0, max_wal_size="32MB", min_wal_size="32MB", log_error_verbosity="verbose")
    ensure_role(node)
    write_since_checkpoint(node)
    remover = Remover(node, ATTEMPTS_MAX)
    assert_catalogs_equal(node, read_seed(node.dsn(user=ROLE), wait_s=DEADLINE_S, observer=remover))
    assert remover.repeated == [(WalRemoved, attempt) for attempt in range(1, ATTEMPTS_MAX + 1)]
    assert "CheckXLogRemoved, xlog.c" in node.log
    start_lsn, lsn, end_lsn = remover.progress[-1]
    assert lsn >= end_lsn > start_lsn + UNREAD_BYTES


def test_a_rewritten_table_with_the_columns_of_a_catalog_is_not_confused_with_the_catalog(
    new_cluster: NewCluster,
) -> None:
    node = new_cluster()
    ensure_role(node)
    padding = "x" * 80  # wide enough for the fixed columns of pg_namespace and pg_enum, which also have four columns
    node.sql("CREATE TABLE four (a bigint PRIMARY KEY, b int, c text, d text)")
    node.sql(f"INSERT INTO four SELECT n, n, '{padding}', '' FROM generate_series(1, 1000) n")
    with node.connect(autocommit=False) as session:
        sql(session, "SELECT pg_current_xact_id()")
        node.sql("CHECKPOINT")
        finisher = Finisher(
            session,
            "CLUSTER four USING four_pkey",
            "INSERT INTO four VALUES (1001)",
            "DELETE FROM four WHERE a < 500",
        )
        seed = read_seed(node.dsn(user=ROLE), wait_s=DEADLINE_S, observer=finisher)
    assert finisher.rounds == 1
    assert_catalogs_equal(node, seed)


def test_a_catalog_that_an_older_transaction_rewrites_is_followed_into_its_new_file(new_cluster: NewCluster) -> None:
    node = new_cluster()
    ensure_role(node)
    node.sql("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
    with node.connect(autocommit=False) as session:
        sql(session, "SELECT pg_current_xact_id()")
        node.sql("CHECKPOINT")
        clustering = "CLUSTER pg_enum USING pg_enum_oid_index"
        finisher = Finisher(session, clustering, "ALTER TYPE mood RENAME VALUE 'ok' TO 'well'")
        seed = read_seed(node.dsn(user=ROLE), wait_s=DEADLINE_S, observer=finisher)
    assert_catalogs_equal(node, seed)


def assert_catalogs_equal(node: Cluster, seed: Seed) -> None:
    for oid, mirror in seed.mirrors.items():
        assert list(catalog_differences(mirror, server_catalogs(node, seed.databases[oid], mirror))) == []


def _seed_and_check(node: Cluster, rounds: int) -> None:
    for number in range(rounds):
        node.sql(f"CREATE TABLE t{number} (a int)")
        seed = read_seed(node.dsn(user=ROLE), wait_s=DEADLINE_S)
        (mirror,) = seed.mirrors.values()
        assert f"t{number}" in {relation.name for relation in mirror.relations()}
