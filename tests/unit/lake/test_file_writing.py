"""Rows in the layout of a table: what fits, and what needs other columns first."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.files.file_writing import fitted
from tidemark.pipeline.lake.tables import lake_table
from tidemark.pipeline.lake.tables.lake_table import LakeTable

OLD = pa.struct([("id", pa.int64()), ("note", pa.string())])
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string()), ("_old", OLD)])


def test_missing_columns_and_fields_are_null() -> None:
    old = pa.struct([("note", pa.string())])
    rows = pa.table({"_old": pa.array([{"note": "before"}, None], old), "id": [1, 2]})
    found = fitted(rows, SCHEMA)
    assert found is not None
    assert found.schema == SCHEMA
    assert found.to_pylist() == [
        {"id": 1, "note": None, "_old": {"id": None, "note": "before"}},
        {"id": 2, "note": None, "_old": None},
    ]


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"id": [1], "more": [1]}),
        pa.table({"id": pa.array([1], pa.int32())}),
        pa.table({"_old": pa.array([{"more": 1}])}),
        pa.table({"_old": pa.array([{"id": "text"}])}),
        pa.table({"_old": [1]}),
    ],
    ids=["column", "type", "field", "type of a field", "no struct"],
)
def test_rows_with_a_part_that_the_table_lacks_do_not_fit(rows: pa.Table) -> None:
    assert fitted(rows, SCHEMA) is None


@pytest.mark.parametrize("files_bytes", [1 << 20, 1], ids=["one file", "by delta-rs"])
def test_appended_rows_are_the_same_whoever_writes_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_bytes: int
) -> None:
    monkeypatch.setattr(lake_table, "FILE_BYTES", files_bytes)
    schema = pa.schema([("l", pa.list_(pa.string())), ("at", pa.timestamp("us", tz="UTC")), ("b", pa.binary())])
    at = datetime(2026, 5, 1, tzinfo=UTC)
    rows = pa.table({"l": [["a", None], None], "at": [at, None], "b": [b"\0", None]}, schema=schema)
    table = LakeTable(str(tmp_path), "app")
    table.create(schema, NOTHING)
    table.append(rows, NOTHING, merge_schema=True)
    assert DeltaTable(table.uri).to_pyarrow_table().to_pylist() == rows.to_pylist()


def test_rows_of_a_partitioned_table_go_to_its_partitions(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    DeltaTable.create(str(tmp_path), schema, partition_by=["day"])
    table = LakeTable(str(tmp_path), "app")
    table.append(pa.table({"id": [1], "day": ["monday"]}, schema=schema), NOTHING)
    assert [Path(uri).parent.name for uri in DeltaTable(table.uri).file_uris()] == ["day=monday"]
