"""A table that was not selected for a while, and was not copied again: its log has a gap, which is recorded."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.first_copy.test_copy_to_consumer import KeepingConsumer
from tests.integration.first_copy.test_copy_to_consumer import captured as consuming
from tests.support.lakes.lakes import feed_by_hand, replica_rows
from tests.support.processes.captures import Sidecar, config_for, initialised
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.postgres import Cluster
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import GroupItem, SchemaEvent
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, format_lsn, parse_lsn
from tidemark.pipeline.lake.faults import NOT_SELECTED
from tidemark.pipeline.lake.positions.table_position import TablePosition
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.replay.moment import EndOfLake, LsnMoment, Moment
from tidemark.pipeline.replay.refusal import ReplayRefused
from tidemark.pipeline.replay.replaying import replay
from tidemark.pipeline.replay.result_target import FolderTarget
from tidemark.runtime.seed.initialise import initialise

pytestmark = pytest.mark.feature("N17")
READER = "lake"
TABLES, EXCLUDED = "TIDEMARK_SELECT__TABLES", "TIDEMARK_SELECT__EXCLUDE_TABLES"
CREATE = "CREATE TABLE account (id int PRIMARY KEY, note text)"


class Unselected:
    """A capture without a copy, its lake, and the rows of `account` at moments."""

    def __init__(self, sidecar: Sidecar, lake: Path) -> None:
        self.sidecar = sidecar
        self.lake = lake

    def sql(self, statement: str) -> Lsn:
        """Run a statement; return an LSN after it."""
        self.sidecar.cluster.sql(statement, self.sidecar.database)
        return parse_lsn(self.sidecar.cluster.flush_lsn())

    def restart(self, **options: str) -> None:
        """Deliver all, and start with other options."""
        self.land()
        self.sidecar.stop()
        self.sidecar.options.update(options)
        self.sidecar.start()

    def recopy(self, table: str) -> None:
        """Copy a table, as the refusal says."""
        succeeded(cdcctl("table", "recopy", "--state", self.sidecar.folder.root, table, **self.sidecar.options))

    def land(self) -> None:
        """Write all into the lake."""
        self.items()
        feed_by_hand(self.sidecar.folder, self.lake, READER)

    def items(self) -> list[GroupItem]:
        return self.sidecar.catch_up()

    def events(self) -> list[tuple[str, CaptureChange]]:
        """Return what the stream says of captures that end and begin."""
        found = [item for item in self.items() if isinstance(item, SchemaEvent)]
        return [
            (each.name, item.capture)
            for item in found
            if item.capture is not CaptureChange.NONE and (each := item.after) is not None
        ]

    def table(self, name: str = "account") -> TablePosition:
        return OpenedLake(str(self.lake)).find(f"public.{name}")

    def notes(self, moment: Moment, name: str = "account") -> list[object]:
        """Return the notes of the table at a moment, from its log."""
        opened, to = OpenedLake(str(self.lake)), self.lake.parent / "result"
        shutil.rmtree(to, ignore_errors=True)
        replay(opened, opened.find(f"public.{name}"), moment, FolderTarget(to / "replica"))
        return [row["note"] for row in replica_rows(to, "")]

    def refused(self, moment: Moment, name: str = "account") -> str:
        with pytest.raises(ReplayRefused) as found:
            self.notes(moment, name)
        return f"{found.value} {found.value.hint}"


@pytest.fixture
def captured(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Unselected]:
    with capturing(cluster, database, tmp_path) as found:
        yield found


@contextmanager
def capturing(
    cluster: Cluster, database: str, root: Path, *, copy: bool = False, excluded: str = ""
) -> Iterator[Unselected]:
    with initialised(cluster, database, root, copy=copy, **{TABLES: "public.*", EXCLUDED: excluded}) as sidecar:
        sidecar.start()
        sidecar.catch_up()  # it has planned its copies, and found no table
        yield Unselected(sidecar, root / "lake")


def fill(captured: Unselected) -> Lsn:
    """Create the table in the stream, with one row; return a moment after it, before a later change."""
    captured.sql(CREATE)
    before = captured.sql("INSERT INTO account VALUES (1, 'first')")
    captured.sql("UPDATE account SET note = 'second'")
    return before


def test_a_table_that_returns_without_a_copy_is_refused_from_its_leave_on(captured: Unselected) -> None:
    before = fill(captured)
    captured.restart(**{EXCLUDED: "public.account"})
    away = captured.sql("UPDATE account SET note = 'missed'")
    captured.land()
    left = captured.table().position
    assert captured.events() == [("account", CaptureChange.ENDS)]
    assert captured.notes(LsnMoment(before)) == ["first"]
    for moment in (LsnMoment(away), EndOfLake()):
        reason = captured.refused(moment)
        assert f"public.account: its changes after {left} are missing: {NOT_SELECTED}" in reason
        assert "cdcctl table recopy public.account" in reason
    captured.restart(**{EXCLUDED: ""})
    captured.sql("UPDATE account SET note = 'returned'")
    captured.land()
    assert captured.events() == [("account", CaptureChange.ENDS), ("account", CaptureChange.BEGINS)]
    (gap,) = captured.table().breaks
    assert gap.after == left
    assert left.commit_lsn < gap.to.commit_lsn < captured.table().position.commit_lsn
    assert captured.notes(LsnMoment(before)) == ["first"]
    for moment in (LsnMoment(away), EndOfLake()):
        assert f"its changes after {left} and before {gap.to} are missing: {NOT_SELECTED}" in captured.refused(moment)


def test_a_quiet_table_that_returns_is_refused_as_well(captured: Unselected) -> None:
    """No change of its own says that changes are missing."""
    fill(captured)
    captured.restart(**{EXCLUDED: "public.account"})
    captured.sql("UPDATE account SET note = 'missed'")
    captured.restart(**{EXCLUDED: ""})
    captured.land()
    assert len(captured.table().breaks) == 1
    assert "are missing" in captured.refused(EndOfLake())


def test_a_copy_or_a_truncation_after_the_return_shows_the_rows_again(captured: Unselected) -> None:
    fill(captured)
    captured.restart(**{EXCLUDED: "public.account"})
    captured.sql("UPDATE account SET note = 'missed'")
    captured.restart(**{EXCLUDED: ""})
    captured.sql("INSERT INTO account VALUES (2, 'returned')")
    captured.recopy("public.account")
    captured.sql("INSERT INTO account VALUES (3, 'copied')")
    captured.land()
    assert captured.notes(EndOfLake()) == ["missed", "returned", "copied"]
    captured.restart(**{EXCLUDED: "public.account"})
    captured.sql("DELETE FROM account")
    captured.restart(**{EXCLUDED: ""})
    captured.land()
    captured.refused(EndOfLake())
    captured.sql("TRUNCATE account")
    captured.sql("INSERT INTO account VALUES (4, 'truncated')")
    captured.land()
    assert captured.notes(EndOfLake()) == ["truncated"]


@pytest.mark.parametrize("copied", [False, True])
def test_a_table_that_ddl_moves_out_of_the_selection_and_back_has_the_gap_between(
    cluster: Cluster, database: str, tmp_path: Path, *, copied: bool
) -> None:
    with capturing(cluster, database, tmp_path, copy=copied, excluded="public.hidden*") as captured:
        before = fill(captured)
        captured.sql("ALTER TABLE account RENAME TO hidden")
        captured.sql("UPDATE hidden SET note = 'missed'")
        captured.sql("ALTER TABLE hidden RENAME TO account")
        away = captured.sql("UPDATE account SET note = note || '.'")
        captured.land()
        assert captured.events() == [("hidden", CaptureChange.ENDS), ("account", CaptureChange.BEGINS)]
        (gap,) = captured.table().breaks
        for moment in (LsnMoment(away), EndOfLake()):
            assert f"after {gap.after} and before {gap.to} are missing" in captured.refused(moment)
        assert captured.notes(LsnMoment(before)) == ["first"]
        captured.restart()
        if copied:
            captured.sidecar.wait_for_event("table copied")  # the position of its rows is below those of later changes
        captured.sql("INSERT INTO account VALUES (2, 'copied')")
        captured.land()
        if copied:  # the start copies what a rename brought in
            assert captured.notes(EndOfLake()) == ["missed.", "copied"]
        else:
            assert "are missing" in captured.refused(EndOfLake())


def test_a_start_without_changes_between_leaves_a_gap_that_is_known_once(captured: Unselected) -> None:
    """Killed starts repeat what they report until it is delivered, and a later one reports nothing again."""
    fill(captured)
    captured.land()
    for excluded in ("public.account", ""):
        captured.sidecar.kill()
        captured.sidecar.options[EXCLUDED] = excluded
        captured.sidecar.start()
    captured.sql("UPDATE account SET note = 'last'")
    captured.land()
    captured.restart()
    captured.sql("UPDATE account SET note = 'last'")
    assert len(captured.events()) <= 2
    captured.land()
    assert len(captured.table().breaks) <= 1


def test_tables_that_are_selected_when_the_capture_begins_are_not_reported(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql(CREATE, database)
    with capturing(cluster, database, tmp_path, excluded="public.late") as captured:
        captured.sql("INSERT INTO account VALUES (1, 'first')")
        captured.sql("CREATE TABLE late (id int PRIMARY KEY, note text)")
        captured.sql("INSERT INTO late VALUES (1, 'earlier')")
        captured.restart(**{EXCLUDED: ""})
        captured.sql("INSERT INTO late VALUES (2, 'later')")
        captured.sql("INSERT INTO account VALUES (2, 'second')")
        captured.land()
        assert captured.events() == [("late", CaptureChange.BEGINS)]
        assert [table.name for table in OpenedLake(str(captured.lake)).tables if table.breaks] == []
        assert "the log has no complete copy of it" in captured.refused(EndOfLake(), "late")


def test_a_replica_from_the_log_and_the_description_name_the_gap(captured: Unselected) -> None:
    fill(captured)
    captured.restart(**{EXCLUDED: "public.account"})
    captured.sql("UPDATE account SET note = 'missed'")
    captured.restart(**{EXCLUDED: ""})
    captured.land()
    (gap,) = captured.table().breaks
    shown = succeeded(cdcctl("lake", "describe", "--lake", captured.lake, "public.account"))
    assert str(gap) in shown.out.decode()
    to, at = captured.lake.parent / "to", "--at"
    done = cdcctl(
        "replay", "--lake", captured.lake, "--table", "public.account", at, captured_end(captured), "--to", to
    )
    refused(done, ExitCode.CONFIG, "public.account: its changes after", str(gap.to), NOT_SELECTED)
    assert not to.exists()


def captured_end(captured: Unselected) -> str:
    """Return the LSN up to which the lake has everything."""
    return format_lsn(OpenedLake(str(captured.lake)).positions.applied.position.commit_lsn)


def test_a_leaf_that_a_root_takes_over_ends_and_begins_with_the_configuration(captured: Unselected) -> None:
    captured.sql("CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    captured.sql("CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100)")
    captured.sql("INSERT INTO parts VALUES (1, 'own name')")
    captured.restart(TIDEMARK_SELECT__PARTITION_ROOTS="public.parts")
    captured.sql("INSERT INTO parts VALUES (2, 'name of the root')")
    captured.land()
    assert sorted(captured.events()) == [("parts", CaptureChange.BEGINS), ("parts_low", CaptureChange.ENDS)]
    assert "are missing" in captured.refused(EndOfLake(), "parts_low")
    assert "the log has no complete copy of it" in captured.refused(EndOfLake(), "parts")
    captured.restart(TIDEMARK_SELECT__PARTITION_ROOTS="")
    captured.sql("INSERT INTO parts VALUES (3, 'own name')")
    captured.land()
    (gap,) = captured.table("parts_low").breaks
    assert f"and before {gap.to} are missing" in captured.refused(EndOfLake(), "parts_low")


def test_a_custom_consumer_gets_the_events_once(cluster: Cluster, database: str, tmp_path: Path) -> None:
    """Each start has another selection, and the consumer confirms all that it gets."""
    cluster.sql(CREATE, database)
    config, folder = config_for(cluster, database), StateFolder(tmp_path / "state")
    initialise(config, folder)
    found: list[CaptureChange] = []
    for number, excluded in enumerate(["", "public.account", "", ""]):
        consumer = KeepingConsumer(0)
        selecting = replace(config, select=replace(config.select, exclude_tables=(excluded,) if excluded else ()))
        with consuming(selecting, folder, consumer) as wait:
            cluster.sql(f"INSERT INTO account VALUES ({number}, 'x'); CREATE TABLE other{number} ()", database)
            wait(lambda kept=consumer, name=f"other{number}": name in created(kept.items))  # type: ignore[misc]
        found += [item.capture for item in consumer.items if isinstance(item, SchemaEvent)]
    assert [change for change in found if change is not CaptureChange.NONE] == [
        CaptureChange.ENDS,
        CaptureChange.BEGINS,
    ]


def created(items: list[GroupItem]) -> list[str]:
    return [item.after.name for item in items if isinstance(item, SchemaEvent) and item.after is not None]
