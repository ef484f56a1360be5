"""Tables whose names pass to others before a copy: readers that go by names end equal.

Between `cdcctl init` and the first start, and while a capture is stopped that starts with another selection.
"""

from pathlib import Path

import pytest

from tests.integration.landing.test_copied_again import FILLED, source_rows
from tests.integration.replay.test_unselected import CREATE, EXCLUDED, TABLES
from tests.support.lakes.kept_target import register, targets
from tests.support.lakes.lake_contents import replica_of, rows_at_source
from tests.support.lakes.lakes import feed_by_hand
from tests.support.processes.captures import Sidecar, initialised
from tests.support.servers.postgres import Cluster
from tidemark.io.state.state import StateStore
from tidemark.model.change import SchemaEvent
from tidemark.model.errors import ExitCode
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.wire.state.copy_progress import CopyPhase

READER = "lake"
BESIDE = "CREATE TABLE {0} (id int PRIMARY KEY, note text); INSERT INTO {0} VALUES (900, 'beside')"
CHANGES = "UPDATE account SET note = 'last' WHERE id = 3; INSERT INTO account VALUES (500, 'x')"
BEFORE = {
    "created again": f"DROP TABLE account; {CREATE}; INSERT INTO account VALUES (7, 'new')",
    "created again, empty": f"DROP TABLE account; {CREATE}",
    "created twice": (
        f"DROP TABLE account; {CREATE}; INSERT INTO account VALUES (7, 'new'); DROP TABLE account; {CREATE}"
    ),
    "truncated": "TRUNCATE account; INSERT INTO account VALUES (7, 'new')",
    "rewritten": "ALTER TABLE account ALTER id TYPE int USING id + 1000; INSERT INTO account VALUES (7, 'new')",
    "swapped": f"{BESIDE.format('fresh')}; ALTER TABLE account RENAME TO old; ALTER TABLE fresh RENAME TO account",
    "swapped back": (
        f"ALTER TABLE account RENAME TO old; {CREATE}; INSERT INTO account VALUES (7, 'between');"
        " DROP TABLE account; ALTER TABLE old RENAME TO account"
    ),
    "replaced by an unselected one": (
        "DROP TABLE account; ALTER TABLE stage.account SET SCHEMA public; DELETE FROM account WHERE id = 901"
    ),
    "moved out of the selection": (
        f"ALTER TABLE account SET SCHEMA kept; {CREATE}; INSERT INTO account VALUES (7, 'new')"
    ),
}


def changed(cluster: Cluster, database: str, statements: str) -> None:
    """Run statements as a transaction each."""
    for statement in statements.split("; "):
        cluster.sql(statement, database)


def stopped(cluster: Cluster, database: str) -> None:
    """Create the tables that a capture finds."""
    cluster.sql(f"{FILLED}; CREATE SCHEMA stage; CREATE SCHEMA kept; {BESIDE.format('stage.account')}", database)
    cluster.sql("INSERT INTO stage.account VALUES (901, 'beside')", database)


def check(sidecar: Sidecar, lake: Path) -> None:
    """Check that a query of each form, with the smallest batches, and the lake equal the source."""
    sidecar.catch_up()
    for target in targets(sidecar.folder.root, "account"):
        target.advance(bytes_max=1)
        assert target.notes() == source_rows(sidecar), target.columns
    feed_by_hand(sidecar.folder, lake, READER)
    assert replica_of(lake, "account") == rows_at_source(sidecar.cluster, sidecar.database, "account")


@pytest.mark.feature("P22")
@pytest.mark.feature("L03")
@pytest.mark.parametrize("case", BEFORE)
def test_changes_of_a_table_that_is_gone_before_the_first_copy_do_not_follow_it(
    cluster: Cluster, database: str, tmp_path: Path, case: str
) -> None:
    stopped(cluster, database)
    with initialised(cluster, database, tmp_path, copy=True, **{TABLES: "public.*", EXCLUDED: ""}) as sidecar:
        register(sidecar.folder)
        changed(
            cluster, database, "UPDATE account SET note = 'last' WHERE id = 3; INSERT INTO account VALUES (500, 'x')"
        )
        changed(cluster, database, BEFORE[case])
        sidecar.start()
        assert not any(isinstance(item, SchemaEvent) for item in sidecar.catch_up())
        changed(cluster, database, "INSERT INTO account VALUES (100, 'after')")
        check(sidecar, tmp_path / "lake")
    folders = {table.folder.rpartition("/")[2] for table in OpenedLake(str(tmp_path / "lake")).tables}
    assert folders - {"messages", "old"} == {"account"}


@pytest.mark.feature("P22")
def test_the_plan_of_the_first_copy_outlives_kills(cluster: Cluster, database: str, tmp_path: Path) -> None:
    """The copy waits for an older transaction while the sidecar is killed, and its changes come by the stream."""
    stopped(cluster, database)
    with (
        initialised(cluster, database, tmp_path, copy=True, **{TABLES: "public.*", EXCLUDED: ""}) as sidecar,
        cluster.connect(database, autocommit=False) as older,
    ):
        register(sidecar.folder)
        changed(cluster, database, f"INSERT INTO account VALUES (500, 'x'); {BEFORE['created again']}")
        older.execute("INSERT INTO account VALUES (8, 'older')")
        sidecar.start()
        sidecar.wait_for_event("first copy waits for older transactions")
        sidecar.kill()
        with StateStore.open(sidecar.folder) as store:
            assert {copy.phase for copy in store.view().copies.values()} == {CopyPhase.WAITING}
        older.commit()
        sidecar.start()
        check(sidecar, tmp_path / "lake")


AFTER = {
    "created again": (BEFORE["created again"], ["account"]),
    "replaced by a listed one": ("DROP TABLE account; ALTER TABLE fresh RENAME TO account", []),
}


@pytest.mark.feature("P22")
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("case", AFTER)
def test_changes_of_a_table_that_is_dropped_after_the_plan_and_before_its_copy_are_not_delivered(
    cluster: Cluster, database: str, tmp_path: Path, case: str, *, killed: bool
) -> None:
    stopped(cluster, database)
    changed(cluster, database, BESIDE.format("fresh"))
    with (
        initialised(cluster, database, tmp_path, copy=True, **{TABLES: "public.*", EXCLUDED: ""}) as sidecar,
        cluster.connect(database, autocommit=False) as older,
    ):
        register(sidecar.folder)
        older.execute("INSERT INTO stage.account VALUES (8, 'older')")  # the copy waits for its end
        sidecar.start()
        sidecar.wait_for_event("first copy waits for older transactions")
        if killed:
            sidecar.kill()
        statements, created = AFTER[case]
        changed(cluster, database, f"{CHANGES}; {statements}")
        older.commit()
        if killed:
            sidecar.start()
        changed(cluster, database, "INSERT INTO account VALUES (100, 'after')")
        events = [item for item in sidecar.catch_up() if isinstance(item, SchemaEvent)]
        assert all(event.before is None for event in events), "nothing is dropped of which nothing was delivered"
        assert [event.after.name for event in events if event.after is not None] == created
        check(sidecar, tmp_path / "lake")


RESTARTS = "restarting capture to copy the tables that waited for the stream"
STOPPED = {
    "created again": (f"DROP TABLE account; {CREATE}; INSERT INTO account VALUES (7, 'new')", 2, 0),
    "replaced by an unselected one": (BEFORE["replaced by an unselected one"], 2, 1),
    "swapped with one that is selected now": (
        "ALTER TABLE account SET SCHEMA stage2; ALTER TABLE kept.account SET SCHEMA public",
        1,
        1,
    ),
}


@pytest.mark.feature("P22")
@pytest.mark.feature("L03")
@pytest.mark.parametrize("case", STOPPED)
def test_a_table_with_another_name_than_at_the_start_is_copied_after_the_changes_before_it_got_that_name(
    cluster: Cluster, database: str, tmp_path: Path, case: str
) -> None:
    stopped(cluster, database)
    cluster.sql(f"CREATE SCHEMA stage2; {BESIDE.format('kept.account')}; {BESIDE.format('kept.other')}", database)
    with initialised(cluster, database, tmp_path, copy=True, **{TABLES: "public.*", EXCLUDED: ""}) as sidecar:
        register(sidecar.folder)
        sidecar.start()
        sidecar.catch_up()
        sidecar.stop()
        statements, at_once, restarts = STOPPED[case]
        changed(cluster, database, f"{CHANGES}; {statements}")
        sidecar.options[TABLES] = "public.*,kept.*,stage2.*"
        sidecar.start()
        sidecar.wait_for_event("first copy planned", tables=at_once, later=1)
        changed(cluster, database, "INSERT INTO account VALUES (100, 'after')")
        sidecar.wait_until(lambda: not has_open_copies(sidecar), "the copies that wait for the stream")
        check(sidecar, tmp_path / "lake")
        assert [event["event"] for event in sidecar.events()].count(RESTARTS) == restarts


@pytest.mark.feature("P22")
def test_tables_that_two_starts_have_planned_for_later_are_all_copied(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """The first start is killed, and the stream then contains the creation of its table; that of the second waits."""
    stopped(cluster, database)
    changed(cluster, database, BESIDE.format("kept.other"))
    with initialised(cluster, database, tmp_path, copy=True, **{TABLES: "public.*", EXCLUDED: ""}) as sidecar:
        register(sidecar.folder)
        sidecar.start()
        sidecar.catch_up()
        sidecar.stop()
        changed(cluster, database, BESIDE.format("fresh"))
        sidecar.options[TABLES] = "public.*,stage.*"
        with cluster.connect(database, autocommit=False) as older:
            older.execute("INSERT INTO account VALUES (800, 'older')")
            sidecar.start()
            sidecar.wait_for_event("first copy waits for older transactions")
            sidecar.kill()
        changed(cluster, database, "ALTER TABLE kept.other SET SCHEMA public")
        sidecar.options[TABLES] = "public.*,stage.*,kept.*"
        sidecar.start()
        sidecar.wait_until(lambda: not has_open_copies(sidecar), "the copies that wait for the stream")
        check(sidecar, tmp_path / "lake")
        for table in ("fresh", "other"):
            assert replica_of(tmp_path / "lake", table) == rows_at_source(cluster, database, table)
        assert [event["event"] for event in sidecar.events()].count(RESTARTS) == 1


@pytest.mark.feature("P22")
def test_a_table_to_be_copied_later_that_cannot_be_read_is_refused_at_the_start(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    stopped(cluster, database)
    changed(cluster, database, BESIDE.format("kept.other"))
    role = f"copying_{database}"
    cluster.sql(f"CREATE ROLE {role} LOGIN REPLICATION", database)
    changed(
        cluster, database, f"GRANT SELECT ON account, stage.account TO {role}; GRANT USAGE ON SCHEMA stage TO {role}"
    )
    with initialised(cluster, database, tmp_path, copy=True, **{TABLES: "public.*", EXCLUDED: ""}) as sidecar:
        sidecar.options["TIDEMARK_CAPTURE__DSN"] += f" user={role}"
        register(sidecar.folder)
        sidecar.start()
        sidecar.catch_up()
        sidecar.stop()
        changed(cluster, database, "ALTER TABLE kept.other SET SCHEMA public")
        sidecar.options[TABLES] = "public.*,stage.*,kept.*"
        sidecar.refuses(ExitCode.NODE_UNFIT, "no SELECT on public.other")
        assert [event["event"] for event in sidecar.events()].count("first copy planned") == 1
        cluster.sql(f"GRANT SELECT ON other TO {role}", database)
        sidecar.start()
        sidecar.wait_for_event("first copy planned", later=1)
        sidecar.wait_until(lambda: not has_open_copies(sidecar), "the copy that waits for the stream")
        check(sidecar, tmp_path / "lake")
        assert replica_of(tmp_path / "lake", "other") == rows_at_source(cluster, database, "other")


def has_open_copies(sidecar: Sidecar) -> bool:
    with StateStore.open(sidecar.folder) as store:
        return any(copy.is_open for copy in store.view().copies.values())
