"""Tables whose capture ended and began again without a report, and those of a database that leaves the selection."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.integration.first_copy.test_recopy_steps import taken
from tests.integration.replay.test_unselected import CREATE, EXCLUDED, TABLES, Unselected, capturing, fill
from tests.support.lakes.lakes import replica_rows
from tests.support.processes.captures import Sidecar
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark.io.process.config import SelectConfig
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.capture_change import CaptureChange
from tidemark.model.lsn import INVALID_LSN
from tidemark.pipeline.source.format import OutboxSource
from tidemark.pipeline.source.rows.query_table import ChangesMissing
from tidemark.pipeline.source.stream import OutboxStreamReader
from tidemark.runtime.first_copy.recopying import refuse
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, DueNotice, Recopy

pytestmark = pytest.mark.feature("L03")
DATABASES, IDLE = "TIDEMARK_SELECT__DATABASES", "TIDEMARK_DELIVER__IDLE_POINTER_S"


@pytest.fixture
def captured(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Unselected]:
    with capturing(cluster, database, tmp_path) as found:
        yield found


def query(captured: Unselected, table: str) -> OutboxStreamReader:
    state = str(captured.sidecar.folder.root)
    source = OutboxSource({"state": state, "table": table, "reader": f"of-{table}"})
    return source.streamReader(source.schema())


def check_missing(captured: Unselected, table: str) -> None:
    """Check that a query of the table, which begins with the outbox, ends where its changes are missing."""
    reader = query(captured, table)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with pytest.raises(ChangesMissing, match=rf"changes of public\.{table} are missing from value \d+ "):
        reader.latestOffset(end, ReadAllAvailable())


def plan_undelivered(captured: Unselected, *selections: str) -> None:
    """Start with one selection after the other; each start is killed before it delivers anything."""
    sidecar = captured.sidecar
    idle_s = sidecar.options[IDLE]
    for excluded in selections:
        sidecar.kill()
        sidecar.options.update({EXCLUDED: excluded, IDLE: "600"})
        planned = plans(captured)
        sidecar.start()
        wait_until(lambda: plans(captured) > planned, "the plan of the copies")  # noqa: B023 - called at once
    sidecar.kill()
    sidecar.options[IDLE] = idle_s


def plans(captured: Unselected) -> int:
    return sum(event["event"] == "first copy planned" for event in captured.sidecar.events())


def test_a_table_that_left_and_returned_without_a_report_has_both_events(captured: Unselected) -> None:
    fill(captured)
    captured.land()
    plan_undelivered(captured, "public.account", "")
    captured.sidecar.start()
    captured.sql("UPDATE account SET note = 'last'")
    captured.land()
    assert captured.events() == [("account", CaptureChange.ENDS), ("account", CaptureChange.BEGINS)]
    assert len(captured.table().breaks) == 1
    check_missing(captured, "account")


def test_a_table_that_left_again_without_a_report_is_reported_to_have_left(captured: Unselected) -> None:
    fill(captured)
    captured.sql("CREATE TABLE other (id int)")
    captured.land()
    plan_undelivered(captured, "public.account", "", "public.account")
    captured.sidecar.start()
    captured.sql("UPDATE account SET note = 'missed'")
    captured.sql("INSERT INTO other VALUES (1)")
    captured.land()
    assert captured.events() == [("account", CaptureChange.ENDS)]
    check_missing(captured, "account")


def test_a_table_whose_new_copy_was_refused_is_reported_to_have_left(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """Its rows and changes were delivered before the copy, whose refusal the stream has not reported."""
    cluster.sql(CREATE, database)
    cluster.sql("INSERT INTO account VALUES (1, 'first')", database)
    with capturing(cluster, database, tmp_path, copy=True) as captured:
        captured.land()
        captured.sidecar.stop()
        with StateStore.open(captured.sidecar.folder) as store:
            ((key, copy),) = store.view().copies.items()
            begun = CopyProgress(CopyPhase.COPYING, copy.generation + 1)
            with store.transaction(None) as transaction:
                transaction.put_copy(*key, begun)
            refuse(store, taken(store), key, Recopy("db.public.account", 0, INVALID_LSN, 0, failed="too large"))
        captured.sidecar.options[EXCLUDED] = "public.account"
        captured.sidecar.start()
        captured.sql("UPDATE account SET note = 'missed'")
        captured.sql("CREATE TABLE other (id int)")
        captured.sql("INSERT INTO other VALUES (1)")
        captured.land()
        assert captured.events() == [("account", CaptureChange.ENDS)]
        check_missing(captured, "account")


def late_comes_and_leaves(captured: Unselected) -> None:
    """Select `late` for a start that delivers nothing, exclude it again, and deliver a change of `other`."""
    plan_undelivered(captured, "", "public.late")
    captured.sidecar.start()
    captured.sql("INSERT INTO other VALUES (1)")
    captured.land()


def test_a_table_that_came_and_left_without_a_report_is_not_reported(captured: Unselected) -> None:
    captured.restart(**{EXCLUDED: "public.late"})
    captured.sql("CREATE TABLE late (id int PRIMARY KEY, note text)")
    captured.sql("CREATE TABLE other (id int)")
    captured.land()
    late_comes_and_leaves(captured)
    assert captured.events() == []


def test_a_table_created_before_a_start_excludes_it_is_not_reported_to_have_left(captured: Unselected) -> None:
    """Its creation comes with the stream of that start, which does not select it: nothing of it was delivered."""
    captured.land()
    captured.sidecar.kill()
    captured.sql("CREATE TABLE late (id int PRIMARY KEY, note text)")
    captured.sidecar.options[EXCLUDED] = "public.late"
    captured.sidecar.start()
    captured.sql("CREATE TABLE other (id int)")
    captured.land()
    late_comes_and_leaves(captured)
    captured.restart(**{EXCLUDED: "public.l*"})
    captured.sql("INSERT INTO other VALUES (2)")
    captured.land()
    assert captured.events() == []


@contextmanager
def two_databases(
    cluster: Cluster,
    database: str,
    root: Path,
    *,
    copied: bool,
    before_start: Callable[[StateFolder], None] = lambda _: None,
) -> Iterator[tuple[Unselected, str]]:
    """A capture of two databases, the second of which has the table `elsewhere`; return also its name."""
    other = f"{database}_other"
    cluster.sql(f"CREATE DATABASE {other}")
    options = {TABLES: "public.*", DATABASES: f"{database},{other}"}
    sidecar = Sidecar(cluster, database, root, copy=copied, **options)
    sidecar.config = replace(sidecar.config, select=SelectConfig(databases=(database, other)))
    try:
        cluster.sql("CREATE TABLE elsewhere (id int PRIMARY KEY, note text)", other)
        cluster.sql("INSERT INTO elsewhere VALUES (0, 'before')", other)
        sidecar.init()
        before_start(sidecar.folder)
        sidecar.start()
        sidecar.catch_up()  # it has planned its copies
        yield Unselected(sidecar, root / "lake"), other
    finally:
        sidecar.close()
        for (name,) in cluster.sql(f"SELECT datname FROM pg_database WHERE datname IN ('{other}', '{other}_gone')"):
            cluster.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("copied", [False, True])
def test_the_tables_of_a_database_that_leaves_the_selection_are_reported(
    cluster: Cluster, database: str, tmp_path: Path, *, copied: bool
) -> None:
    with two_databases(cluster, database, tmp_path, copied=copied) as (captured, other):
        fill(captured)
        cluster.sql("INSERT INTO elsewhere VALUES (1, 'first')", other)
        cluster.sql("CREATE TABLE dropped (id int PRIMARY KEY)", other)
        cluster.sql("INSERT INTO dropped VALUES (1)", other)
        cluster.sql("DROP TABLE dropped", other)
        captured.restart(**{DATABASES: database})
        cluster.sql("UPDATE elsewhere SET note = 'missed'", other)
        captured.sql("INSERT INTO account VALUES (2, 'more')")
        captured.land()
        assert captured.events() == [("elsewhere", CaptureChange.ENDS)]
        with StateStore.open(captured.sidecar.folder, read_only=True) as store:
            assert {copy.capture for copy in store.view().copies.values()} == {DueNotice.NONE}
        (gap,) = captured.table("elsewhere").breaks
        assert gap.is_open
        check_missing(captured, "elsewhere")


def test_a_query_ends_where_a_rename_of_the_database_removes_its_table_from_the_selection(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    with two_databases(cluster, database, tmp_path, copied=True) as (captured, other):
        cluster.sql("INSERT INTO elsewhere VALUES (1, 'first')", other)
        cluster.sql(f"ALTER DATABASE {other} RENAME TO {other}_gone")
        cluster.sql("UPDATE elsewhere SET note = 'missed'", f"{other}_gone")
        cluster.sql(f"ALTER DATABASE {other}_gone RENAME TO {other}")
        cluster.sql("INSERT INTO elsewhere VALUES (2, 'last')", other)
        captured.land()
        (gap,) = captured.table("elsewhere").breaks
        assert not gap.is_open
        check_missing(captured, "elsewhere")


@pytest.mark.parametrize("copied", [False, True])
def test_changes_before_a_rename_of_the_database_that_the_configuration_follows_are_not_missing_without_a_report(
    cluster: Cluster, database: str, tmp_path: Path, *, copied: bool
) -> None:
    """The new name is configured before the stream has the rename, and so with the changes before it."""
    with two_databases(cluster, database, tmp_path, copied=copied) as (captured, other):
        cluster.sql("INSERT INTO elsewhere VALUES (1, 'first')", other)
        captured.land()
        captured.sidecar.stop()
        cluster.sql("INSERT INTO elsewhere VALUES (2, 'before the rename')", other)
        cluster.sql(f"ALTER DATABASE {other} RENAME TO {other}_gone")
        cluster.sql("INSERT INTO elsewhere VALUES (3, 'after the rename')", f"{other}_gone")
        captured.sidecar.options[DATABASES] = f"{database},{other}_gone"
        plan_undelivered(captured, "")
        captured.sidecar.start()
        captured.sql(CREATE)
        cluster.sql("INSERT INTO elsewhere VALUES (4, 'last')", f"{other}_gone")
        captured.land()
        if copied:
            replica = replica_rows(captured.lake / captured.table("elsewhere").folder, "")
            assert [(row["id"], row["note"]) for row in replica] == cluster.sql(
                "SELECT id, note FROM elsewhere ORDER BY id", f"{other}_gone"
            )
            return
        assert captured.events() == [("elsewhere", CaptureChange.ENDS)]
        (gap,) = captured.table("elsewhere").breaks
        assert not gap.is_open
        check_missing(captured, "elsewhere")


def test_a_query_does_not_end_where_the_database_of_its_table_is_dropped(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    with two_databases(cluster, database, tmp_path, copied=True) as (captured, other):
        cluster.sql("INSERT INTO elsewhere VALUES (1, 'last')", other)
        cluster.sql(f"DROP DATABASE {other} WITH (FORCE)")
        captured.land()
        reader = query(captured, "elsewhere")
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert captured.table("elsewhere").breaks == ()
