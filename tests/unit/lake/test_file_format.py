"""The columns that are written without a dictionary, and that all values are read back unchanged."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.files.file_format import DIFFERENCES, PLAIN, SAMPLE_ROWS_MIN, encodings
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_upkeep import compact

ROWS = 6000
DAY, MOMENT = date(1, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
DISTINCT = {
    "small": pa.array([n - 3000 for n in range(ROWS)], pa.int16()),
    "large": pa.array([(-1) ** n * (1 << 62) + n for n in range(ROWS)], pa.int64()),
    "amount": pa.array([Decimal(n - 3000).scaleb(-2) for n in range(ROWS)], pa.decimal128(12, 2)),
    "huge": pa.array([Decimal(n).scaleb(20) for n in range(ROWS)], pa.decimal128(38, 2)),
    "day": pa.array([DAY + timedelta(n) for n in range(ROWS)], pa.date32()),
    "moment": pa.array([n * 1_000_003 for n in range(ROWS)], pa.timestamp("us")),
    "zoned": pa.array([MOMENT + timedelta(seconds=-n) for n in range(ROWS)], pa.timestamp("us", "UTC")),
    "ratio": pa.array([n / 7 for n in range(ROWS)], pa.float64()),
    "name.of it": pa.array([f"name {n}" for n in range(ROWS)], pa.string()),
    "raw": pa.array([bytes([n % 256, n // 256]) for n in range(ROWS)], pa.binary()),
}
NUMBERS = ("small", "large", "amount", "day", "moment", "zoned")


def with_nulls(values: pa.Array) -> pa.Array:
    return pa.array([None if at % 5 == 0 else value for at, value in enumerate(values.to_pylist())], values.type)


def few(values: pa.Array) -> pa.Array:
    return values.take(pa.array([at % 100 for at in range(len(values))]))


@pytest.mark.parametrize("nulls", [False, True])
def test_only_columns_of_distinct_values_have_no_dictionary_and_all_values_are_read_back(
    tmp_path: Path, *, nulls: bool
) -> None:
    distinct = {name: with_nulls(values) if nulls else values for name, values in DISTINCT.items()}
    # delta-rs always writes decimals with a fraction without a dictionary.
    repeated = {f"few {name}": few(values) for name, values in distinct.items() if name != "huge"}
    none = {"none": pa.nulls(ROWS, pa.int64()), "list": pa.array([[n] for n in range(ROWS)], pa.list_(pa.int64()))}
    rows = pa.table({**distinct, **repeated, **none})
    assert encodings(rows) == {name: DIFFERENCES if name in NUMBERS else PLAIN for name in distinct}
    table = LakeTable(str(tmp_path / "table"), "app")
    table.create(rows.schema, NOTHING)
    table.append(rows, NOTHING)
    assert table.scan().read_all().select(rows.schema.names) == rows
    (file,) = (tmp_path / "table").glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    used = {group.column(at).path_in_schema: set(group.column(at).encodings) for at in range(group.num_columns)}
    assert {name for name in NUMBERS if "DELTA_BINARY_PACKED" in used[name]} == set(NUMBERS)
    assert not any("RLE_DICTIONARY" in used[name] for name in distinct)
    assert all("RLE_DICTIONARY" in used[name] for name in repeated)


@pytest.mark.parametrize("count", [0, 1, SAMPLE_ROWS_MIN - 1])
def test_few_rows_are_no_sample_and_are_written_with_dictionaries(tmp_path: Path, count: int) -> None:
    rows = pa.table(DISTINCT).slice(0, count)
    assert encodings(rows) == {}
    table = LakeTable(str(tmp_path / "table"), "app")
    table.create(rows.schema, NOTHING)
    table.append(rows, NOTHING)
    assert table.scan().read_all().select(rows.schema.names) == rows


def test_combined_files_are_written_with_the_encodings_of_their_sources(tmp_path: Path) -> None:
    rows = pa.table({"distinct": DISTINCT["large"], "few": few(DISTINCT["name.of it"])})
    table = LakeTable(str(tmp_path / "table"), "app")
    table.create(rows.schema, NOTHING)
    for half in (rows[: ROWS // 2], rows[ROWS // 2 :]):
        table.append(half, NOTHING)
    compact(table, keep_hours=0)
    (file,) = (tmp_path / "table").glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    assert "RLE_DICTIONARY" not in group.column(0).encodings
    assert "RLE_DICTIONARY" in group.column(1).encodings
    assert table.scan().read_all().select(rows.schema.names).sort_by("distinct") == rows.sort_by("distinct")
