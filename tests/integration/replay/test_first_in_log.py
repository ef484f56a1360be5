"""The place in a log before which `cdcctl table add` adds changes."""

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.support.lakes.lakes import CAPTURE, IDENTITY, batch
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable, Value
from tests.support.processes.watched_folders import WatchedFolders
from tidemark.model.change import ChangeBatch, CopyBoundary
from tidemark.model.position import Position
from tidemark.pipeline.earlier.earlier_changes import EarlierChanges
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.log_order import PLACE, ranges_of
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.replay.log_rows import LogRows
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import Delivered, bounds_of, last_position

FILES = 20


def end_of_earlier(root: Path, items: list[Delivered]) -> Position:
    Lake(str(root), IDENTITY, shape_of, constants_of).apply(batch(items))
    return found_end(root)


def found_end(root: Path) -> Position:
    positions = Positions(str(root), IDENTITY)
    table = positions.tables[DATABASE, RELATION]
    return EarlierChanges(
        str(root), CAPTURE, positions, table, shapes=shape_of, constants=constants_of, dialects={}
    ).end


@pytest.mark.feature("N05")
@pytest.mark.parametrize("rows", [[], [{1: 1, 2: "copied", 3: "B"}, {1: 2, 2: "copied", 3: "B"}]])
def test_a_commit_that_begins_at_the_lsn_of_a_copy_is_not_added(rows: list[dict[int, Value]], tmp_path: Path) -> None:
    """The copied rows may show it, and follow it in the order of positions."""
    table = ScriptedTable()
    table.copy(1, rows)
    items = list(table.delivered())
    copied = next(one.item.position for one in items if isinstance(one.item, CopyBoundary))
    assert end_of_earlier(tmp_path, items) == Position(copied.timeline, copied.commit_lsn, 0)


@pytest.mark.feature("N05")
def test_changes_are_added_up_to_the_first_one_of_the_log_in_its_transaction(tmp_path: Path) -> None:
    table = ScriptedTable()
    for key in range(3):
        table.insert({1: key, 2: "new", 3: None})
    items = list(table.delivered())
    assert isinstance(items[0].item, ChangeBatch)
    assert end_of_earlier(tmp_path, items) == bounds_of(items[0].item)[0]


@dataclass(frozen=True)
class LogOfManyFiles:
    """A log of files with one change each, and the positions of the changes."""

    root: Path
    folder: Path
    places: list[Position]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> LogOfManyFiles:
    root = tmp_path_factory.mktemp("lake")
    table, lake = ScriptedTable(), Lake(str(root), IDENTITY, shape_of, constants_of)
    for key in range(FILES):
        table.commit()
        table.insert({1: key, 2: "new", 3: None})
        table.cut()
        lake.apply(batch(table.delivered()[-1:]))
    folder = root / lake.positions.tables[DATABASE, RELATION].folder / "log"
    assert len(list(folder.glob("*.parquet"))) == FILES
    return LogOfManyFiles(root, folder, [last_position(item) for item in table.items])


@pytest.mark.feature("N05")
def test_the_first_change_of_a_log_is_found_without_opening_its_other_files(log: LogOfManyFiles) -> None:
    with WatchedFolders([log.folder]) as watched:
        assert found_end(log.root) == log.places[0]
        assert len(watched.opened(".parquet")) == 1


@pytest.mark.parametrize("at", [0, 1, 7, 9, FILES - 1])
def test_the_first_change_after_a_moment_is_found_without_opening_other_files(log: LogOfManyFiles, at: int) -> None:
    rows = LogRows(LakeTable(str(log.folder), ""), rows_max=1000)
    sought = pc.field("_xid") > 0  # every file can have such rows
    with WatchedFolders([log.folder]) as watched:
        assert rows.first(replace(log.places[at], ordinal=0), sought) == log.places[at]
        assert len(watched.opened(".parquet")) == 1
        later = pc.field("_commit_lsn") >= log.places[at].commit_lsn
        assert rows.first(replace(log.places[0], ordinal=0), later) == log.places[at]
        assert len(watched.opened(".parquet")) == 1
        assert rows.first(log.places[-1], sought) is None
        assert not watched.opened(".parquet")


def test_the_first_change_is_the_least_of_many_batches_whatever_their_order(tmp_path: Path) -> None:
    table, lake = ScriptedTable(), Lake(str(tmp_path), IDENTITY, shape_of, constants_of)
    for key in range(FILES):
        table.commit()
        table.insert({1: key, 2: "new", 3: None})
        table.cut()
    lake.apply(batch(table.delivered()))
    places = [last_position(item) for item in table.items]
    log = LakeTable(str(tmp_path / lake.positions.tables[DATABASE, RELATION].folder / "log"), "")
    rows, applied = log.scan().read_all(), log.applied
    log.overwrite(rows.slice(0, 0), applied)
    for residue in (1, 0, 2):  # the files overlap, and each has its rows in the reverse order
        log.append(rows.take(list(range(FILES - 1 - residue, -1, -3))), applied)
    found = LogRows(log, rows_max=1000)
    assert found.first(places[-1], pc.field("_xid") > 0) is None
    for at in range(FILES - 1):
        assert found.first(places[at], pc.field("_xid") > 0) == places[at + 1]


def test_ranges_of_a_log_contain_each_row_once_and_in_order_whatever_its_files_overlap(tmp_path: Path) -> None:
    table, lake = ScriptedTable(), Lake(str(tmp_path), IDENTITY, shape_of, constants_of)
    for key in range(FILES):
        table.commit()
        for row in range(1 + key % 3):
            table.insert({1: 10 * key + row, 2: "new", 3: None})
        table.cut()
    items = table.delivered()
    lake.apply(batch(items))
    log = LakeTable(str(tmp_path / lake.positions.tables[DATABASE, RELATION].folder / "log"), "")
    rows, applied = log.scan().read_all(), log.applied
    parts = [rows.filter(pc.field("_ordinal") == ordinal) for ordinal in (3, 1, 2)]  # all of them overlap
    log.overwrite(rows.slice(0, 0), applied)
    for part in (*parts, parts[0].slice(0, 0)):
        log.append(part, applied)
    found = [log.scan(PLACE, part).read_all().to_pylist() for part in ranges_of(log)]
    assert len(found) > 1
    order = [sorted(tuple(row.values()) for row in part) for part in found]
    assert [place for part in order for place in part] == sorted(
        tuple(row.values()) for row in rows.select(PLACE).to_pylist()
    )
