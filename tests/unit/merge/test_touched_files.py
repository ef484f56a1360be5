"""Which files of a replica are read to find keys: those that can contain them, and none for a key that was found."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.files.file_list import listed
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge import touched_files
from tidemark.pipeline.merge.data_files import DataFile, FileReader
from tidemark.pipeline.merge.kept_keys import KeptKeys
from tidemark.pipeline.merge.key_ranges import SoughtKeys
from tidemark.pipeline.merge.merging import append_rows
from tidemark.pipeline.merge.touched_files import KeyedFiles

FILES, FILE_ROWS = 4, 8
SCHEMA = pa.schema([("id", pa.int64())])


class RecordingReader(FileReader):
    """A reader that records the files whose keys it reads."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, SCHEMA)
        self.read: list[str] = []

    def columns(self, file: DataFile, names: Sequence[str]) -> pa.Table:
        self.read.append(file.path)
        return super().columns(file, names)


def files_read(root: Path, sought: list[int], schema: pa.Schema = SCHEMA, sorted_by: Sequence[str] = ()) -> int:
    """Find keys in files of eight rows, of which each can contain every key; return the number of files read."""
    table = LakeTable(str(root), "tidemark:test:replica")
    table.create(schema, NOTHING)
    for file in range(FILES):
        append_rows(table, keys_of(range(file, FILES * FILE_ROWS, FILES)), ["id"], NOTHING, sorted_by)
    reader = RecordingReader(table.uri)
    files = KeyedFiles(reader, listed(pa.table(table.delta.get_add_actions()), list(SCHEMA)), list(SCHEMA))
    keys = SoughtKeys(keys_of(sought))
    hits = files.touched(keys, files.ranges.inside(keys))
    found = np.sort(np.concatenate([hit.sought for hit in hits.values()]))
    assert found.tolist() == list(range(len(sought)))
    assert len(reader.read) == len(set(reader.read))
    return len(reader.read)


def keys_of(numbers: Sequence[int]) -> pa.Table:
    return pa.table([pa.array(numbers, pa.int64())], schema=SCHEMA)


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched_files, "KEPT", KeptKeys(0))


def test_no_file_is_read_whose_keys_are_in_memory(tmp_path: Path) -> None:
    assert files_read(tmp_path, [4, 9]) == 0


def test_no_file_is_read_whose_keys_are_in_memory_if_files_are_sorted_by_another_column(tmp_path: Path) -> None:
    assert files_read(tmp_path, [4, 9], SCHEMA.append(pa.field("note", pa.string())), ["note", "id"]) == 0


@pytest.mark.feature("L09")
@pytest.mark.usefixtures("nothing_kept")
def test_no_file_is_read_for_keys_that_were_found_in_an_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touched_files, "READ_ROWS_MIN", FILE_ROWS)
    assert files_read(tmp_path, [4]) == 1


@pytest.mark.usefixtures("nothing_kept")
def test_the_keys_of_several_files_are_compared_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched_files, "READ_ROWS_MIN", 2 * FILE_ROWS)
    assert files_read(tmp_path, [4]) == 2


@pytest.mark.usefixtures("nothing_kept")
def test_more_files_are_compared_together_for_more_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched_files, "READ_ROWS_MIN", 1)
    assert files_read(tmp_path, list(range(4, 28, 4))) == 2  # six keys: files with twelve rows


@pytest.mark.usefixtures("nothing_kept")
def test_the_number_of_files_that_are_compared_together_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touched_files, "READ_ROWS_MIN", 1)
    monkeypatch.setattr(touched_files, "READ_ROWS_MAX", FILE_ROWS)
    assert files_read(tmp_path, list(range(4, 28, 4))) == 1
