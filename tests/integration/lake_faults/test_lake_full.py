"""A lake on a disk that is full at any write of a batch: the error says so, and a retry applies each change once."""

from pathlib import Path

import pytest

from tests.integration.lake.test_lake_changes import FOLDER, ROWS, ScriptedLake
from tests.support.lakes.lakes import log_rows, replica_rows
from tests.support.servers.small_disk import BLOCK_BYTES, needs_mount, small_disk
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.tables.table_errors import LakeFull
from tidemark.pipeline.sinks import batch_writes

pytestmark = needs_mount
DISK_BYTES = 4 << 20
BLOCKS_MAX = 64  # more than a batch writes


def error_of(fed: ScriptedLake) -> LakeFull | None:
    try:
        fed.apply_pending()
    except LakeFull as error:
        return error
    return None


@pytest.mark.feature("I40")
def test_a_disk_that_is_full_at_any_write_is_reported_as_full_and_the_batch_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TARGETS_AT_ONCE", "SMALL_TARGETS_AT_ONCE"):
        monkeypatch.setattr(batch_writes, name, 1)  # one after the other: the disk is full for one at a time
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        fed, full = ScriptedLake(disk.root / "lake"), set[str]()
        for blocks in range(BLOCKS_MAX):
            fed.table.commit()
            fed.table.update((blocks % ROWS,), {2: f"with {blocks} blocks"})
            disk.fill(leave_bytes=blocks * BLOCK_BYTES)
            error = error_of(fed)
            if error is None:
                break
            assert "No space left on device" in str(error)
            full.add(str(error).split(":")[0])
            disk.empty()
            fed.apply_pending()
        beside = {str(fed.root / name) for name in ("_events", "_positions")}
        assert full == {fed.path("log"), fed.path("replica"), *beside}
        assert fed.state() is TableState.LIVE
        assert replica_rows(fed.root, FOLDER) == fed.table.expected()
        assert len(log_rows(fed.root, FOLDER)) == fed.table.changes
