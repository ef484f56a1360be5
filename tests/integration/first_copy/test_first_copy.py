"""The first copy: existing rows, then the stream, without a gap or an overlap, whatever happens in between."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes.captures import OnDemandReader, Sidecar, change_log, replayed, running
from tests.support.servers.postgres import Cluster
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeBatch, CopyBoundary, GroupItem
from tidemark.model.errors import ExitCode
from tidemark.model.snapshot import parse_snapshot
from tidemark.wire.state.copy_progress import CopyPhase

ROWS = 8_000
WRITER_PAUSE_S = 0.002  # so that a capture on shared CPUs can catch up with it


def fill(cluster: Cluster, database: str, table: str = "account", rows: int = ROWS) -> None:
    with cluster.connect(database) as session:
        session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)".encode())
        session.execute(f"INSERT INTO {table} SELECT n, 'old ' || n FROM generate_series(1, {rows}) n".encode())


def source_rows(sidecar: Sidecar, table: str = "account") -> dict[object, dict[str, object]]:
    with sidecar.cluster.connect(sidecar.database) as session:
        rows = session.execute(f"SELECT id, note FROM {table}".encode()).fetchall()
    return {number: {"id": number, "note": note} for number, note in rows}


def newest_generation(items: list[GroupItem], table: str = "account") -> list[GroupItem]:
    """Return what a sink keeps: everything of a table from the last `copy_begin` on."""
    begins = [
        index
        for index, item in enumerate(items)
        if isinstance(item, CopyBoundary) and item.begin and item.relation.name == table
    ]
    return items[begins[-1] :]


class TableWorkload:
    """Sessions that change the table until they are stopped."""

    def __init__(self, cluster: Cluster, database: str, table: str = "account") -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(cluster, database, table, share)) for share in range(1)
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, cluster: Cluster, database: str, table: str, share: int) -> None:
        number = 0
        with cluster.connect(database) as session:
            while not self._stop.wait(WRITER_PAUSE_S):
                number += 1
                fresh = ROWS * 10 + number * 2 + share
                session.execute(f"INSERT INTO {table} (id, note) VALUES ({fresh}, 'new')".encode())
                session.execute(f"UPDATE {table} SET note = 'seen' WHERE id = {number * 2 + share}".encode())
                session.execute(f"DELETE FROM {table} WHERE id = {number * 4 + share + 3000}".encode())


@pytest.mark.feature("P22")
def test_existing_rows_are_delivered_first_and_the_stream_after_them(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database)
    with running(cluster, database, tmp_path, copy=True) as sidecar, TableWorkload(cluster, database):
        sidecar.catch_up()
    with restarted(sidecar):
        items = sidecar.catch_up()
        assert replayed(change_log(items, "account")) == source_rows(sidecar)
    kinds = [item.begin for item in items if isinstance(item, CopyBoundary)]
    assert kinds == [True, False]
    copied = [index for index, item in enumerate(items) if _is_copy(item)]
    streamed = [index for index, item in enumerate(items) if isinstance(item, ChangeBatch) and not _is_copy(item)]
    assert max(copied) < min(streamed)


def _is_copy(item: GroupItem) -> bool:
    return isinstance(item, ChangeBatch) and item.rows.column("_op")[0].as_py() == "c"


@contextmanager
def restarted(sidecar: Sidecar) -> Iterator[None]:
    """Run a sidecar again after its workload has ended."""
    sidecar.start()
    yield
    sidecar.close()


@pytest.mark.feature("P22")
def test_a_kill_during_a_copy_repeats_it_as_the_next_generation(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """The outbox is too small for the copy, and no reader runs: at each kill the copy is incomplete."""
    fill(cluster, database)
    cluster.sql("UPDATE account SET note = repeat(note, 50)", database)
    small = {"TIDEMARK_DELIVER__GROUP_BYTES_MAX": str(1 << 18)}
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, **small)
    sidecar.init(bytes_max=1 << 20)
    try:
        with OutboxReader.open(sidecar.folder) as outbox:
            on_demand = OnDemandReader(outbox)
            with TableWorkload(cluster, database):
                for kills in range(2):
                    sidecar.start()
                    sidecar.wait_until(lambda: times_full(sidecar) > kills, "a full outbox")  # noqa: B023 - called at once
                    sidecar.kill()
                    on_demand.read()
                sidecar.start()
                on_demand.catch_up(sidecar)
            items = on_demand.catch_up(sidecar)
        assert replayed(change_log(newest_generation(items), "account")) == source_rows(sidecar)
        boundaries = [item for item in items if isinstance(item, CopyBoundary)]
        assert [(item.begin, item.generation) for item in boundaries] == [(True, 1), (True, 2), (True, 3), (False, 3)]
    finally:
        sidecar.close()


def times_full(sidecar: Sidecar) -> int:
    return [event["event"] for event in sidecar.events()].count("the outbox or its disk is full, delivery waits")


@pytest.mark.feature("P22")
def test_an_alter_table_during_a_copy_affects_neither_the_copied_rows_nor_later_ones(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database)
    fill(cluster, database, "other", 2000)
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, TIDEMARK_DELIVER__GROUP_ROWS_MAX="100")
    sidecar.init()
    try:
        with cluster.connect(database, autocommit=False) as older, cluster.connect(database, autocommit=False) as later:
            older.execute("SELECT pg_current_xact_id()")
            cluster.sql("SELECT pg_current_xact_id()", database)  # or the copy would not wait for `older`
            with TableWorkload(cluster, database):
                sidecar.start()
                sidecar.wait_for_event("first copy waits for older transactions")
                later.execute("ALTER TABLE other ALTER COLUMN id TYPE bigint")  # and the copy waits
                older.rollback()
                sidecar.wait_for_rows(500)
                cluster.sql("ALTER TABLE account ADD COLUMN more int DEFAULT 7", database)
                later.commit()
                sidecar.catch_up()
        items = sidecar.catch_up()
        rows = replayed(change_log(items, "account"))
        assert {key: {"id": row["id"], "note": row["note"]} for key, row in rows.items()} == source_rows(sidecar)
        others = change_log(newest_generation(items, "other"), "other")
        assert {row["_op"] for row in others} == {"c"}
        assert replayed(others) == source_rows(sidecar, "other")
    finally:
        sidecar.close()


@pytest.mark.feature("P22")
def test_commits_after_a_tables_snapshot_are_streamed_though_a_later_transaction_is_copied(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """The snapshot's bounds include a running transaction and a later ended one: only its xid list separates them."""
    fill(cluster, database, rows=10)
    sidecar = Sidecar(cluster, database, tmp_path, copy=True)
    sidecar.init()
    try:
        with cluster.connect(database, autocommit=False) as older, cluster.connect(database, autocommit=False) as open_:
            older.execute("SELECT pg_current_xact_id()")
            cluster.sql("SELECT pg_current_xact_id()", database)  # or the copy would not wait for `older`
            sidecar.start()
            sidecar.wait_for_event("first copy waits for older transactions")
            open_.execute("UPDATE account SET note = 'streamed' WHERE id = 1")
            open_.execute("INSERT INTO account VALUES (11, 'streamed')")
            cluster.sql("INSERT INTO account VALUES (12, 'copied')", database)
            older.rollback()
            sidecar.wait_for_event("table copied")
            open_.commit()
        items = sidecar.catch_up()
    finally:
        sidecar.close()
    snapshot = parse_snapshot(next(item.snapshot for item in items if isinstance(item, CopyBoundary)))
    assert snapshot.running
    assert max(snapshot.running) < snapshot.xmax - 1, "a later transaction had ended"
    ops = {"c": {*range(1, 11), 12}, "u": {1}, "i": {11}}
    found: dict[object, set[object]] = {}
    for row in change_log(items, "account"):
        assert isinstance(row["_after"], dict)
        found.setdefault(row["_op"], set()).add(row["_after"]["id"])
    assert found == ops
    assert replayed(change_log(items, "account")) == source_rows(sidecar)


def test_tables_that_the_role_cannot_read_in_full_are_refused_by_name(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database, rows=1)
    role = f"r_{uuid.uuid4().hex[:8]}"
    cluster.sql(f"CREATE ROLE {role} LOGIN REPLICATION")
    cluster.sql(
        "CREATE TABLE guarded (id int); ALTER TABLE guarded ENABLE ROW LEVEL SECURITY; "
        f"CREATE SCHEMA closed; CREATE TABLE closed.inside (id int); GRANT SELECT ON guarded, closed.inside TO {role}",
        database,
    )
    dsn = cluster.dsn(database, role)
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, TIDEMARK_CAPTURE__DSN=dsn)
    sidecar.init()
    try:
        sidecar.start(wait=False)
        assert sidecar.process is not None
        assert sidecar.process.wait(timeout=120) == ExitCode.NODE_UNFIT
        (reported,) = [event for event in sidecar.events() if event["event"] == "sidecar ends"]
        assert (
            "no USAGE on the schema of closed.inside; no SELECT on public.account; "
            "row-level security hides rows of public.guarded"
        ) in str(reported["error"])
        assert "BYPASSRLS" in str(reported["hint"])
        cluster.sql(f"GRANT SELECT ON account TO {role}; GRANT USAGE ON SCHEMA closed TO {role}", database)
        cluster.sql(f"ALTER ROLE {role} BYPASSRLS")
        sidecar.start()
        assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {1}
    finally:
        sidecar.close()


@pytest.mark.feature("I37")
def test_a_table_that_newly_matches_the_selection_is_copied_at_the_next_start(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database, rows=10)
    fill(cluster, database, "late", 10)
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, TIDEMARK_SELECT__TABLES="account")
    sidecar.init()
    try:
        sidecar.start()
        cluster.sql("UPDATE late SET note = 'unseen'", database)
        assert change_log(sidecar.catch_up(), "late") == []
        sidecar.stop()
        sidecar.options["TIDEMARK_SELECT__TABLES"] = "*.*"
        cluster.sql("INSERT INTO account VALUES (11, 'x')", database)
        sidecar.start()
        cluster.sql("UPDATE late SET note = 'seen' WHERE id = 1", database)
        items = sidecar.catch_up()
        assert replayed(change_log(items, "late")) == source_rows(sidecar, "late")
        assert replayed(change_log(items, "account")) == source_rows(sidecar)
        assert [item.relation.name for item in items if isinstance(item, CopyBoundary) and item.begin] == [
            "account",
            "late",
        ]
    finally:
        sidecar.close()


@pytest.mark.feature("I37")
def test_a_new_matching_table_is_picked_up_live(cluster: Cluster, database: str, tmp_path: Path) -> None:
    with running(cluster, database, tmp_path, copy=True, TIDEMARK_SELECT__TABLES="app.*") as sidecar:
        with cluster.connect(database) as session:
            session.execute("CREATE SCHEMA app")
            session.execute("CREATE TABLE app.fresh (id int PRIMARY KEY, note text)")
            session.execute("CREATE TABLE stale (id int PRIMARY KEY, note text)")
            session.execute("INSERT INTO app.fresh VALUES (1, 'x')")
            session.execute("INSERT INTO stale VALUES (1, 'x')")
        items = sidecar.catch_up()
        assert set(replayed(change_log(items, "fresh"))) == {1}
        assert change_log(items, "stale") == []


def test_a_copy_of_every_type_equals_the_stream_of_the_same_rows(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TYPE mood AS ENUM ('sad', 'so so')", database)
    columns = (
        "id int PRIMARY KEY, a smallint, b bigint, c real, d float8, e numeric(12,3), f numeric, g text, h varchar(9),"
        " i bpchar(5), j bytea, k boolean, l date, m time, n timestamp, o timestamptz, p interval, q uuid, r json,"
        " s jsonb, t mood, u int[], v text[], w inet, x oid, y char, z cidr,"
        " stored int GENERATED ALWAYS AS (a + 1) STORED"
    )
    values = (
        "(1, 2, 3, 1.5, -2.25, 12.345, 1e30, E'tab\\there\\\\n\\n', 'v', 'c', '\\x00ff', true,"
        " '2020-02-29', '23:59:59.5',"
        " '2020-01-01 00:00:00.000001', '2020-01-01 12:00+02', '1 year 2 days 03:04:05',"
        " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": 1}', '{\"b\": [1, null]}', 'so so', '{1,NULL,3}',"
        " '{x,\"y,z\",NULL}', '10.0.0.1/8', 42, 'q', '10.0.0.0/8'), (2" + ", NULL" * 26 + ")"
    )
    with cluster.connect(database) as session:
        session.execute(f"CREATE TABLE copied ({columns})".encode())
        session.execute(f"INSERT INTO copied VALUES {values}".encode())
    with running(cluster, database, tmp_path, copy=True) as sidecar:
        sidecar.catch_up()
        with cluster.connect(database) as session:
            session.execute(f"CREATE TABLE streamed ({columns})".encode())
            session.execute(f"INSERT INTO streamed VALUES {values}".encode())
        items = sidecar.catch_up()
    batches = {item.relation.name: item.rows for item in items if isinstance(item, ChangeBatch)}
    assert batches["copied"].column("_after").equals(batches["streamed"].column("_after"))
    with StateStore.open(sidecar.folder) as store:
        copies = store.view().copies.values()
    assert {copy.phase for copy in copies} == {CopyPhase.DONE}  # the streamed table is complete without a copy
    assert [copy.row_count for copy in copies if copy.generation] == [2]
