"""The limits of a first copy, at the node and on our disk: duration and size."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.integration.first_copy.test_first_copy import fill, newest_generation, source_rows
from tests.integration.first_copy.test_recopy import generations, recopies_in_status, recopy, steps
from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.waiting import let_pass, wait_until
from tests.support.servers.postgres import Cluster, Session, database_in
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.io.node.copy_source import CopySource, TableChanging
from tidemark.io.node.copy_stream import BlockBounds
from tidemark.io.node.seed import Answers, SeedSession
from tidemark.io.node.source_tables import SourceTable
from tidemark.io.process.config import SelectConfig
from tidemark.io.process.metrics import COPY_REFUSED
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.errors import ExitCode
from tidemark.wal.versions import wal_format
from tidemark.wire.recopies import REFUSED_HINT

DEADLINE_S = 120.0
SMALL_SPOOL = {"TIDEMARK_COPY__SPOOL_BYTES": "1048576"}
HELD = (
    "SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE relation = 'account'::regclass AND backend_type = 'client backend'"
)
REFUSED = f"existing rows are not captured: {REFUSED_HINT}"
NOT_CAPTURED = "existing rows of tables are not captured: they did not fit into copy.spool_bytes"
FULL = "the outbox or its disk is full, delivery waits"
SESSION = "database=shop application_name=tidemark"
WAITS = "first copy waits for older transactions"
SPOOL_FILLS = (
    "the copy spool for received WAL fills up; when it is full, further WAL stays on the node, which may remove it"
)


def eventually(sidecar: Sidecar, condition: Callable[[], bool]) -> None:
    wait_until(condition, reported=lambda: sidecar.log_path.read_text()[-4000:])


def reported(sidecar: Sidecar, event: str) -> list[dict[str, object]]:
    return [dict(line) for line in sidecar.events() if line["event"] == event]


def refused_in_status(sidecar: Sidecar) -> dict[str, str]:
    done = succeeded(cdcctl("status", "--json", "--state", sidecar.folder.root, **sidecar.options))
    shown: dict[str, str] = json.loads(done.out)["first_copy"]["refused"]
    return shown


def test_no_lock_is_held_at_the_node_while_the_outbox_is_full(cluster: Cluster, database: str, tmp_path: Path) -> None:
    fill(cluster, database)
    cluster.sql("UPDATE account SET note = repeat(note, 100)", database)
    fill(cluster, database, "other", 10)
    small = {"TIDEMARK_DELIVER__GROUP_BYTES_MAX": "262144", "TIDEMARK_OUTBOX__BYTES_MAX": "2097152"}
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, **small)
    sidecar.init(bytes_max=2 << 20)
    try:
        sidecar.start()
        eventually(sidecar, lambda: bool(reported(sidecar, FULL)))
        held = (
            "SELECT a.query FROM pg_stat_activity a WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()"
            " AND (a.backend_xmin IS NOT NULL OR a.xact_start IS NOT NULL) AND backend_type = 'client backend'"
        )
        eventually(sidecar, lambda: not cluster.sql(held, database))
        cluster.sql("SET lock_timeout = '20s'; ALTER TABLE account ADD COLUMN more int", database)
        assert sidecar.process is not None
        kept = _unlinked_below(sidecar.folder.copy, sidecar.process.pid)
        assert kept == [0o600]
        assert not list(sidecar.folder.copy.glob("table-*"))
        with OutboxReader.open(sidecar.folder) as reader:
            reader.register("spark")
            # A copy group moves no position: a reader that skips it still releases it when it confirms it.
            eventually(sidecar, lambda: _drained(reader) and bool(reported(sidecar, "first copy done")))
    finally:
        sidecar.close()


def test_no_session_remains_in_a_database_while_the_outbox_is_full(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database)
    cluster.sql("UPDATE account SET note = repeat(note, 100)", database)
    small = {"TIDEMARK_DELIVER__GROUP_BYTES_MAX": "262144", "TIDEMARK_OUTBOX__BYTES_MAX": "2097152"}
    sidecar = Sidecar(cluster, "postgres", tmp_path, copy=True, TIDEMARK_SELECT__DATABASES=database, **small)
    sidecar.config = replace(sidecar.config, select=SelectConfig(databases=(database,)))
    sidecar.init(bytes_max=2 << 20)
    try:
        sidecar.start()
        eventually(sidecar, lambda: bool(reported(sidecar, FULL)))
        eventually(sidecar, lambda: not cluster.sql(_inside(database)))
    finally:
        sidecar.close()


def test_small_tables_are_copied_by_the_same_sessions(new_cluster: NewCluster, tmp_path: Path) -> None:
    """To connect costs the server more than to read a small table: with 400 tables, 13 instead of 4 CPU s."""
    made, tables = new_cluster(log_connections="on"), 12
    with database_in(made, "shop", *(f"CREATE TABLE t{number} AS SELECT 1 AS id" for number in range(tables))) as shop:
        sidecar = Sidecar(made, "postgres", tmp_path, copy=True, TIDEMARK_SELECT__DATABASES=shop)
        sidecar.config = replace(sidecar.config, select=SelectConfig(databases=(shop,)))
        sidecar.init()
        began = made.log.count(SESSION)
        try:
            sidecar.start()
            eventually(sidecar, lambda: bool(reported(sidecar, "first copy done")))
            assert len(reported(sidecar, "table copied")) == tables
            assert made.log.count(SESSION) - began <= tables // 2
        finally:
            sidecar.close()


def _inside(database: str) -> str:
    return f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}' AND application_name = 'tidemark'"


def _drained(reader: OutboxReader) -> bool:
    head = reader.head()
    reader.confirm("spark", head, head)
    return True


def _unlinked_below(folder: Path, pid: int) -> list[int]:
    """Return the permissions of open unlinked files that were in `folder`."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = str(link.readlink())
        if target.startswith(f"{folder.resolve()}/table-") and target.endswith("(deleted)"):
            found.append(link.stat().st_mode & 0o777)
    return found


@pytest.mark.feature("P22")
def test_a_table_that_does_not_fit_on_disk_is_refused_by_name_and_the_others_and_the_stream_continue(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database)
    fill(cluster, database, "other", 10)
    cluster.sql("UPDATE account SET note = repeat(note, 40)", database)
    cluster.sql("CREATE TABLE packed (id int PRIMARY KEY, note text)", database)  # small at the node, and large as text
    cluster.sql("INSERT INTO packed SELECT id, repeat('x', 400000) FROM generate_series(1, 8) id", database)
    account, packed = f"{database}.public.account", f"{database}.public.packed"
    over = "the rows of public.{} have over 1048576 bytes (copy.spool_bytes)"
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, **SMALL_SPOOL)
    sidecar.init()
    try:
        sidecar.start()
        cluster.sql("INSERT INTO other VALUES (101, 'beside it')", database)
        items = sidecar.catch_up()
        assert generations(items) == []
        assert generations(items, "other") == [(1, True), (1, False)]
        assert 101 in replayed(change_log(items, "other"))
        assert recopies_in_status(sidecar) == {
            account: f"failed: {over.format('account')}",
            packed: f"failed: {over.format('packed')}",
        }
        assert sidecar.metric('tidemark_recopies_failed_total{capture="main"}') == 2
        assert refused_in_status(sidecar) == {account: REFUSED, packed: REFUSED}
        eventually(sidecar, lambda: not cluster.sql(HELD, database))  # the server notices that its client is gone
        succeeded(recopy(sidecar, "--cancel", "account", "packed"))
        assert recopies_in_status(sidecar) == {}
        assert refused_in_status(sidecar) == {account: REFUSED, packed: REFUSED}
        assert sidecar.metric(f'{COPY_REFUSED}{{capture="main"}}') == 2
        sidecar.stop()
        del sidecar.options["TIDEMARK_COPY__SPOOL_BYTES"]
        sidecar.start()
        (warned,) = reported(sidecar, NOT_CAPTURED)
        assert warned["tables"] == [account, packed]
        assert set(steps(succeeded(recopy(sidecar, "account"))).values()) == {"done"}
        assert refused_in_status(sidecar) == {packed: REFUSED}
        assert sidecar.metric(f'{COPY_REFUSED}{{capture="main"}}') == 1
        items = newest_generation(sidecar.catch_up())
        assert replayed(change_log(items, "account")) == source_rows(sidecar)
        sidecar.stop()
        sidecar.options |= SMALL_SPOOL
        sidecar.start()
        refused_copy = recopy(sidecar, "account")
        assert (refused_copy.code, steps(refused_copy)) == (ExitCode.UNEXPECTED, {account: "failed"})
        cluster.sql("INSERT INTO account VALUES (1000000, 'beside it')", database)
        items = sidecar.catch_up()
        assert generations(items)[-1] == (1, False), "nothing of the refused copy has begun"
        assert replayed(change_log(newest_generation(items), "account")) == source_rows(sidecar)
    finally:
        sidecar.close()


@pytest.mark.parametrize("kind", ["table", "view"])
def test_rows_of_another_table_that_took_the_name_are_never_emitted(cluster: Cluster, database: str, kind: str) -> None:
    """ALTER SCHEMA RENAME takes no lock on tables: renamed while the table is locked, and back again."""
    with cluster.connect(database) as session:
        session.execute("CREATE SCHEMA app; CREATE SCHEMA twin; CREATE TABLE app.account (id int); TABLE app.account")
        session.execute("CREATE TABLE twin.rows (id int); INSERT INTO twin.rows VALUES (13)")
        rename = "ALTER TABLE twin.rows RENAME TO account"
        session.execute(rename if kind == "table" else "CREATE VIEW twin.account AS TABLE twin.rows")
        with closing(CopySource(cluster.dsn(database), database, wal_format(cluster.major))) as source:
            (wanted,) = (table for table in source.tables() if table.namespace == "app")
            with pytest.raises(TableChanging):
                _read_while_renamed(source, wanted, session)
            with source.locked_snapshot(wanted) as snapshot:
                assert list(source.rows(snapshot.relation)) == []


def test_no_table_is_locked_while_the_catalogs_are_read(
    cluster: Cluster, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading takes seconds with many tables, and an ALTER TABLE would wait for that time."""
    cluster.sql("CREATE TABLE account (id int); INSERT INTO account VALUES (7)", database)
    held: list[object] = []

    class Watched(SeedSession):
        def read_tables(self, mirror: CatalogMirror) -> Answers:
            holders = "SELECT count(*) FROM pg_locks WHERE relation = 'account'::regclass"
            held.extend(cluster.sql(holders, database))
            return super().read_tables(mirror)

    monkeypatch.setattr("tidemark.io.node.copy_source.SeedSession", Watched)
    with closing(CopySource(cluster.dsn(database), database, wal_format(cluster.major))) as source:
        (table,) = source.tables()
        with source.locked_snapshot(table) as snapshot:
            assert [block.lines for block in source.rows(snapshot.relation) if block.rows] == [b"7\n"]
    assert held == [(0,)]


TIMEOUTS = ("idle_in_transaction_session_timeout", "idle_session_timeout", "statement_timeout", "transaction_timeout")


def test_a_copy_runs_longer_than_the_servers_time_limits_for_a_session(new_cluster: NewCluster) -> None:
    """One session is in a transaction for the whole copy, the other idle: every time-out would end one of them."""
    made = new_cluster(18)
    with database_in(made, "patient", "CREATE TABLE account AS SELECT generate_series(1, 100000) AS id") as database:
        for name in TIMEOUTS:
            made.sql(f"ALTER DATABASE {database} SET {name} = '700ms'")
        with closing(CopySource(made.dsn(database), database, wal_format(made.major))) as source:
            (table,) = source.tables()
            with source.locked_snapshot(table) as snapshot:
                let_pass(1, "longer than the time limits of the sessions")
                blocks = source.rows(snapshot.relation, BlockBounds(1000, 1 << 20))
                rows = next(blocks).rows
                let_pass(1, "longer than the time limits of the sessions")
                assert rows + sum(block.rows for block in blocks) == 100_000


def test_a_table_that_the_node_itself_cannot_read_is_refused_by_name_after_its_attempts(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    made = new_cluster(15)
    script = (
        "CREATE TABLE account (id int PRIMARY KEY, note text); ALTER TABLE account ALTER note SET STORAGE EXTERNAL;"
        " INSERT INTO account VALUES (1, repeat('note', 1000))"
    )
    with database_in(made, "damaged", script) as database:
        toast = "SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE relname = 'account'"
        ((path,),) = made.sql(toast, database)
        made.stop()
        (made.data / str(path)).write_bytes(b"")
        made.start()
        retries = {"TIDEMARK_RETRY__FIRST_S": "0.05", "TIDEMARK_RETRY__MAX_S": "0.1"}
        sidecar = Sidecar(made, database, tmp_path, copy=True, **retries)
        sidecar.init()
        try:
            sidecar.refuses(ExitCode.NODE_UNFIT, "public.account", "read only 0 of 8192 bytes")
        finally:
            sidecar.close()


def test_no_database_is_entered_while_a_first_copy_waits_for_older_transactions(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """The wait may take `seed.wait_s`, and an open session would block a rename or drop of its database."""
    fill(cluster, database, rows=10)
    sidecar = Sidecar(cluster, "postgres", tmp_path, copy=True, TIDEMARK_SELECT__DATABASES=database)
    sidecar.config = replace(sidecar.config, select=SelectConfig(databases=(database,)))
    sidecar.init()
    try:
        with cluster.connect(database, autocommit=False) as older:
            older.execute("INSERT INTO account VALUES (11, 'held')")
            sidecar.start()
            eventually(sidecar, lambda: bool(reported(sidecar, WAITS)))
            assert cluster.sql(_inside(database)) == []
            older.commit()
            eventually(sidecar, lambda: [line["rows"] for line in reported(sidecar, "table copied")] == [11])
    finally:
        sidecar.close()


def _read_while_renamed(source: CopySource, table: SourceTable, session: Session) -> None:
    with source.locked_snapshot(table) as snapshot:
        session.execute("ALTER SCHEMA app RENAME TO away; ALTER SCHEMA twin RENAME TO app")
        try:
            assert next(source.rows(snapshot.relation)) is None, "nothing is given"
        finally:
            session.execute("ALTER SCHEMA app RENAME TO twin; ALTER SCHEMA away RENAME TO app")


def test_a_spool_that_fills_up_is_reported_from_half_on_with_its_setting(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database, rows=10)
    options = {"TIDEMARK_COPY__SPOOL_BYTES": str(4 << 20)}
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, **options)
    sidecar.init()
    with cluster.connect(database, autocommit=False) as older:
        older.execute("INSERT INTO account VALUES (11, 'held')")  # the copy waits for its end
        try:
            sidecar.start()
            assert reported(sidecar, SPOOL_FILLS) == []
            cluster.sql("SELECT count(pg_logical_emit_message(false, 'app', repeat('x', 1000))) "
                        "FROM generate_series(1, 2500)", database)  # fmt: skip
            eventually(sidecar, lambda: bool(reported(sidecar, SPOOL_FILLS)))
            warned = reported(sidecar, SPOOL_FILLS)[0]
            assert (warned["setting"], warned["setting_bytes"]) == ("copy.spool_bytes", 4 << 20)
            older.commit()
            assert len(replayed(change_log(sidecar.catch_up(), "account"))) == 11
        finally:
            sidecar.close()
