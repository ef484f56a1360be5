"""Files that no version needs: found by the names that they have on disk, and while the stream does not write."""

from pathlib import Path
from threading import Lock

import pyarrow as pa
import pytest

from tidemark.pipeline.delta_log import maintenance_commit
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.delta_log.maintenance_commit import MaintenanceLost
from tidemark.pipeline.delta_log.unused_files import delete_unused_files
from tidemark.pipeline.lake.tables.lake_table import LakeTable

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])
REGIONS = ("EU West", "Łódź/50%", "north")


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """Return a table with one file for each region; the version before it had others."""
    made = LakeTable(str(tmp_path), "test")
    made.create(SCHEMA, NOTHING, partition=["region"])
    for _ in range(2):
        made.overwrite(pa.table([range(len(REGIONS)), REGIONS], schema=SCHEMA), NOTHING)
    return made


def files(table: LakeTable) -> set[Path]:
    return set(Path(table.uri).rglob("*.parquet"))


def test_replaced_files_in_partitions_with_encoded_names_are_deleted(table: LakeTable) -> None:
    replaced = {Path(uri) for uri in table.delta.file_uris()}
    table.overwrite(pa.table([range(len(REGIONS)), REGIONS], schema=SCHEMA), NOTHING)
    older = files(table) - replaced - {Path(uri) for uri in table.delta.file_uris()}
    assert len(replaced) == len(older) == len(REGIONS)
    assert delete_unused_files(table.uri, 0, table.version - 1, 100, Lock()) == len(older)
    assert not older & files(table)
    assert replaced < files(table), "of the recorded version"
    assert delete_unused_files(table.uri, 0, table.version, 2, Lock()) == 2
    assert delete_unused_files(table.uri, 0, table.version, 2, Lock()) == 1
    assert delete_unused_files(table.uri, 0, table.version, 2, Lock()) == 0
    assert files(table) == {Path(uri) for uri in table.delta.file_uris()}
    assert table.scan().read_all().num_rows == len(REGIONS)


def test_no_file_is_deleted_while_the_stream_writes_to_the_table(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance_commit, "LOCK_WAIT_S", 0.01)
    before, lock = files(table), Lock()
    with lock, pytest.raises(MaintenanceLost, match="the stream has written to it"):
        delete_unused_files(table.uri, 0, table.version, 100, lock)
    assert files(table) == before
    assert delete_unused_files(table.uri, 0, table.version, 100, lock) == len(REGIONS)
