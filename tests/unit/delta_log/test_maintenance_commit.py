"""Commits of maintenance that become visible although link(2) fails: their files stay."""

import errno
import os
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.delta_log.commit_files import FileChange
from tidemark.pipeline.delta_log.maintenance_commit import MaintenanceLost, commit_maintenance
from tidemark.pipeline.lake.files.file_format import arrow_encodings
from tidemark.pipeline.lake.files.file_writing import removal, write_file
from tidemark.pipeline.lake.tables.lake_table import LakeTable

SCHEMA = pa.schema([("id", pa.int64())])
ROWS = pa.table([[1, 2]], schema=SCHEMA)


class FailingLink:
    """Makes a link, or none, and fails, as a server whose reply is lost."""

    def __init__(self, number: int, *, is_made: bool) -> None:
        self._number, self._is_made, self._link = number, is_made, os.link

    def __call__(self, staged: str, path: str) -> None:
        if self._is_made:
            self._link(staged, path)
        raise OSError(self._number, os.strerror(self._number))


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    made = LakeTable(str(tmp_path), "test")
    made.create(SCHEMA, NOTHING)
    made.append(ROWS, NOTHING)
    return made


def replacing(table: LakeTable) -> FileChange:
    """Write the rows of the only file again; return the change that replaces it."""
    (old,) = map(Path, table.delta.file_uris())
    added = write_file(table.uri, ROWS, arrow_encodings(ROWS), data_change=False)
    return FileChange([added], [removal(old.name, old.stat().st_size, data_change=False)])


def committed(table: LakeTable) -> DeltaTable:
    found = DeltaTable(table.uri)
    assert found.to_pyarrow_table() == ROWS
    return found


def test_a_commit_whose_reply_was_lost_and_whose_link_was_repeated_is_done(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", FailingLink(errno.EEXIST, is_made=True))
    version = commit_maintenance(table.uri, replacing(table), table.version, Lock())
    assert committed(table).version() == version == table.version + 1


def test_the_files_of_a_commit_that_may_be_visible_are_kept(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", FailingLink(errno.EIO, is_made=True))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        commit_maintenance(table.uri, replacing(table), table.version, Lock())
    assert committed(table).version() == table.version + 1


def test_the_files_of_a_commit_that_another_writer_preceded_are_deleted(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", FailingLink(errno.EEXIST, is_made=False))
    change = replacing(table)
    with pytest.raises(MaintenanceLost, match="another writer committed at the same moment"):
        commit_maintenance(table.uri, change, table.version, Lock())
    assert not (Path(table.uri) / change.added[0].path).exists()
    assert committed(table).version() == table.version
