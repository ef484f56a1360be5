"""Moments that the lake cannot show: each is refused with its own reason, and nothing is at the place of the result."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.lake.test_ignored_columns import EVOLVE, PinnedLake
from tests.integration.lake.test_lake_changes import FOLDER, Changed, ScriptedLake, damage, delete, id_of, recreate
from tests.integration.lake.test_lake_changes import remove as remove_table
from tests.integration.replay.test_replay import Rows, copied_table, new_lake, refused_at, replayed, time
from tests.support.lakes.iceberg import iceberg_lake
from tests.support.lakes.lakes import IDENTITY, Crash, batch
from tests.support.lakes.paused_lake import PausedLake
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable
from tests.support.servers.small_disk import needs_mount
from tests.support.workloads.feeder import group_of
from tidemark.io.host.failpoints import arm
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig, Written
from tidemark.model.change import SchemaChange, SchemaEffect, Truncation
from tidemark.model.lsn import TimelineId
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.report import NoLake, OpenedLake
from tidemark.pipeline.replay.refusal import LakeUnreadable, ReplayRefused
from tidemark.pipeline.sinks.lake import Lake

pytestmark = pytest.mark.feature("N17")
LOG_EXCLUDED = LakeConfig((LakeTableConfig("Order*", write=Written.REPLICA),))


def with_ddl(table: ScriptedTable) -> None:
    """Add two changes, DDL, and another change, in transactions 1400 to 1700."""
    for note in ("A", "B"):
        table.commit()
        table.update((1,), {2: note})
    table.commit()
    table.add_column("later")
    table.commit()
    table.update((1,), {2: "C"})


def notes(rows: Rows) -> list[object]:
    return [row["note"] for row in rows]


def test_events_of_changes_that_the_log_lacks_do_not_show_that_it_is_complete(tmp_path: Path) -> None:
    table = copied_table()
    first = table.delivered()
    new_lake(tmp_path).apply(batch(first))
    with_ddl(table)

    def end(point: object) -> None:
        if point is Failpoint.EVENTS_RECORDED:
            raise Crash(point)

    arm(end)
    with pytest.raises(Crash):
        new_lake(tmp_path).apply(batch(table.delivered()[len(first) :]))
    arm(None)
    assert notes(replayed(tmp_path, 1300, tmp_path / "to")) == ["changed"]
    assert "does not contain all transactions before 0/5DC" in refused_at(tmp_path, 1500)


def test_moments_after_the_log_was_excluded_are_refused_also_before_ddl(tmp_path: Path) -> None:
    table = copied_table()
    first = table.delivered()
    new_lake(tmp_path).apply(batch(first))
    with_ddl(table)
    excluding = Lake(str(tmp_path), IDENTITY, shape_of, constants_of, config=LOG_EXCLUDED)
    excluding.apply(batch(table.delivered()[len(first) :]))
    assert notes(replayed(tmp_path, 1300, tmp_path / "to")) == ["changed"]
    assert "its log is excluded after 1:0/514:1, before 0/5DC" in refused_at(tmp_path, 1500)


@needs_mount
def test_moments_after_the_log_was_paused_are_refused_until_it_caught_up(tmp_path: Path) -> None:
    table, fed = copied_table(), PausedLake(tmp_path)
    first = table.delivered()
    fed.feed([group_of([one.item]) for one in first])
    fed.land()
    with_ddl(table)
    fed.feed([group_of([one.item]) for one in table.delivered()[len(first) :]])
    with fed.unwritable(table, ["log"]):
        fed.land()
    assert "its log is paused after 1:0/514:1, before 0/5DC" in refused_at(fed.lake, 1500)
    fed.resume(table.oid)
    assert notes(replayed(fed.lake, 1500, tmp_path / "to")) == ["A"]


@pytest.mark.parametrize("change", [delete, remove_table, recreate, damage], ids=id_of)
def test_moments_before_a_break_are_refused_because_earlier_rows_may_have_changed(
    tmp_path: Path, change: Changed
) -> None:
    fed = ScriptedLake(tmp_path)
    fed.table.commit()
    fed.table.add_column("more")
    fed.apply_pending()
    change(fed, "log")
    fed.update(5, "lost")
    fed.accept_break()
    fed.recopy()
    fed.update(7, "live again")
    for lsn in (1101, 1250, 1301, 1401):
        assert f"its log has a break: changes after {fed.position().breaks[0].after}" in refused_at(tmp_path, lsn)
    copied_lsn = fed.position().breaks[0].to.commit_lsn + 1
    assert "lost" in notes(replayed(tmp_path, copied_lsn, tmp_path / "to"))


def test_a_lost_or_replaced_log_and_a_lost_file_are_named(tmp_path: Path) -> None:
    for number, (change, reason) in enumerate(
        [(remove_table, "is missing"), (recreate, "is another table than"), (remove_files, "cannot be read")]
    ):
        fed = ScriptedLake(tmp_path / str(number))
        change(fed, "log")
        with pytest.raises(LakeUnreadable, match=reason) as found:
            replayed(fed.root, 1101, tmp_path / "to")
        assert f"{FOLDER}/log" in str(found.value)
    assert not list(tmp_path.glob(".to*"))


def remove_files(fed: ScriptedLake, name: str) -> None:
    for path in Path(fed.path(name)).glob("*.parquet"):
        path.unlink()


def test_versions_whose_columns_the_log_left_out_are_refused_also_after_the_policy_was_changed(tmp_path: Path) -> None:
    """A renamed column keeps its name in the log, so a new one with that name has no values there."""
    table = ScriptedTable()
    table.copy(1, [{1: 1, 2: "copied", 3: None}])
    fed = PinnedLake(tmp_path, table)
    fed.land()
    table.commit()
    table.update((1,), {2: "before"})
    table.commit()
    table.rename_column(2, "remark")
    table.add_column("note")
    table.commit()
    table.update((1,), {4: "left out"})
    fed.land()
    table.commit()
    table.drop_column(2)
    fed.land()
    table.commit()
    table.update((1,), {4: "written"})
    table.commit()
    table.update((1,), {4: "later"})
    fed.land(EVOLVE)
    assert notes(replayed(tmp_path, 1200, tmp_path / "to")) == ["before"]
    for lsn in (1300, 1400, 1500, 1600):
        assert "its log lacks columns that the table had from 1:0/4B0:1 on" in refused_at(tmp_path, lsn)
    table.commit()
    table.copy(2, list(table.rows.values()))
    table.commit()
    table.update((1,), {4: "after the copy"})
    table.commit()
    table.delete((1,))
    fed.land()
    assert notes(replayed(tmp_path, table.lsn, tmp_path / "copied")) == ["after the copy"]


def test_a_time_after_which_ddl_without_a_time_may_have_followed_is_refused_and_its_lsn_is_not(tmp_path: Path) -> None:
    table = ScriptedTable(is_dated=True)
    table.copy(1, [{1: 1, 2: "copied", 3: None}])
    table.commit()
    table.update((1,), {2: "before"})
    table.commit()
    table.truncate()
    truncation = table.items[-1]
    assert isinstance(truncation, Truncation)
    table.items[-1] = replace(truncation, commit_time_us=0)
    table.commit()
    table.insert({1: 2, 2: "after", 3: None})
    table.commit()
    table.insert({1: 3, 2: "last", 3: None})
    new_lake(tmp_path).apply(batch(table.delivered()))
    with pytest.raises(ReplayRefused, match=r"delivered the TRUNCATE at 1:0/4B0:1 without its commit time"):
        replayed(tmp_path, time(1150), tmp_path / "refused")
    assert notes(replayed(tmp_path, 1200, tmp_path / "by lsn")) == ["before"]
    assert notes(replayed(tmp_path, time(1300), tmp_path / "later")) == ["after"]


def test_moments_on_a_timeline_that_the_node_left_are_refused_from_the_copy_on(tmp_path: Path) -> None:
    table = copied_table()
    table.commit()
    table.update((1,), {2: "lost at the promotion"})
    table.commit(5000)
    table.update((1,), {2: "lost as well"})
    table.cut()
    table.timeline = TimelineId(2)
    table.commit(2000)
    table.copy(2, [{1: 1, 2: "last", 3: None}])
    table.commit()
    table.delete((1,))
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert notes(replayed(tmp_path, 1300, tmp_path / "before")) == ["changed"]
    assert "is on timeline 1, which the node left for timeline 2 at 0/7D0" in refused_at(tmp_path, 1500)
    assert notes(replayed(tmp_path, 2050, tmp_path / "after")) == ["last"]


def test_a_moment_before_the_creation_or_first_truncate_of_a_table_names_it(tmp_path: Path) -> None:
    for name in ("creation", "TRUNCATE"):
        table = ScriptedTable(is_dated=True)
        if name == "creation":
            table.schema_event(SchemaChange.CREATE, SchemaEffect.METADATA, None, table.relation)
        else:
            table.truncate()
        table.commit()
        table.insert({1: 1, 2: "inserted", 3: None})
        table.commit()
        table.insert({1: 2, 2: "last", 3: None})
        new_lake(tmp_path / name).apply(batch(table.delivered()))
        reason = refused_at(tmp_path / name, 999)
        assert f"is before the first event that shows its contents, {'its' if name == 'creation' else 'a'} " in reason
        assert f"{name} at 1:0/3E8:1" in reason
        assert notes(replayed(tmp_path / name, table.lsn, tmp_path / name / "to")) == ["inserted"]


def test_a_table_that_was_unlogged_for_a_while_is_known_again_after_it(tmp_path: Path) -> None:
    table = copied_table()
    table.commit()
    table.schema_event(SchemaChange.DROP, SchemaEffect.METADATA, table.relation, None)
    table.commit()
    table.schema_event(SchemaChange.CREATE, SchemaEffect.REWRITE, None, table.relation)
    table.repeat(list(table.rows.values()))
    table.commit()
    table.update((1,), {2: "logged"})
    table.commit()
    table.delete((1,))
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert "it was dropped at 1:0/578:1" in refused_at(tmp_path, 1450)
    assert notes(replayed(tmp_path, 1600, tmp_path / "rewritten")) == ["last"]
    assert notes(replayed(tmp_path, table.lsn, tmp_path / "to")) == ["logged"]


def test_a_lake_of_iceberg_tables_is_refused_by_its_name(tmp_path: Path) -> None:
    iceberg_lake(tmp_path).apply(batch(copied_table().delivered()))
    with pytest.raises(NoLake, match="is a lake of Iceberg tables, which this command does not support"):
        OpenedLake(str(tmp_path))


def test_a_table_without_a_log_in_the_lake_is_refused(tmp_path: Path) -> None:
    Lake(str(tmp_path), IDENTITY, shape_of, constants_of, config=LOG_EXCLUDED).apply(batch(copied_table().delivered()))
    assert OpenedLake(str(tmp_path)).positions.tables[DATABASE, RELATION].log_version < 0
    assert "public.Orders has no log in the lake" in refused_at(tmp_path, 1300)
