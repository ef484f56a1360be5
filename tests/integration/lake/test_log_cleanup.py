"""Commit logs stay short, and cleanup removes nothing that is still needed."""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.lakes.aged_logs import age, checkpoint_path, commit_path, lengthen, versions
from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tidemark.io.host.log_output import get_log
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.delta_log.commit_files import LOG_FOLDER
from tidemark.pipeline.delta_log.log_cleanup import (
    CHECKPOINT_BEHIND_MAX,
    EVERY_COMMITS,
    LAST_CHECKPOINT,
    LISTED_MAX,
    REMOVED_MAX,
    LogCleanup,
    keep_hours,
)
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.positions import FOLDER as POSITIONS
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_upkeep import compact
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.log.event_record import FOLDER as EVENTS

NAME = "table"
ROWS = pa.table({"id": pa.array([1, 2, 3])})
KEEP_S = 600.0
CHECKPOINT_EVERY = 20  # delta.checkpointInterval of the lake's tables
LISTED_FILES_MAX = CHECKPOINT_BEHIND_MAX + 10  # of a log whose commits are all old


def make_table(root: Path) -> Path:
    table = LakeTable(str(root / NAME), "app")
    table.create(ROWS.schema, NOTHING)
    table.append(ROWS, NOTHING)
    return root / NAME


def cleanup(root: Path, keep_s: float = 0.0) -> LogCleanup:
    return LogCleanup(str(root), keep_s, get_log("test"))


def opens(table: Path, version: int | None = None) -> bool:
    """Return whether the table opens with its rows."""
    rows = DeltaTable(str(table), version=version).to_pyarrow_table()
    return sorted(rows.column("id").to_pylist()) == [1, 2, 3]


@pytest.mark.feature("L10")
def test_the_files_of_a_log_do_not_grow_with_its_commits_if_all_are_old(tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path / NAME), "app")
    table.create(ROWS.schema, NOTHING)
    cleaning = cleanup(tmp_path)
    listed = []
    for _ in range(5 * EVERY_COMMITS // 2):
        listed.append(len(list((tmp_path / NAME / LOG_FOLDER).iterdir())))
        table.append(ROWS.schema.empty_table(), NOTHING)
        cleaning.run([(NAME, table.version)])
    assert max(listed) <= LISTED_FILES_MAX
    assert DeltaTable(str(tmp_path / NAME)).version() == len(listed)


@pytest.mark.feature("L10")
def test_the_files_of_a_log_are_those_of_ten_minutes_however_many_commits_it_had(tmp_path: Path) -> None:
    """One commit a second: the files are made older in place of a wait."""
    table = make_table(tmp_path)
    cleaning = cleanup(tmp_path, KEEP_S)
    files = []
    for _ in range(30):
        version = lengthen(table, EVERY_COMMITS, checkpoint_every=CHECKPOINT_EVERY)
        age(table, EVERY_COMMITS)
        cleaning.run([(NAME, version)])
        files.append(len(list((table / LOG_FOLDER).iterdir())))
        assert opens(table)
    assert len(versions(table)) >= KEEP_S - EVERY_COMMITS  # the newest have the age of a step
    assert max(files) <= (KEEP_S + CHECKPOINT_BEHIND_MAX) * (1 + 1 / CHECKPOINT_EVERY)


@pytest.mark.feature("L10")
def test_a_log_of_many_old_commits_is_cleaned_a_bounded_number_at_a_time(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 3 * REMOVED_MAX, after_checkpoint=30)
    cleaning = cleanup(tmp_path)
    removed: list[int] = []
    while not removed or removed[-1]:
        removed.append(cleaning.run([(NAME, version)]))
        assert opens(table)
    assert max(removed) <= REMOVED_MAX
    assert len(removed) == 4
    assert versions(table) == list(range(version - 30, version + 1))


@pytest.mark.feature("L10")
def test_the_logs_of_a_batch_of_many_tables_do_not_grow(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    tables = [table, *(tmp_path / f"table-{number}" for number in range(LISTED_MAX + 1))]
    for copy in tables[1:]:
        shutil.copytree(table, copy)
    cleaning = cleanup(tmp_path)
    for _ in range(3):
        written = [(each.name, lengthen(each, EVERY_COMMITS)) for each in tables]
        cleaning.run(written, removed_max=EVERY_COMMITS)
    assert max(len(versions(each)) for each in tables) <= EVERY_COMMITS


def test_a_commit_after_the_recorded_version_is_never_removed(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 400, checkpoint_every=100)
    cleanup(tmp_path).run([(NAME, 250)])
    base = versions(table)[0]
    assert 0 < base <= 250
    assert versions(table) == list(range(base, version + 1))
    assert opens(table, 250)


def test_no_file_younger_than_the_kept_time_is_removed(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 400, checkpoint_every=100)
    cleanup(tmp_path, KEEP_S).run([(NAME, version)])
    assert versions(table) == list(range(version + 1))
    age(table, KEEP_S + 60, up_to=250)
    cleanup(tmp_path, KEEP_S).run([(NAME, version)])
    base = versions(table)[0]
    assert 100 < base <= 250
    assert all(opens(table, kept) for kept in (base, 250, 251, version))


def test_an_old_commit_after_a_young_one_is_kept_so_that_the_log_has_no_gap(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 200, checkpoint_every=100)
    age(table, KEEP_S + 60)
    os.utime(commit_path(table, 40))
    cleanup(tmp_path, KEEP_S).run([(NAME, version)])
    assert versions(table) == list(range(40, version + 1))


def test_a_table_opens_after_a_crash_between_any_two_removals(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 120, checkpoint_every=40, after_checkpoint=10)
    removals = 0
    while cleanup(tmp_path).run([(NAME, version)], removed_max=1):  # each a new process
        assert opens(table)
        assert opens(table, version - 1)
        removals += 1
    assert removals > 100


def test_the_base_is_on_disk_before_anything_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 120, checkpoint_every=60)
    done: list[str] = []
    unlink = Path.unlink

    def record_sync(descriptor: int) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    def record_unlink(path: Path, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as pathlib has it
        done.append("removal")
        unlink(path, missing_ok)

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, record_sync)
    monkeypatch.setattr(Path, "unlink", record_unlink)
    assert cleanup(tmp_path).run([(NAME, version)])
    before = done[: done.index("removal")]
    assert {checkpoint_path(table, versions(table)[0]).name, LAST_CHECKPOINT, LOG_FOLDER} <= set(before)


@pytest.mark.parametrize("bytes_left", [0, 5])
def test_without_a_valid_hint_no_file_is_removed_and_a_checkpoint_is_written(tmp_path: Path, bytes_left: int) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 150, after_checkpoint=10)
    hint = table / LOG_FOLDER / LAST_CHECKPOINT
    hint.write_bytes(hint.read_bytes()[:bytes_left])
    before = versions(table)
    assert not cleanup(tmp_path).run([(NAME, version)])
    assert versions(table) == before
    assert json.loads(hint.read_text())["version"] == version
    assert opens(table)


def test_a_checkpoint_above_the_hint_is_not_a_base(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 60, after_checkpoint=20)
    hint = table / LOG_FOLDER / LAST_CHECKPOINT
    before = hint.read_bytes()
    lengthen(table, 60, after_checkpoint=20)
    hint.write_bytes(before)
    assert cleanup(tmp_path).run([(NAME, version + 60)])
    assert versions(table)[0] == version - 20
    assert opens(table)


def test_no_file_is_removed_beside_a_torn_checkpoint(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 150, checkpoint_every=50)
    (newest,) = (path for path in (table / LOG_FOLDER).glob("*.parquet") if "151" in path.name)
    newest.write_bytes(newest.read_bytes()[:100])
    before = versions(table)
    assert not cleanup(tmp_path).run([(NAME, version)])
    assert versions(table) == before


def test_planned_removals_of_a_table_are_not_applied_to_a_table_that_replaced_it(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    cleaning = cleanup(tmp_path)
    cleaning.run([(NAME, lengthen(table, 200, checkpoint_every=100))], removed_max=1)
    table.rename(tmp_path / "moved away")
    make_table(tmp_path)
    version = lengthen(table, 250, after_checkpoint=200)
    before = versions(table)
    assert cleaning.run([(NAME, 20)]) == 0  # recorded before any checkpoint
    assert versions(table) == before
    assert opens(table, version)


def test_a_missing_table_does_not_block_the_cleanup_of_others(tmp_path: Path) -> None:
    version = lengthen(make_table(tmp_path), 200, checkpoint_every=100)
    assert cleanup(tmp_path).run([("gone", 300), (NAME, version)])


def test_a_table_that_disappears_during_its_cleanup_does_not_block_others(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    others = [f"table-{number}" for number in range(LISTED_MAX + 1)]
    for other in others:
        shutil.copytree(table, tmp_path / other)
    version = lengthen(table, 4 * EVERY_COMMITS)
    cleaning = cleanup(tmp_path)
    assert cleaning.run([(NAME, version)], removed_max=1)
    cleaning.run([*((other, 1) for other in others), (NAME, version + EVERY_COMMITS)], removed_max=1)
    shutil.rmtree(table)
    assert cleaning.run([]) == 0


def test_a_batch_lists_every_delta_table_that_it_wrote_with_its_recorded_version(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "new", 3: None})
    lake = Lake(str(tmp_path), IDENTITY, shape_of, constants_of)
    lake.apply(batch(table.delivered()))
    folder = f"{DATABASE}/public/Orders"
    assert [name for name, _ in lake.written] == [POSITIONS, f"{folder}/log", f"{folder}/replica", EVENTS]
    assert all(DeltaTable(str(tmp_path / name)).version() == version for name, version in lake.written)


def test_a_table_of_an_earlier_version_gets_the_properties_that_keep_its_checkpoints_small(
    tmp_path: Path,
) -> None:
    uri = str(tmp_path / NAME)
    DeltaTable.create(uri, ROWS.schema, configuration={"delta.logRetentionDuration": "interval 1 days"})
    table = LakeTable(uri, "app")
    for _ in range(3):
        table.overwrite(ROWS, NOTHING)
    compact(table, keep_hours(KEEP_S))
    configuration = DeltaTable(uri).metadata().configuration
    assert configuration["delta.deletedFileRetentionDuration"] == "interval 1 hours"
    assert configuration["delta.enableExpiredLogCleanup"] == "false"
    version = DeltaTable(uri).version()
    compact(table, keep_hours(KEEP_S))
    assert LakeTable(uri, "app").version == version  # nothing to do: no commit


def test_replaced_files_are_kept_as_long_as_commits_and_at_least_an_hour() -> None:
    assert [keep_hours(keep_s) for keep_s in (60, 3600, 3601, 86_400)] == [1, 1, 2, 24]
