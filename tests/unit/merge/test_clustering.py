"""Which files maintenance rewrites together: crowds that contain one key, and small neighbours."""

import pyarrow as pa
import pytest

from tidemark.pipeline.lake.files.file_format import FILE_BYTES
from tidemark.pipeline.merge import clustering
from tidemark.pipeline.merge.clustering import DEPTH_MAX, SMALL_BYTES, SMALL_ROWS, balanced, crowds, neighbours, planned
from tidemark.pipeline.merge.data_files import DataFile, FileReader
from tidemark.pipeline.merge.touched_files import KeyedFiles

ROWS_MAX = 8
NOWHERE = "/nowhere"  # planning reads the snapshot alone
BYTES = 10  # of a file, for each row


def keyed_files(*files: tuple[int, int, int]) -> KeyedFiles:
    """Return files with these least and greatest keys and numbers of rows."""
    least, most, rows = zip(*files, strict=True)
    bounds = {"min": least, "max": most, "null_count": [0] * len(files)}
    added = pa.table(
        {
            "path": [f"{number}.parquet" for number in range(len(files))],
            "size_bytes": [BYTES * number for number in rows],
            "num_records": list(rows),
            "partition": [""] * len(files),
            **{
                name: pa.StructArray.from_arrays([pa.array(values, pa.int64())], ["id"])
                for name, values in bounds.items()
            },
        }
    )
    field = pa.field("id", pa.int64())
    return KeyedFiles(FileReader(NOWHERE, pa.schema([field])), added, [field])


def test_files_of_which_few_contain_a_key_are_no_crowd() -> None:
    few = [(number, 100 + number, ROWS_MAX) for number in range(DEPTH_MAX)]
    assert list(crowds(keyed_files(*few))) == []
    assert list(crowds(keyed_files(*few, (50, 60, ROWS_MAX)))) == [list(range(DEPTH_MAX + 1))]


def test_a_crowd_includes_the_files_that_begin_or_end_with_its_key() -> None:
    ends, begins = [(0, 50, ROWS_MAX), (1, 50, ROWS_MAX)], (50, 99, ROWS_MAX)
    around = [(number, 100 - number, ROWS_MAX) for number in range(2, DEPTH_MAX + 1)]
    beside = [(51, 60, ROWS_MAX), (200, 209, ROWS_MAX)]
    assert list(crowds(keyed_files(*ends, begins, *around, *beside))) == [list(range(DEPTH_MAX + 2))]


def test_neighbours_are_combined_up_to_the_bounds_of_rows_and_bytes() -> None:
    files = keyed_files(*((10 * number, 10 * number + 9, 2) for number in range(6)))
    assert list(neighbours(files, 4, (), FILE_BYTES)) == [[0, 1], [2, 3], [4, 5]]
    assert list(neighbours(files, 5, {2}, FILE_BYTES)) == [[0, 1], [3, 4], [5]]
    assert list(neighbours(files, 100, (), 3 * 2 * BYTES)) == [[0, 1, 2], [3, 4, 5]]
    assert list(neighbours(files, 100, (), 3 * 2 * BYTES - 1)) == [[0, 1], [2, 3], [4, 5]]


def test_a_file_over_the_bounds_is_not_combined_with_its_neighbours() -> None:
    files = keyed_files((0, 9, 1), (10, 19, ROWS_MAX + 1), (20, 29, 1), (30, 39, 1))
    assert list(neighbours(files, ROWS_MAX, (), FILE_BYTES)) == [[0], [2, 3]]


def test_a_call_spends_its_bounds_only_on_files_that_it_combines(monkeypatch: pytest.MonkeyPatch) -> None:
    full = [(100 * number, 100 * number + 9, ROWS_MAX) for number in range(3)]
    files = keyed_files(*full, (300, 309, 1), (310, 319, 1))
    for name, row in (("WORK_ROWS", 1), ("WORK_BYTES", BYTES)):
        with monkeypatch.context() as patch:
            patch.setattr(clustering, name, 2 * row)
            assert planned(files, ROWS_MAX) == [[3, 4]]
            patch.setattr(clustering, name, row * (ROWS_MAX + 1))
            assert planned(files, ROWS_MAX) == [[3, 4]]
            patch.setattr(clustering, name, 2 * row - 1)
            assert planned(files, ROWS_MAX) == []


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ((10, 10), [[0, 1]]),
        ((10, 9), []),
        ((100, 1, 1, 1), [[1, 2, 3]]),
        ((1, 1, 100, 10, 4, 6), [[0, 1], [3, 4, 5]]),
        ((100, 50, 25, 12), []),
        ((100, 50, 25, 12, 13), [[0, 1, 2, 3, 4]]),
        ((7,), []),
        ((), []),
    ],
)
def test_a_file_is_combined_only_with_as_many_rows_as_it_has(rows: tuple[int, ...], parts: list[list[int]]) -> None:
    files = [DataFile("", 0, SMALL_ROWS * count, {}) for count in rows]
    assert list(balanced(files, range(len(rows)))) == parts


def test_a_run_that_costs_little_is_combined_whatever_its_files_have() -> None:
    files = [DataFile("", BYTES, count, {}) for count in (SMALL_ROWS - 1, 1)]
    assert list(balanced(files, [0, 1])) == [[0, 1]]
    assert list(balanced([files[0], DataFile("", SMALL_BYTES, 1, {})], [0, 1])) == []


def test_a_run_of_more_bytes_than_a_call_may_rewrite_is_combined_in_parts() -> None:
    files = keyed_files(*((10 * number, 10 * number + 9, 2) for number in range(6)))
    assert planned(files, 100, 3 * 2 * BYTES) == [[0, 1, 2]]


def test_a_crowd_of_which_the_bounds_allow_one_file_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = keyed_files(*((number, 100 + number, ROWS_MAX) for number in range(DEPTH_MAX + 1)))
    for files, groups in ((1, []), (2, [[0, 1]])):
        monkeypatch.setattr(clustering, "WORK_ROWS", files * ROWS_MAX)
        assert planned(crowd, ROWS_MAX) == groups
