"""A full disk under the state folder: the report, and that all changes arrive once there is space again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.postgres import Cluster
from tests.support.servers.small_disk import SmallDisk, needs_mount, small_disk
from tidemark.model.errors import ExitCode

pytestmark = [needs_mount, pytest.mark.usefixtures("forked")]
MB = 1 << 20
KEPT_BACK = 64 * MB  # that the product keeps free for confirmations
ROWS = 2000
ATTEMPTS = 5
CYCLES = 3


@pytest.fixture
def disk(tmp_path: Path, node: Cluster) -> Iterator[SmallDisk]:
    node.sql("TRUNCATE account")
    with small_disk(tmp_path / "disk", KEPT_BACK + 16 * MB) as made:
        yield made


@contextmanager
def beside(disk: SmallDisk, node: Cluster, *, copy: bool = False, **options: str) -> Iterator[Sidecar]:
    """Return a sidecar with its state on `disk` and its log beside it."""
    sidecar = Sidecar(node, "postgres", disk.root, copy=copy, **options)
    sidecar.log_path = disk.root.parent / "sidecar.log"
    sidecar.init()
    try:
        yield sidecar
    finally:
        sidecar.close()


def insert(node: Cluster, begin: int) -> None:
    node.sql(
        f"INSERT INTO account SELECT n, repeat(md5(n::text), 40) FROM generate_series({begin}, {begin + ROWS - 1}) n"
    )


def assert_all_arrived(sidecar: Sidecar, count: int) -> None:
    assert set(replayed(change_log(sidecar.catch_up(), "account"))) == set(range(1, count + 1))


@pytest.mark.parametrize("free_bytes", [0, 8 << 10, 12 << 10, 16 << 10, 20 << 10, 64 << 10])
def test_init_on_a_full_disk_reports_that_and_succeeds_once_there_is_space(
    node: Cluster, disk: SmallDisk, free_bytes: int
) -> None:
    state = disk.root / "state"
    disk.fill(leave_bytes=free_bytes)
    refused(cdcctl("init", "--state", state, "--dsn", node.dsn()), ExitCode.STATE, "no space", str(state))
    disk.empty()
    assert "delivery will wait" not in succeeded(cdcctl("init", "--state", state, "--dsn", node.dsn())).err
    succeeded(cdcctl("status", "--state", state))


def test_init_on_a_disk_that_is_too_small_says_that_delivery_will_wait(node: Cluster, disk: SmallDisk) -> None:
    state = disk.root / "state"
    disk.fill(leave_bytes=KEPT_BACK)
    made = succeeded(cdcctl("init", "--state", state, "--dsn", node.dsn()))
    assert f"the disk of {state} has " in made.err
    assert "delivery will wait" in made.err


def test_delivery_waits_on_a_full_disk_and_continues_automatically(node: Cluster, disk: SmallDisk) -> None:
    with beside(disk, node) as sidecar:
        sidecar.start()
        insert(node, 1)
        sidecar.catch_up()
        disk.fill(leave_bytes=KEPT_BACK)
        insert(node, ROWS + 1)
        reported = sidecar.wait_for_event("the outbox or its disk is full, delivery waits")
        assert str(disk.root) in str(reported["reason"])
        assert str(disk.root) in str(sidecar.status()["waits_for_room"])
        shown = succeeded(cdcctl("status", "--state", sidecar.folder.root, **sidecar.options))
        assert "waits for room" in shown.out.decode()
        disk.empty()
        assert_all_arrived(sidecar, 2 * ROWS)
        assert not sidecar.status()["waits_for_room"]
        assert sidecar.stop() == ExitCode.SUCCESS


WAITS, GOES_ON = "the disk is full: waiting for space", "the disk has space again"


@pytest.mark.feature("I40")
def test_delivery_waits_repeatedly_for_a_completely_full_disk_and_loses_nothing(node: Cluster, disk: SmallDisk) -> None:
    """DDL is written to the catalog journal, which reaches the full disk first."""
    with beside(disk, node, TIDEMARK_WATCHDOG__WATCHDOG_S="3") as sidecar:
        sidecar.start()
        for cycle in range(CYCLES):
            insert(node, 1 + cycle * ROWS)
            sidecar.catch_up()
            disk.fill()
            for number in range(10):
                node.sql(f"CREATE TABLE more_{cycle}_{number} (id int PRIMARY KEY, a text, b text, c text)")
            sidecar.wait_until(lambda: count(sidecar, WAITS) > cycle, "waiting")  # noqa: B023 - at once
            if cycle == 0:
                assert "no space for" in str(sidecar.status()["waits_for_room"])
                assert sidecar.metric('tidemark_disk_full_seconds{capture="main"}') > 0
                shown = succeeded(cdcctl("status", "--state", sidecar.folder.root, **sidecar.options))
                assert "waits for room" in shown.out.decode()
            disk.empty()
        insert(node, 1 + CYCLES * ROWS)
        assert_all_arrived(sidecar, (CYCLES + 1) * ROWS)
        assert count(sidecar, WAITS) == count(sidecar, GOES_ON)
        assert sidecar.metric('tidemark_disk_full_seconds{capture="main"}') == 0
        assert sidecar.stop() == ExitCode.SUCCESS
    for cycle in range(CYCLES):
        for number in range(10):
            node.sql(f"DROP TABLE more_{cycle}_{number}")


@pytest.mark.feature("I40")
def test_a_stop_ends_the_wait_and_a_start_waits_as_well(node: Cluster, disk: SmallDisk) -> None:
    with beside(disk, node, copy=True) as sidecar:
        insert(node, 1)
        disk.fill()
        sidecar.start(wait=False)
        sidecar.wait_until(lambda: count(sidecar, WAITS) == 1, "waiting")
        assert sidecar.stop() == ExitCode.SUCCESS
        sidecar.start(wait=False)
        sidecar.wait_until(lambda: count(sidecar, WAITS) == 2, "waiting")
        disk.empty()
        assert_all_arrived(sidecar, ROWS)
        assert sidecar.stop() == ExitCode.SUCCESS


def count(sidecar: Sidecar, event: str) -> int:
    """Return how often the sidecar has logged that."""
    return sum(reported["event"] == event for reported in sidecar.events())


def test_a_state_on_a_read_only_file_system_is_shown_and_each_writer_reports_the_error(
    node: Cluster, disk: SmallDisk, tmp_path: Path
) -> None:
    archive = tmp_path / "wal"
    archive.mkdir()
    with beside(disk, node, TIDEMARK_ARCHIVE__FOLDER=str(archive)) as sidecar:
        sidecar.start()
        insert(node, 1)
        sidecar.catch_up()
        assert sidecar.stop() == ExitCode.SUCCESS
        disk.set_writable(writable=False)
        place = ("--state", sidecar.folder.root)
        for asked in ("status", "realtime status", "reader list", "archive status"):
            succeeded(cdcctl(*asked.split(), *place, **sidecar.options))
        for asked in ("reader drop nobody --yes", "realtime off", "archive repair --yes"):
            refused(
                cdcctl(*asked.split(), *place, **sidecar.options),
                ExitCode.STATE,
                "Read-only file system",
                str(disk.root),
            )
        sidecar.refuses(ExitCode.STATE, "Read-only file system", str(disk.root))
        disk.set_writable(writable=True)
        sidecar.start()
        insert(node, ROWS + 1)
        assert_all_arrived(sidecar, 2 * ROWS)


@pytest.mark.feature("I40")
def test_a_transaction_without_space_to_spill_waits_and_is_delivered_complete(node: Cluster, disk: SmallDisk) -> None:
    with beside(disk, node, TIDEMARK_DECODE__MEMORY_BYTES=str(MB)) as sidecar:
        sidecar.start()
        for attempt in range(ATTEMPTS):  # NB: the catalog journal, with a vacuum's changes, has no space either
            disk.fill()
            insert(node, 1 + attempt * ROWS)
            sidecar.wait_until(lambda: count(sidecar, WAITS) > attempt, "waiting")  # noqa: B023 - at once
            last = [reported for reported in sidecar.events() if reported["event"] == WAITS][-1]
            disk.empty()
            assert_all_arrived(sidecar, (attempt + 1) * ROWS)
            if str(sidecar.folder.spill) in str(last["error"]):
                break
        else:
            pytest.fail(f"it was never the spill that found no space, last: {last}")
