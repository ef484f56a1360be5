"""The data files of a replica: how they are read in pieces, written in order, and what remains of a failed write."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.pipeline.merge import data_files
from tidemark.pipeline.merge.data_files import DataFile, FileReader, FileWriter, ordered

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
KEY = ("id",)
NAME = "part.parquet"


def rows(*keys: int) -> pa.Table:
    return pa.table([list(keys), [f"note {key}" for key in keys]], schema=SCHEMA)


@contextmanager
def small_files_only(most: int) -> Iterator[None]:
    """Let no file of this process grow beyond a number of bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("groups", "pieces"), [(1, [[1], [2], [3], [4]]), (2, [[1, 2], [3, 4]]), (3, [[1, 2, 3], [4]])]
)
def test_a_large_file_is_read_in_pieces_of_whole_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int, pieces: list[list[int]]
) -> None:
    pq.write_table(rows(1, 2, 3, 4), tmp_path / NAME, row_group_size=1)
    metadata = pq.read_metadata(tmp_path / NAME)
    group_bytes = {metadata.row_group(number).total_byte_size for number in range(4)}
    assert len(group_bytes) == 1
    monkeypatch.setattr(data_files, "PIECE_BYTES", groups * group_bytes.pop())
    found = FileReader(str(tmp_path), SCHEMA).pieces(DataFile(NAME, 0, 4))
    assert [piece.column("id").to_pylist() for piece in found] == pieces


def test_a_column_that_was_added_after_a_file_is_null_in_it(tmp_path: Path) -> None:
    pq.write_table(rows(1).select(["id"]), tmp_path / NAME)
    reader, file = FileReader(str(tmp_path), SCHEMA), DataFile(NAME, 0, 1)
    (piece,) = reader.pieces(file)
    assert piece.to_pylist() == [{"id": 1, "note": None}]
    assert reader.columns(file, ["note"]).to_pylist() == [{"note": None}]


def test_no_file_is_written_for_no_rows(tmp_path: Path) -> None:
    assert FileWriter(str(tmp_path), KEY, 8).write(rows()) == []
    assert list(tmp_path.iterdir()) == []


def test_rows_are_copied_only_if_they_are_not_in_the_order_of_the_key() -> None:
    in_order = rows(1, 2, 3)
    assert ordered(in_order, KEY) is in_order
    assert ordered(rows(3, 1, 2), KEY) == in_order


@pytest.mark.parametrize("count", [8, 20_000])
def test_a_file_that_cannot_be_written_completely_is_removed(tmp_path: Path, count: int) -> None:
    with small_files_only(64), pytest.raises(OSError, match="File too large") as raised:
        FileWriter(str(tmp_path), KEY, count).write(rows(*range(count)))
    assert raised.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []
