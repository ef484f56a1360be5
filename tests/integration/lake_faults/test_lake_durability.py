"""A loss of power takes nothing back that was confirmed, and leaves no incomplete commit, wherever it happens."""

from enum import Enum
from pathlib import Path

import pytest

from tests.support.faults.power_loss import SyncedDisk, Unsynced
from tests.support.lakes.lakes import IDENTITY, batch, log_rows, replica_rows, story
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tidemark.io.host.failpoints import arm
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.model.position import NO_SEQUENCE
from tidemark.pipeline.delta_log.commit_files import LOG_FOLDER
from tidemark.pipeline.delta_log.log_cleanup import LAST_CHECKPOINT
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions import positions
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.tables import kept_tables
from tidemark.pipeline.sinks import batch_writes
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import Delivered

FOLDER = f"{DATABASE}/public/Orders"


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TARGETS_AT_ONCE", "SMALL_TARGETS_AT_ONCE"):
        monkeypatch.setattr(batch_writes, name, 1)  # nothing changes while the rest of a disk is copied


def opened(root: Path) -> Lake:
    return Lake(str(root), IDENTITY, shape_of, constants_of)


def complete(root: Path, items: list[Delivered], table: ScriptedTable) -> None:
    """Continue a lake after a loss of power with the values that were not confirmed; compare it with the source."""
    lake = opened(root)
    later = [item for item in items if item.sequence > lake.positions.applied.sequence]
    if later:
        lake.apply(batch(later))
    assert opened(root).positions.tables[DATABASE, table.oid].state is TableState.LIVE
    assert replica_rows(root, FOLDER) == table.expected()
    assert len(log_rows(root, FOLDER)) == table.changes


@pytest.mark.parametrize("unsynced", [Unsynced.EMPTY, Unsynced.ONLY_LOGS_WRITTEN])
def test_a_loss_of_power_before_any_sync_leaves_no_incomplete_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsynced: Unsynced
) -> None:
    """delta-rs syncs nothing: what it wrote may be empty files until the pipeline has synced them."""
    root, (table, batches) = tmp_path / "lake", story()
    disk = SyncedDisk(root, monkeypatch)
    for module in (kept_tables, positions):
        monkeypatch.setattr(module, "CHECKPOINT_BEHIND", 2)
    left: list[Path] = []

    def lose_power(path: Path) -> None:
        # A commit under its first name (`#`) is not visible yet: nothing depends on it.
        is_of_log = path.parent.name == LOG_FOLDER and "#" not in path.name
        if is_of_log if unsynced is Unsynced.EMPTY else path.suffix == ".parquet":
            left.append(disk.after_power_loss(tmp_path / f"{len(left)}-{path.name}", unsynced))

    disk.before_sync = lose_power
    for some in batches:
        opened(root).apply(batch(some))
    disk.before_sync = lambda _path: None
    items = [item for one in batches for item in one]
    names = {path.name.partition("-")[2] for path in left}
    if unsynced is Unsynced.EMPTY:
        assert names >= {*(f"{version:020}.json" for version in (0, 2)), f"{2:020}.checkpoint.parquet", LAST_CHECKPOINT}
    for one in left:
        complete(one, items, table)


@pytest.mark.parametrize("unsynced", [Unsynced.MISSING, Unsynced.EMPTY])
def test_a_loss_of_power_at_any_failpoint_loses_no_confirmed_value_and_leaves_no_incomplete_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsynced: Unsynced
) -> None:
    root, (table, batches) = tmp_path / "lake", story()
    disk = SyncedDisk(root, monkeypatch)
    losses: list[tuple[Path, int]] = []
    confirmed = NO_SEQUENCE

    def lose_power(point: Enum) -> None:
        left = disk.after_power_loss(tmp_path / f"{len(losses)}-{point.value}", unsynced)
        losses.append((left, end if point is Failpoint.POSITIONS_WRITTEN else confirmed))

    for some in batches:
        lake, end = opened(root), some[-1].sequence
        arm(lose_power)
        try:
            lake.apply(batch(some))
        finally:
            arm(None)
        confirmed = end
    items = [item for one in batches for item in one]
    assert len(losses) > 4 * len(batches)
    for left, known in losses:
        assert opened(left).positions.applied.sequence >= known, left
        complete(left, items, table)


def test_a_table_whose_newest_checkpoint_is_incomplete_is_read_from_its_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the checkpoint was written to disk before its content."""
    root, (table, batches) = tmp_path / "lake", story()
    for module in (kept_tables, positions):
        monkeypatch.setattr(module, "CHECKPOINT_BEHIND", 2)
    opened(root).apply(batch(batches[0]))
    for some in batches[1:]:
        empty = [path for path in root.rglob("*.checkpoint.parquet") if path.stat().st_size]
        for path in empty:
            path.write_bytes(b"")
        opened(root).apply(batch(some))
        assert empty
    complete(root, [], table)


def test_the_folder_of_a_new_partition_is_durable_with_its_first_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, table = tmp_path / "lake", ScriptedTable()
    config = LakeConfig((LakeTableConfig("Order*", partition=("note", "big")),))
    disk = SyncedDisk(root, monkeypatch)
    for key in range(2):
        table.insert({1: key, 2: f"new {key}", 3: None})
        table.commit()
        lake = Lake(str(root), IDENTITY, shape_of, constants_of, config=config)
        lake.apply(batch(table.delivered()))
    left = disk.after_power_loss(tmp_path / "left", Unsynced.MISSING)
    assert replica_rows(left, FOLDER) == table.expected()
    assert len(log_rows(left, FOLDER)) == table.changes
