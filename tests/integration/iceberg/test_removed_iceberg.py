"""Dropped tables are removed from a lake of Iceberg tables: from the catalog and from disk, also after a kill."""

import shutil
from enum import Enum
from pathlib import Path

import pytest

from tests.support.lakes.iceberg import iceberg_lake, iceberg_rows, iceberg_table
from tests.support.lakes.lakes import Crash, batch
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tidemark.io.host.failpoints import arm
from tidemark.model.change import SchemaChange, SchemaEffect
from tidemark.model.lsn import Oid
from tidemark.model.position import Sequence
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.iceberg.catalog import open_catalog, table_name
from tidemark.pipeline.iceberg.iceberg_lake import IcebergLake
from tidemark.pipeline.iceberg.snapshot_summary import IcebergTableChanged
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.sinks.steps import Delivered

pytestmark = [pytest.mark.feature("L14"), pytest.mark.feature("L15")]
FOLDER = f"{DATABASE}/public/stage"
POINTS = (
    MaintenanceFailpoint.DROPPED_CHECKED,
    MaintenanceFailpoint.DROPPED_FILES_DELETED,
    MaintenanceFailpoint.DROPPED_DELETED,
)


def dropped_table(oid: int, lsn: int = 1000) -> ScriptedTable:
    table = ScriptedTable(oid=Oid(oid), name="stage", lsn=lsn, is_dated=True)
    table.insert({1: 1, 2: "a", 3: None})
    table.cut()
    table.schema_event(SchemaChange.DROP, SchemaEffect.METADATA, table.relation, None)
    return table


def apply(lake: IcebergLake, table: ScriptedTable, first: int, outbox: str = "outbox-1") -> None:
    items = [Delivered(Sequence(first + at), item) for at, item in enumerate(table.items)]
    lake.apply(batch(items, outbox))


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    made = iceberg_lake(tmp_path)
    apply(made, dropped_table(20_001), 1)
    return made


def names(root: Path) -> list[str]:
    catalog = open_catalog(str(root))
    return [".".join(name) for name in catalog.list_tables((str(DATABASE), "public"))]


def test_a_dropped_table_has_the_time_of_its_drop_and_is_removed(tmp_path: Path, lake: IcebergLake) -> None:
    (known,) = iceberg_lake(tmp_path).positions.tables.values()
    assert (known.state, known.dropped_us) == (TableState.DROPPED, 1000)
    (known,) = lake.positions.tables.values()
    lake.remove(known)
    assert (names(tmp_path), (tmp_path / FOLDER).exists()) == ([], False)
    again = iceberg_lake(tmp_path)
    assert (again.positions.tables, again.positions.leaving) == ({}, {})
    apply(again, dropped_table(20_001), 3, "outbox-2")
    assert not again.positions.tables, "an outbox that delivers its changes again does not create it again"
    apply(again, dropped_table(20_002, 5000), 5, "outbox-2")
    assert len(iceberg_rows(tmp_path, FOLDER)) == 1, "another table has its folder"


@pytest.mark.parametrize("point", POINTS, ids=lambda point: str(point.value))
def test_a_removal_that_was_killed_is_completed(tmp_path: Path, lake: IcebergLake, point: Enum) -> None:
    def kill(passed: Enum) -> None:
        if passed is point:
            raise Crash(passed)

    (known,) = lake.positions.tables.values()
    arm(kill)
    try:
        with pytest.raises(Crash):
            lake.remove(known)
    finally:
        arm(None)
    again = iceberg_lake(tmp_path)
    assert list(again.positions.leaving) == [FOLDER]
    apply(again, dropped_table(20_002, 5000), 5)
    (other,) = again.positions.tables.values()
    assert other.folder != FOLDER, "that is being deleted"
    again.complete_removals()
    assert not iceberg_lake(tmp_path).positions.leaving
    assert ([".".join(table_name(other.folder))], (tmp_path / FOLDER).exists()) == (names(tmp_path), False)


@pytest.mark.parametrize("is_row", [True, False])
def test_what_another_program_changed_is_kept(tmp_path: Path, lake: IcebergLake, *, is_row: bool) -> None:
    if is_row:
        table = iceberg_table(tmp_path, FOLDER)
        table.append(table.scan().to_arrow().slice(0, 1))
    else:
        (tmp_path / FOLDER / "notes.txt").write_text("ours")
    (known,) = lake.positions.tables.values()
    with pytest.raises(IcebergTableChanged, match=r"changed by another writer|contains notes\.txt"):
        lake.remove(known)
    assert iceberg_table(tmp_path, FOLDER).scan().to_arrow().num_rows == 1 + is_row
    assert len(iceberg_lake(tmp_path).positions.tables) == 1


def test_a_table_that_another_program_renamed_keeps_its_files(tmp_path: Path, lake: IcebergLake) -> None:
    catalog = open_catalog(str(tmp_path))
    catalog.rename_table(table_name(FOLDER), (str(DATABASE), "public", "kept"))
    catalog.close()
    (known,) = lake.positions.tables.values()
    with pytest.raises(IcebergTableChanged, match="renamed"):
        lake.remove(known)
    kept = open_catalog(str(tmp_path)).load_table((str(DATABASE), "public", "kept"))
    assert kept.scan().to_arrow().num_rows == 1
    assert not lake.positions.leaving


def test_a_table_without_catalog_entry_and_files_is_removed(tmp_path: Path, lake: IcebergLake) -> None:
    catalog = open_catalog(str(tmp_path))
    catalog.drop_table(table_name(FOLDER))
    catalog.close()
    shutil.rmtree(tmp_path / FOLDER)
    (known,) = lake.positions.tables.values()
    lake.remove(known)
    assert not iceberg_lake(tmp_path).positions.tables
