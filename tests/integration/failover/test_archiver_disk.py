"""A full disk under the state while the archiver delivers, or while it must take over."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.failover import Pair
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.small_disk import SmallDisk, needs_mount, small_disk
from tidemark.model.mode import Stage

pytestmark = needs_mount
MB = 1 << 20
KEPT_BACK = 64 * MB  # that the product keeps free for confirmations
ROWS = 2000


@contextmanager
def beside(disk: SmallDisk, node: ArchivingServer) -> Iterator[Pair]:
    """Run both processes over a state on `disk`; their logs are beside it."""
    pair = Pair(node, disk.root)
    for process in (pair.sidecar, pair.archiver):
        process.log_path = disk.root.parent / f"{process.role}.log"
    pair.sidecar.init()
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


def insert(pair: Pair, begin: int) -> None:
    end = begin + ROWS - 1
    pair.node.sql(f"INSERT INTO account SELECT n, repeat(md5(n::text), 40) FROM generate_series({begin}, {end}) n")


def assert_all_arrived(pair: Pair, count: int) -> None:
    assert set(replayed(change_log(pair.catch_up(), "account"))) == set(range(1, count + 1))


def test_an_active_archiver_waits_for_disk_space_and_continues_automatically(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", KEPT_BACK + 16 * MB) as disk, beside(disk, node) as pair:
        pair.switch_off()
        insert(pair, 1)
        assert_all_arrived(pair, ROWS)
        assert pair.stage is Stage.HELD
        disk.fill(leave_bytes=KEPT_BACK)
        insert(pair, ROWS + 1)
        pair.archiver.wait_for_event("the outbox or its disk is full, delivery waits")
        disk.empty()
        assert_all_arrived(pair, 2 * ROWS)
        pair.switch_on()
        pair.wait_for_stage(Stage.REALTIME)


def test_an_archiver_that_takes_over_on_a_full_disk_waits_for_space_and_loses_nothing(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", KEPT_BACK + 16 * MB) as disk, beside(disk, node) as pair:
        insert(pair, 1)
        assert_all_arrived(pair, ROWS)
        disk.fill()
        pair.sidecar.kill()
        for number in range(10):  # the journal stores them, whichever process decodes
            pair.node.sql(f"CREATE TABLE more_{number} (id int PRIMARY KEY, a text, b text, c text)")
        insert(pair, ROWS + 1)
        pair.archiver.wait_for_event("the disk is full: waiting for space")
        assert pair.archiver.running
        disk.empty()
        assert_all_arrived(pair, 2 * ROWS)
        pair.sidecar.start()
        pair.wait_for_stage(Stage.REALTIME)
        for number in range(10):
            pair.node.sql(f"DROP TABLE more_{number}")
