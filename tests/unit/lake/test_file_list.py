"""The files of a table as Tidemark's own commits change them: the same as those that delta-rs lists afterwards."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.files.file_list import listed
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge.compaction import Compacted
from tidemark.pipeline.merge.merging import append_rows, merge_rows

DAY_US = 86_400_000_000
MAKE: dict[pa.DataType, Callable[[int], object]] = {
    pa.int32(): int,
    pa.int64(): lambda at: at - (1 << 62),
    pa.string(): lambda at: f"k{at:04} ж",
    pa.bool_(): lambda at: bool(at % 2),
    pa.float64(): lambda at: at / 4 - 1,
    pa.decimal128(12, 2): lambda at: Decimal(at) / 4,
    pa.date32(): lambda at: date(2020, 1, 1 + at % 28),
    pa.timestamp("us"): lambda at: datetime(2020, 1, 1, 0, 0, at % 60, 500_000),  # noqa: DTZ001
    pa.timestamp("us", tz="UTC"): lambda at: datetime(2020, 1, 1, 0, 0, at % 60, tzinfo=UTC),
    pa.binary(): lambda at: bytes([at % 256]),
}


@pytest.mark.parametrize("kind", MAKE, ids=str)
def test_the_files_after_own_commits_are_those_that_delta_rs_lists(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("part", kind)])
    key = ["id", "part"]

    def rows(first: int, count: int) -> pa.Table:
        numbers = range(first, first + count)
        return pa.table({"id": list(numbers), "part": pa.array([MAKE[kind](at) for at in numbers], kind)}, schema)

    table = LakeTable(str(tmp_path), "app")
    table.create(schema, NOTHING)
    for first in (0, 20, 40):
        append_rows(table, rows(first, 10), key, NOTHING)
        table.files(key)
    merge_rows(table, Compacted(rows(25, 2), rows(3, 1), {}, only_new=False), key, NOTHING)
    fields = [schema.field(name) for name in key]
    fresh = listed(pa.table(DeltaTable(table.uri).get_add_actions()), fields)
    assert fresh.num_rows == 2
    assert table.files(key).sort_by("path").to_pylist() == fresh.sort_by("path").to_pylist()


def test_files_are_listed_again_after_a_commit_of_delta_rs(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    table = LakeTable(str(tmp_path), "app")
    table.create(schema, NOTHING)
    append_rows(table, pa.table({"id": [1]}, schema=schema), ["id"], NOTHING)
    assert table.files(["id"]).num_rows == 1
    table.delete(None, NOTHING)
    assert table.files(["id"]).num_rows == 0
