"""An unreadable table of the lake diverges alone; a fault of the whole lake stops no single table."""

import os
import shutil
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.lake.test_lake_changes import FOLDER, OTHER, ScriptedLake, id_of, new_lake
from tests.support.lakes.lakes import batch, log_rows, replica_rows
from tests.support.lakes.maintained import maintain
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable
from tidemark.io.host.failpoints import arm
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.tables.table_errors import LakeFailed

Damage = Callable[[Path], None]


def lose(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 20)


def garble(file: Path) -> None:
    """Damage the pages, but not the size and the footer."""
    column = pq.read_metadata(file).row_group(0).column(0)
    content = bytearray(file.read_bytes())
    first = column.dictionary_page_offset or column.data_page_offset
    for at in range(first, first + column.total_compressed_size):
        content[at] ^= 0x5A
    file.write_bytes(content)


def data_files(fed: ScriptedLake, name: str) -> list[Path]:
    return [Path(uri) for uri in fed.delta(name).file_uris()]


@pytest.mark.feature("L01")
@pytest.mark.parametrize("damage", [lose, cut, garble], ids=id_of)
def test_only_a_replica_with_a_damaged_file_diverges_and_a_new_copy_repairs_it(tmp_path: Path, damage: Damage) -> None:
    fed, other = ScriptedLake(tmp_path), ScriptedTable(oid=OTHER, name="other")
    other.insert({1: 1, 2: "a", 3: None})
    (file,) = data_files(fed, "replica")
    damage(file)
    fed.table.commit()
    fed.table.update((5,), {2: "after"})
    new_lake(tmp_path).apply(batch([*fed.pending(), *other.delivered(start=50)]))
    fed.applied()
    assert fed.state() is TableState.DIVERGED
    fault = fed.position().replica.fault
    assert fault is not None
    assert str(file) in fault.reason
    assert fed.notes[-1] == "after"
    assert new_lake(tmp_path).positions.tables[DATABASE, OTHER].state is TableState.LIVE
    fed.recopy()
    fed.update(7, "live again")
    assert fed.state() is TableState.LIVE
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()
    assert len(log_rows(tmp_path, FOLDER)) == fed.table.changes


@pytest.mark.feature("L01")
def test_a_log_whose_missing_file_is_found_by_maintenance_restarts_with_a_break(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path)
    data_files(fed, "log")[0].unlink()
    lake = new_lake(tmp_path)
    fed.update(5, "in another file", lake)
    maintain(lake)
    assert fed.state() is TableState.DIVERGED
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()
    fed.accept_break()
    fed.recopy()
    fed.update(7, "live again")
    assert fed.state() is TableState.LIVE
    assert len(fed.position().breaks) == 1
    assert fed.notes == ["live again"]
    assert Path(fed.path("log.diverged-1")).exists()


def put_file_for_log(fed: ScriptedLake, name: str) -> None:
    log = Path(fed.path(name)) / "_delta_log"
    shutil.rmtree(log)
    log.touch()


def lose_unkeyed(fed: ScriptedLake, name: str) -> None:
    """Create an unreadable object beside the table."""
    folder = Path(fed.path(f"{name}-unkeyed"))
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / f"{0:020d}.json").write_bytes(b"\xff")
    shutil.rmtree(fed.path(name))


@pytest.mark.feature("L01")
@pytest.mark.parametrize("damage", [put_file_for_log, lose_unkeyed], ids=id_of)
def test_only_a_table_with_an_unreadable_commit_log_diverges(
    tmp_path: Path, damage: Callable[[ScriptedLake, str], None]
) -> None:
    fed = ScriptedLake(tmp_path)
    damage(fed, "replica")
    fed.update(5, "after")
    assert fed.state() is TableState.DIVERGED
    assert fed.notes[-1] == "after"
    fed.recopy()
    fed.update(7, "live again")
    assert fed.state() is TableState.LIVE
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()


@pytest.mark.feature("L01")
def test_a_file_that_the_disk_cannot_read_does_not_make_its_table_diverge(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path)
    (file,) = data_files(fed, "replica")
    kept = file.rename(file.with_suffix(".kept"))
    file.symlink_to(file.name)  # every access is an error other than a missing file
    fed.update(5, "again")
    assert fed.state() is TableState.PAUSED
    file.unlink()
    kept.rename(file)
    lake, (item,) = new_lake(tmp_path), fed.table.delivered()[-1:]
    lake.catch_up((DATABASE, RELATION), [(item.sequence, item.item)], item.sequence)
    assert fed.state() is TableState.LIVE
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()


@pytest.mark.feature("L01")
def test_a_lake_that_disappears_during_a_batch_makes_no_table_diverge(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path / "lake")

    def go_away(point: Enum) -> None:
        if point is Failpoint.LOG_APPENDED:
            fed.root.rename(tmp_path / "unmounted")

    arm(go_away)
    try:
        with pytest.raises(LakeFailed):  # of the lake, or of the table's first missing file, in any order
            fed.update(5, "again")
    finally:
        arm(None)
    shutil.rmtree(fed.root, ignore_errors=True)
    (tmp_path / "unmounted").rename(fed.root)
    fed.apply_pending()
    assert fed.state() is TableState.LIVE
    assert replica_rows(fed.root, FOLDER) == fed.table.expected()
