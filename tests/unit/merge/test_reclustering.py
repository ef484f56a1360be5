"""Maintenance of files by keys of several columns: it ends, also where statistics do not show the order of rows."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pytest

from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.delta_log.maintenance_commit import MaintenanceLost
from tidemark.pipeline.lake.files.file_statistics import TEXT_MAX
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge import data_files
from tidemark.pipeline.merge.clustering import DEPTH_MAX, recluster
from tidemark.pipeline.merge.touched_files import KeyedFiles, keyed_files

ROWS, FILES = 8, DEPTH_MAX + 2  # of a file; of a table
UUID = "00000000-0000-0000-0000-00000000000{}"
TIME = datetime(2026, 11, 27, 1, 2, 3, tzinfo=UTC)
STEPS_MAX = 2 * FILES
KEY = ("owner", "id")


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "FILE_ROWS_MIN", ROWS)
    monkeypatch.setattr(data_files, "FILE_ROWS_MAX", ROWS)


def overlapping(
    root: Path, owners: Sequence[Sequence[object]], kind: pa.DataType, partition: Sequence[str] = ()
) -> str:
    """Make a table with a file for each of `owners`, whose ids are between those of the others; return its URI."""
    schema = pa.schema([("id", pa.int64()), ("owner", kind)])
    table = LakeTable(str(root), "test")
    table.create(schema, NOTHING, partition=partition)
    for number, values in enumerate(owners):
        ids = [FILES * row + number for row in range(ROWS)]
        table.append(pa.table([ids, pa.array(values, kind)], schema=schema), NOTHING)
    return table.uri


def steps(uri: str) -> int:
    """Maintain a table until nothing is left to do; return the number of commits."""
    rows = LakeTable(uri, "test").scan().read_all().sort_by("id")
    is_complete = False
    for step in range(STEPS_MAX):
        before = set(Path(uri).rglob("*.parquet"))
        made = recluster(LakeTable(uri, "test"), KEY, Lock())
        assert made is None or not is_complete, "the last commit left nothing to do"
        is_complete = made is not None and made.is_complete
        if made is None:
            assert set(Path(uri).rglob("*.parquet")) == before, "files without a commit are deleted"
            assert LakeTable(uri, "test").scan().read_all().sort_by("id") == rows
            return step
    raise AssertionError("it repeats work that is done")


def files_of(uri: str) -> KeyedFiles:
    return keyed_files(LakeTable(uri, "test"), KEY)


def test_files_of_one_long_text_are_left_as_they_are(tmp_path: Path) -> None:
    uri = overlapping(tmp_path, [[UUID.format(7)] * ROWS] * FILES, pa.string())
    assert steps(uri) == 0
    assert not files_of(uri).ranges.separable.any()


@pytest.mark.parametrize(
    ("kind", "owners"),
    [(pa.string(), [UUID.format(number) for number in range(ROWS)]), (pa.int64(), list(range(ROWS)))],
    ids=str,
)
def test_files_with_the_same_values_of_the_first_column_are_sorted(
    tmp_path: Path, kind: pa.DataType, owners: list[object]
) -> None:
    uri = overlapping(tmp_path, [owners] * FILES, kind)
    assert steps(uri) == 1
    ranges = files_of(uri).ranges
    spans = list(zip(ranges.least.tolist(), ranges.most.tolist(), strict=True))
    assert max(sum(low <= value <= high for low, high in spans) for value in owners) <= 2


def test_a_partition_is_one_value_however_long_it_is(tmp_path: Path) -> None:
    uri = overlapping(tmp_path, [[UUID.format(7)] * ROWS] * FILES, pa.string(), partition=["owner"])
    assert steps(uri) == 1
    ranges = files_of(uri).ranges
    assert ranges.separable.all()
    order = ranges.order
    assert (ranges.ends[order][:-1] < ranges.begins[order][1:]).all(), "they do not overlap"


def test_times_of_one_transaction_are_left_as_they_are(tmp_path: Path) -> None:
    times = [[TIME + timedelta(microseconds=123_456)] * ROWS] * FILES
    assert steps(overlapping(tmp_path, times, pa.timestamp("us", "UTC"))) == 0


def test_a_crowd_that_would_overlap_as_much_as_before_is_left(tmp_path: Path) -> None:
    uri = overlapping(tmp_path, [["m" * TEXT_MAX + "n"] * ROWS] * FILES, pa.string())  # the bounds are truncated
    assert files_of(uri).ranges.separable.all()
    assert steps(uri) == 0


def test_maintenance_loses_to_a_renamed_key_column(tmp_path: Path) -> None:
    uri = overlapping(tmp_path, [[1] * ROWS], pa.int64())
    with pytest.raises(MaintenanceLost, match="the column tenant no longer exists"):
        recluster(LakeTable(uri, "test"), ("tenant", "id"), Lock())
