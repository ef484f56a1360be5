"""A table that stays open is used again only if its commit log is as its last write left it."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.processes.waiting import let_pass
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.delta_log.lineage import TableDiverged
from tidemark.pipeline.lake.tables import kept_tables, lake_table
from tidemark.pipeline.lake.tables.kept_tables import KeptTables
from tidemark.pipeline.lake.tables.lake_table import LakeTable

SCHEMA = pa.schema([("id", pa.int64())])
APP = "tidemark:test:table"


def made(folder: Path) -> LakeTable:
    table = LakeTable(str(folder), APP)
    table.create(SCHEMA, NOTHING)
    return table


def write(table: LakeTable) -> None:
    table.append(pa.table({"id": [1]}, schema=SCHEMA), NOTHING)


def test_a_table_that_nothing_changed_is_not_opened_again(tmp_path: Path) -> None:
    kept, table = KeptTables(), made(tmp_path / "t")
    for _ in range(3):
        write(table)
        kept.keep(table)
        assert kept.open(table.uri, APP, table.recorded) is table
    assert kept.open(table.uri, APP, table.recorded) is not table, "it is in use"


def test_a_table_is_opened_again_after_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_table, "CHECKPOINT_EVERY", 5)
    kept, table = KeptTables(), made(tmp_path / "t")
    while table.version < 4:
        kept.keep(table)
        assert kept.open(table.uri, APP, table.recorded) is table
        write(table)
    kept.keep(table)
    table = kept.open(table.uri, APP, table.recorded)
    write(table)
    assert (tmp_path / "t" / "_delta_log" / f"{5:020d}.checkpoint.parquet").exists()
    kept.keep(table)
    opened = kept.open(table.uri, APP, table.recorded)
    assert opened is not table
    assert opened.recorded == table.recorded


def test_a_table_with_another_record_is_opened_again(tmp_path: Path) -> None:
    kept, table = KeptTables(), made(tmp_path / "t")
    before = table.recorded
    write(table)
    kept.keep(table)
    assert kept.open(table.uri, APP, before) is not table


def test_a_commit_of_another_writer_is_noticed(tmp_path: Path) -> None:
    kept, table = KeptTables(), made(tmp_path / "t")
    write(table)
    kept.keep(table)
    DeltaTable(table.uri).delete()
    with pytest.raises(TableDiverged, match="changed by another writer"):
        kept.open(table.uri, APP, table.recorded)


def test_a_folder_with_the_same_version_of_another_table_is_noticed(tmp_path: Path) -> None:
    kept, table, other = KeptTables(), made(tmp_path / "t"), made(tmp_path / "other")
    kept.keep(table)
    shutil.rmtree(table.uri)
    (tmp_path / "other").rename(table.uri)
    assert other.version == table.version
    with pytest.raises(TableDiverged, match="recreated by another writer"):
        kept.open(table.uri, APP, table.recorded)


def test_a_lost_earlier_commit_is_noticed(tmp_path: Path) -> None:
    kept, table = KeptTables(), made(tmp_path / "t")
    write(table)
    kept.keep(table)
    folder = Path(table.uri) / "_delta_log"
    let_pass(0.05, "the times of files have the resolution of the kernel's clock, some milliseconds")
    (folder / f"{0:020d}.json").unlink()
    with pytest.raises(TableDiverged, match="cannot be read"):
        kept.open(table.uri, APP, table.recorded)


def test_the_number_of_kept_tables_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_tables, "KEPT_MAX", 2)
    kept, tables = KeptTables(), [made(tmp_path / str(number)) for number in range(3)]
    for table in tables:
        kept.keep(table)
    assert [kept.open(table.uri, APP, table.recorded) is table for table in tables] == [False, True, True]
