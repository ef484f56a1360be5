"""`cdcctl table recopy`: a new generation of existing tables, for every reader, through kills."""

import json
import uuid
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.conftest import NewCluster
from tests.integration.first_copy.test_first_copy import TableWorkload, fill, newest_generation, source_rows, times_full
from tests.support.lakes.lakes import feed_by_hand, rows_by_key
from tests.support.processes.captures import OnDemandReader, Sidecar, change_log, replayed, running
from tests.support.processes.cdcctl import Done, cdcctl, refused, reported, succeeded
from tests.support.processes.cdcctl import running as running_cdcctl
from tests.support.processes.failover import paired
from tests.support.processes.waiting import wait_until
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.postgres import Cluster
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.change import CopyBoundary, GroupItem
from tidemark.model.errors import ExitCode
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.landing.progress import fault_fields
from tidemark.pipeline.landing.table_overview import faults_of
from tidemark.wire.state.copy_progress import CopyPhase

SMALL_OUTBOX = {"TIDEMARK_DELIVER__GROUP_BYTES_MAX": str(1 << 18)}


def recopy(sidecar: Sidecar, *arguments: str) -> Done:
    return cdcctl("table", "recopy", *arguments, "--json", "--state", sidecar.folder.root, **sidecar.options)


def steps(done: Done) -> dict[str, str]:
    """Return each table's step, as the command printed it."""
    return {name: table["step"] for name, table in json.loads(done.out)["tables"].items()}


def recopies_in_status(sidecar: Sidecar) -> dict[str, str]:
    done = succeeded(cdcctl("status", "--json", "--state", sidecar.folder.root, **sidecar.options))
    shown: dict[str, str] = json.loads(done.out)["recopy"]
    return shown


def generations(items: list[GroupItem], table: str = "account") -> list[tuple[int, bool]]:
    """Return the boundaries of a table's copies: generation, and whether it begins."""
    return [
        (item.generation, item.begin)
        for item in items
        if isinstance(item, CopyBoundary) and item.relation.name == table
    ]


@pytest.mark.feature("I30")
def test_rows_lost_in_a_replica_are_right_after_the_recopy_beside_a_writer(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database)
    fill(cluster, database, "other", 10)
    lake = tmp_path / "lake"
    with running(cluster, database, tmp_path, copy=True) as sidecar:
        sidecar.catch_up()
        feed_by_hand(sidecar.folder, lake, "lake")
        (folder,) = lake.glob("*/public/account")
        DeltaTable(str(folder / "replica")).delete("id % 3 = 0")
        before = recopies_in_status(sidecar)
        with TableWorkload(cluster, database):
            done = succeeded(recopy(sidecar, "account"))
        items = sidecar.catch_up()
        feed_by_hand(sidecar.folder, lake, "lake")
        assert rows_by_key(lake, "account") == {key: [row["note"]] for key, row in source_rows(sidecar).items()}
        assert replayed(change_log(newest_generation(items), "account")) == source_rows(sidecar)
        assert generations(items) == [(1, True), (1, False), (2, True), (2, False)]
        assert generations(items, "other") == [(1, True), (1, False)]
        assert (before, steps(done), recopies_in_status(sidecar)) == ({}, {f"{database}.public.account": "done"}, {})


@pytest.mark.feature("L01")
def test_a_diverged_log_gets_its_break_after_the_operator_accepted_the_loss(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database)
    lake = tmp_path / "lake"
    with running(cluster, database, tmp_path, copy=True) as sidecar:
        sidecar.catch_up()
        feed_by_hand(sidecar.folder, lake, "lake")
        (folder,) = lake.glob("*/public/account")
        DeltaTable(str(folder / "log")).delete()
        cluster.sql("UPDATE account SET note = 'lost in the log' WHERE id = 1", database)
        sidecar.catch_up()
        feed_by_hand(sidecar.folder, lake, "lake")
        table = position_of(sidecar, lake, "account")
        assert table.state is TableState.DIVERGED
        faults = [fault_fields(table, name, fault) for name, fault in faults_of(table)]
        reported_file = {"reader": "lake", "lake": str(lake), "lsn": "0/0", "tables": 1, "faults": faults, "stale": []}
        (sidecar.folder.root / "pipeline-lake.json").write_text(json.dumps(reported_file))
        asked = recopy(sidecar, "account")
        assert asked.code == ExitCode.CONFIG
        assert "1 logs of the lake would lose changes" in asked.err
        assert "--accept-break" in asked.err
        assert recopies_in_status(sidecar) == {}
        done = succeeded(recopy(sidecar, "account", "--accept-break"))
        assert f"the changes between {table.log.fault and table.log.fault.position} and the restart" in done.err
        sidecar.catch_up()
        feed_by_hand(sidecar.folder, lake, "lake")
        table = position_of(sidecar, lake, "account")
        assert (table.state, len(table.breaks)) == (TableState.LIVE, 1)
        assert rows_by_key(lake, "account") == {key: [row["note"]] for key, row in source_rows(sidecar).items()}


def position_of(sidecar: Sidecar, lake: Path, name: str) -> TablePosition:
    with StateStore.open(sidecar.folder) as store:
        tables = Positions(str(lake), store.identity).tables.values()
    return next(table for table in tables if table.name == name)


@pytest.mark.feature("I30")
def test_a_request_survives_a_kill_before_and_during_the_copy_and_is_served_once(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """The outbox is too small for the copy, and no reader runs: at the second kill the copy is incomplete."""
    fill(cluster, database)
    cluster.sql("UPDATE account SET note = repeat(note, 50)", database)
    name = f"{database}.public.account"
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, **SMALL_OUTBOX)
    sidecar.init(bytes_max=1 << 20)
    try:
        with OutboxReader.open(sidecar.folder) as outbox:
            on_demand = OnDemandReader(outbox)
            sidecar.start()
            on_demand.catch_up(sidecar)
            sidecar.kill()
            fulls = times_full(sidecar)
            unstarted = recopy(sidecar, "public.account")
            message, hint = reported(unstarted.err)
            assert (unstarted.code, steps(unstarted)) == (ExitCode.UNEXPECTED, {name: "requested"})
            assert "the sidecar does not run" in message
            assert "cdcctl run sidecar" in hint
            assert steps(succeeded(recopy(sidecar, name, "--no-wait"))) == {name: "requested"}
            assert recopies_in_status(sidecar) == {name: "requested"}
            sidecar.start()  # before the load: a request waits for open transactions
            sidecar.wait_until(lambda: "rows of generation 2" in recopies_in_status(sidecar)[name], "the copy")
            with TableWorkload(cluster, database):
                sidecar.wait_until(lambda: times_full(sidecar) > fulls, "a full outbox")
                assert steps(succeeded(recopy(sidecar, "account", "--no-wait"))) == {name: "copying"}
                assert "rows of generation 2" in recopies_in_status(sidecar)[name]
                sidecar.kill()
                on_demand.read()
                sidecar.start()
                with running_cdcctl(
                    tmp_path, "table", "recopy", "account", "--state", sidecar.folder.root, **sidecar.options
                ) as waiting:
                    waiting.wait_for_err("copying")
                    on_demand.catch_up(sidecar)
                    assert waiting.ended().code == ExitCode.SUCCESS
            items = on_demand.catch_up(sidecar)
        assert replayed(change_log(newest_generation(items), "account")) == source_rows(sidecar)
        first, again = [(1, True), (1, False)], [(2, True), (3, True), (3, False)]
        assert generations(items) == first + again
        assert recopies_in_status(sidecar) == {}
    finally:
        sidecar.close()


@pytest.mark.feature("I30")
def test_while_the_archiver_delivers_a_request_waits_for_realtime_and_the_command_reports_that(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with paired(node, tmp_path, copy=True) as pair:
        pair.insert(1, 2)
        pair.catch_up()
        succeeded(cdcctl("realtime", "off", "--state", pair.sidecar.folder.root, **pair.sidecar.options))
        late = recopy(pair.sidecar, "account", "--deadline-s", "0")
        assert late.code == ExitCode.UNEXPECTED
        assert "the stage is held: the tables are copied after the return to realtime" in late.err
        assert "cdcctl realtime on" in reported(late.err)[0]
        pair.insert(3)
        assert generations(pair.catch_up()) == [(1, True), (1, False)]
        state, options = pair.sidecar.folder.root, pair.sidecar.options
        with running_cdcctl(tmp_path, "table", "recopy", "account", "--state", state, **options) as waiting:
            waiting.wait_for_err("waiting for the return to realtime")
            succeeded(cdcctl("realtime", "on", "--state", state, **options))
            assert waiting.ended().code == ExitCode.SUCCESS
        pair.insert(4)
        items = pair.catch_up()
        assert generations(items) == [(1, True), (1, False), (2, True), (2, False)]
        assert set(replayed(change_log(newest_generation(items), "account"))) == {1, 2, 3, 4}


@pytest.mark.feature("I30")
def test_tables_that_cannot_be_copied_are_refused_by_name_with_a_remedy(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    role = f"r_{uuid.uuid4().hex[:8]}"
    cluster.sql(f"CREATE ROLE {role} LOGIN REPLICATION")
    with cluster.connect(database) as session:
        for statement in (
            "CREATE TABLE account (id int PRIMARY KEY, note text)",
            'CREATE TABLE "Say.""so""" (id int PRIMARY KEY)',
            "CREATE TABLE denied (id int)",
            "CREATE TABLE excluded (id int)",
            "CREATE TABLE guarded (id int)",
            "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
            "CREATE UNLOGGED TABLE unlogged (id int)",
            "CREATE VIEW shown AS SELECT 1",
            "CREATE TABLE parted (id int) PARTITION BY LIST (id)",
            "CREATE TABLE rooted (id int) PARTITION BY LIST (id)",
            "CREATE TABLE leaf PARTITION OF rooted DEFAULT",
            "CREATE SCHEMA hidden",
            "CREATE TABLE hidden.far (id int)",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public, hidden TO {role}",
            f"REVOKE SELECT ON denied FROM {role}",
        ):
            session.execute(statement.encode())
    sidecar = Sidecar(
        cluster,
        database,
        tmp_path,
        TIDEMARK_CAPTURE__DSN=cluster.dsn(database, role),
        TIDEMARK_SELECT__EXCLUDE_TABLES="excluded",
        TIDEMARK_SELECT__PARTITION_ROOTS="rooted",
    )
    sidecar.init()
    for code, refusals in (
        (
            ExitCode.CONFIG,
            {
                "nowhere": ("does not exist", "case-sensitive"),
                "Account": ("does not exist", "case-sensitive"),
                "excluded": ("is not selected", "select.exclude_tables"),
                "unlogged": ("is unlogged", "not captured"),
                "shown": ("is a view", "name the tables"),
                "parted": ("is partitioned", "select.partition_roots"),
                "leaf": ("is a partition", "name public.rooted"),
                "denied": ("lacks SELECT for the capture's role", "GRANT SELECT"),
            },
        ),
        (
            ExitCode.NODE_UNFIT,
            {
                "denied": ("lacks SELECT for the capture's role", "GRANT SELECT"),
                "hidden.far": ("is in a schema that lacks USAGE for the capture's role", "GRANT USAGE"),
                "guarded": ("has row-level security", "BYPASSRLS"),
            },
        ),
        (ExitCode.CONFIG, {"elsewhere.public.account": ("is in a database that is not captured", database)}),
        (ExitCode.CONFIG, {"a..b": ("", "schema.table")}),
    ):
        done = recopy(sidecar, "account", *refusals)
        refused(done, code, *(f"{name} {because}".strip() for name, (because, _) in refusals.items() if because))
        for _, remedy in refusals.values():
            assert remedy in reported(done.err)[1], remedy
    assert recopies_in_status(sidecar) == {}
    good = succeeded(recopy(sidecar, "--no-wait", "account", "rooted", 'public."Say.""so"""'))
    assert set(steps(good)) == {f"{database}.public.{name}" for name in ("account", "rooted", '"Say.""so"""')}


@pytest.mark.feature("I30")
def test_a_request_waits_while_the_node_lacks_the_wal_of_a_restart(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(15, wal_keep_size=0, min_wal_size="32MB", autovacuum="off")
    fill(cluster, "postgres", rows=10)
    with running(cluster, "postgres", tmp_path, copy=True) as sidecar:
        sidecar.catch_up()
        with cluster.connect("postgres", autocommit=False) as session:
            session.execute("INSERT INTO account VALUES (100, 'open')")
            for number in range(200, 203):
                cluster.sql(f"INSERT INTO account VALUES ({number}, 'x'); SELECT pg_switch_wal()")
                sidecar.catch_up()
            cluster.sql("CHECKPOINT")  # removes WAL that the stream has sent, and that a restart would need
            late = recopy(sidecar, "account", "--no-wait")
            assert set(steps(succeeded(late)).values()) == {"requested"}
            reported_of = sidecar.wait_for_event("requested copies wait")
            assert "the node has removed WAL from" in str(reported_of["error"])
            state, options = sidecar.folder.root, sidecar.options
            with running_cdcctl(tmp_path, "table", "recopy", "account", "--state", state, **options) as waiting:
                waiting.wait_for_err("the node has removed WAL from")
                assert generations(sidecar.catch_up()) == [(1, True), (1, False)]
                session.commit()
                assert waiting.ended().code == ExitCode.SUCCESS
        items = sidecar.catch_up()
        assert generations(items)[-1] == (2, False)
        assert replayed(change_log(newest_generation(items), "account")) == source_rows(sidecar)


@pytest.mark.feature("I30")
def test_the_stream_continues_while_a_request_waits_for_older_transactions(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database, rows=10)
    with running(cluster, database, tmp_path, copy=True) as sidecar:
        sidecar.catch_up()
        with cluster.connect(database, autocommit=False) as session:
            session.execute("INSERT INTO account VALUES (100, 'open')")
            succeeded(recopy(sidecar, "account", "--no-wait"))
            reported_of = sidecar.wait_for_event("requested copies wait")
            assert "the copy would wait for open transactions: process" in str(reported_of["error"])
            cluster.sql("INSERT INTO account VALUES (101, 'beside it')", database)
            assert generations(sidecar.catch_up()) == [(1, True), (1, False)]
            request = ("table", "recopy", "account", "--state", sidecar.folder.root, "--json")
            with running_cdcctl(tmp_path, *request, **sidecar.options) as waiting:
                waiting.wait_for_err("the copy would wait for open transactions")
                session.commit()
                assert set(steps(succeeded(waiting.ended())).values()) == {"done"}
        items = sidecar.catch_up()
        assert generations(items)[-1] == (2, False)
        assert replayed(change_log(newest_generation(items), "account")) == source_rows(sidecar)


@pytest.mark.feature("I30")
def test_a_request_that_cannot_be_served_is_postponed_or_fails_by_name_and_the_stream_continues(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """A start of the sidecar queues copies without a check: the same as a transaction that begins after the check."""
    role = f"r_{uuid.uuid4().hex[:8]}"
    cluster.sql(f"CREATE ROLE {role} LOGIN REPLICATION")
    fill(cluster, database, rows=10)
    fill(cluster, database, "other", 10)
    cluster.sql(f"GRANT SELECT ON account, other TO {role}", database)
    account, other = f"{database}.public.account", f"{database}.public.other"
    options = {"TIDEMARK_CAPTURE__DSN": cluster.dsn(database, role), "TIDEMARK_SEED__WAIT_S": "1"}
    with running(cluster, database, tmp_path, copy=True, **options) as sidecar:
        sidecar.catch_up()
        with cluster.connect(database, autocommit=False) as session:
            session.execute("INSERT INTO account VALUES (100, 'open')")
            succeeded(recopy(sidecar, "account", "other", "--no-wait"))
            sidecar.wait_for_event("requested copies wait")
            sidecar.stop()
            cluster.sql(f"REVOKE SELECT ON other FROM {role}", database)
            sidecar.start()
            sidecar.wait_until(
                lambda: any("older transactions are open" in str(event.get("error")) for event in sidecar.events()),
                "a copy that is put off",
            )
            cluster.sql("INSERT INTO account VALUES (101, 'beside it')", database)
            assert generations(sidecar.catch_up()) == [(1, True), (1, False)]
            assert recopies_in_status(sidecar) == {account: "requested", other: "failed: no SELECT on public.other"}
            assert sidecar.metric('tidemark_recopies_failed_total{capture="main"}') == 1
            assert sidecar.wait_for_event("requested copy failed")["reason"] == "no SELECT on public.other"
            succeeded(recopy(sidecar, "--cancel", "account", "other"))
            assert recopies_in_status(sidecar) == {}
            refused(recopy(sidecar, "--cancel", "account"), ExitCode.CONFIG, "no copy of public.account is requested")
            session.commit()
        assert set(steps(succeeded(recopy(sidecar, "account"))).values()) == {"done"}
        items = sidecar.catch_up()
        assert generations(items)[-1] == (2, False)
        assert generations(items, "other") == [(1, True), (1, False)]
        assert replayed(change_log(newest_generation(items), "account")) == source_rows(sidecar)


@pytest.mark.feature("I30")
def test_a_request_for_a_table_that_the_node_cannot_read_fails_by_name_and_the_stream_continues(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database, rows=10)
    cluster.sql("CREATE TYPE mood AS ENUM ('good'); CREATE TABLE broken (id int PRIMARY KEY, mood mood)", database)
    cluster.sql("INSERT INTO broken VALUES (1, 'good')", database)
    options = {"TIDEMARK_RETRY__FIRST_S": "0.01", "TIDEMARK_RETRY__MAX_S": "0.01"}
    with running(cluster, database, tmp_path, copy=True, **options) as sidecar:
        sidecar.catch_up()
        cluster.sql("DELETE FROM pg_enum WHERE enumtypid = 'mood'::regtype", database)  # its row has no text any more
        done = recopy(sidecar, "broken")
        assert done.code == ExitCode.UNEXPECTED
        assert "attempts to read a table failed" in done.err
        assert steps(done) == {f"{database}.public.broken": "failed"}
        cluster.sql("INSERT INTO account VALUES (101, 'beside it')", database)
        items = sidecar.catch_up()
        assert generations(items, "broken") == [(1, True), (1, False)]
        assert 101 in replayed(change_log(items, "account"))


@pytest.mark.feature("I30")
def test_a_request_ends_with_the_drop_of_its_table(cluster: Cluster, database: str, tmp_path: Path) -> None:
    for table in ("dropped", "unlogged"):
        fill(cluster, database, table, 10)
    with running(cluster, database, tmp_path, copy=True) as sidecar:
        sidecar.catch_up()
        sidecar.stop()
        cluster.sql("ALTER TABLE unlogged SET UNLOGGED", database)
        cluster.sql("ALTER TABLE unlogged SET LOGGED", database)
        asked = recopy(sidecar, "dropped", "unlogged")
        assert "2 tables have not been copied" in asked.err
        cluster.sql("DROP TABLE dropped", database)
        sidecar.start()
        sidecar.catch_up()
        wait_until(lambda: not recopies_in_status(sidecar), "the end of the requests")
        with StateStore.open(sidecar.folder, read_only=True) as store:
            ((key, copy),) = store.view().copies.items()
        ((oid,),) = cluster.sql("SELECT 'unlogged'::regclass::oid::int", database)
        assert (key[1], copy.phase, copy.generation) == (oid, CopyPhase.DONE, 1)
