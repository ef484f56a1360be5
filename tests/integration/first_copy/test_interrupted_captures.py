"""Tables whose capture ended and began again without a report, and those of a database that leaves the selection."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.integration.replay.test_unselected import EXCLUDED, TABLES, Unselected, capturing, fill
from tests.support.processes.captures import Sidecar
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark.io.process.config import SelectConfig
from tidemark.model.capture_change import CaptureChange
from tidemark.pipeline.source.format import OutboxSource
from tidemark.pipeline.source.query_table import ChangesMissing

pytestmark = pytest.mark.feature("L03")
DATABASES, IDLE = "TIDEMARK_SELECT__DATABASES", "TIDEMARK_DELIVER__IDLE_POINTER_S"


@pytest.fixture
def captured(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Unselected]:
    with capturing(cluster, database, tmp_path) as found:
        yield found


def check_missing(captured: Unselected, table: str) -> None:
    """Check that a query of the table, which begins with the outbox, ends where its changes are missing."""
    state = str(captured.sidecar.folder.root)
    source = OutboxSource({"state": state, "table": table, "reader": f"of-{table}"})
    reader = source.streamReader(source.schema())
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


def test_a_table_that_came_and_left_without_a_report_is_not_reported(captured: Unselected) -> None:
    captured.restart(**{EXCLUDED: "public.late"})
    captured.sql("CREATE TABLE late (id int PRIMARY KEY, note text)")
    captured.sql("CREATE TABLE other (id int)")
    captured.land()
    plan_undelivered(captured, "", "public.late")
    captured.sidecar.start()
    captured.sql("INSERT INTO other VALUES (1)")
    captured.land()
    assert captured.events() == []


@pytest.mark.parametrize("copied", [False, True])
def test_the_tables_of_a_database_that_leaves_the_selection_are_reported(
    cluster: Cluster, database: str, tmp_path: Path, *, copied: bool
) -> None:
    other = f"{database}_other"
    cluster.sql(f"CREATE DATABASE {other}")
    try:
        cluster.sql("CREATE TABLE elsewhere (id int PRIMARY KEY, note text)", other)
        cluster.sql("INSERT INTO elsewhere VALUES (0, 'before')", other)
        both = f"{database},{other}"
        sidecar = Sidecar(cluster, database, tmp_path, copy=copied, **{TABLES: "public.*", DATABASES: both})
        sidecar.config = replace(sidecar.config, select=SelectConfig(databases=(database, other)))
        sidecar.init()
        try:
            sidecar.start()
            sidecar.catch_up()  # it has planned its copies
            captured = Unselected(sidecar, tmp_path / "lake")
            fill(captured)
            cluster.sql("INSERT INTO elsewhere VALUES (1, 'first')", other)
            captured.restart(**{DATABASES: database})
            cluster.sql("UPDATE elsewhere SET note = 'missed'", other)
            captured.sql("INSERT INTO account VALUES (2, 'more')")
            captured.land()
            assert captured.events() == [("elsewhere", CaptureChange.ENDS)]
            (gap,) = captured.table("elsewhere").breaks
            assert gap.is_open
            check_missing(captured, "elsewhere")
        finally:
            sidecar.close()
    finally:
        cluster.sql(f"DROP DATABASE {other} WITH (FORCE)")
