"""A lake on a disk that is full at any write of a batch: the error says so, and a repeat loses and doubles nothing."""

from pathlib import Path

import pytest

from tests.integration.test_lake_changes import FOLDER, Fed
from tests.support.lakes.lakes import log_rows, replica_rows
from tests.support.servers.small_disk import needs_mount, small_disk
from tidemark.pipeline.lake.lake import LakeFull
from tidemark.pipeline.lake.positions import TableState

pytestmark = needs_mount
DISK_BYTES = 4 << 20
BLOCK = 4096
LEFT = (0, 2, 3, 5, 8)  # blocks: too few for a file of the log, its commit, one of the replica, one of the positions


@pytest.mark.feature("I40")
def test_a_disk_that_is_full_at_any_write_is_named_as_such_and_the_batch_is_done_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        fed, places = Fed(disk.root / "lake"), set[str]()
        for blocks in LEFT:
            fed.table.commit()
            fed.table.update((blocks,), {2: f"with {blocks} blocks"})
            disk.fill(leave_bytes=blocks * BLOCK)
            with pytest.raises(LakeFull, match="No space left on device") as raised:
                fed.bring_up()
            places.add(str(raised.value).split(":")[0])
            disk.empty()
            fed.bring_up()
        assert places == {fed.path("log"), fed.path("replica"), str(fed.root / "_positions")}
        assert fed.state() is TableState.LIVE
        assert replica_rows(fed.root, FOLDER) == fed.table.expected()
        assert len(log_rows(fed.root, FOLDER)) == fed.table.changes
