"""Damaged WAL in an archive stops the archiver and is named by LSN and file; it can be restored or given up."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.failover import QUICK, Archiver, archiving_node
from tests.support.servers.archiving import ArchivingServer
from tidemark.io.state.state import StateStore
from tidemark.model.change import LogicalMessage
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.message_prefix import LOSS_PREFIX
from tidemark.model.mode import Stage
from tidemark.runtime.replay.archive_damage import find_damage
from tidemark.wire.state.state_keys import STAGE

pytestmark = pytest.mark.usefixtures("forked")

PAGE = 8192
MB = 1 << 20
ROWS = 300  # in one segment: five pages of WAL and more
SEGMENTS = 3
Damage = Callable[[bytes, bytes], bytes]  # function of a segment and the one before it


def overwritten(content: bytes, at: int, other: bytes) -> bytes:
    return content[:at] + other + content[at + len(other) :]


DAMAGES: dict[str, Damage] = {
    "a bit turned in a record": lambda whole, _: overwritten(whole, 5000, bytes([whole[5000] ^ 0x10])),
    "a record's length forged": lambda whole, _: overwritten(whole, 40, b"\xff\xff\xff\x3f"),
    "a page header overwritten": lambda whole, _: overwritten(whole, PAGE, b"\xff" * 24),
    "a page zeroed": lambda whole, _: overwritten(whole, 2 * PAGE, bytes(PAGE)),
    "a recycled tail": lambda whole, before: whole[: 2 * PAGE] + before[2 * PAGE :],
    "cut off": lambda whole, _: whole[:20_000],
    "the first page zeroed": lambda whole, _: overwritten(whole, 0, bytes(PAGE)),
    "zeros": lambda whole, _: bytes(len(whole)),
    "another segment under its name": lambda _, before: before,
    "of another cluster": lambda whole, _: overwritten(whole, 24, bytes(8)),
}

STOPPING = ("a bit turned in a record", "a page zeroed", "a recycled tail", "cut off", "zeros")  # tested with a process


@pytest.fixture(scope="module")
def archive() -> Iterator[ArchivingServer]:
    with archiving_node() as node:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        yield node


class UndeliveredArchive:
    """A capture that an archiver must deliver, and some archived segments full of rows."""

    def __init__(self, archive: ArchivingServer, root: Path, first_id: int) -> None:
        self.archive = archive
        folder = {"TIDEMARK_ARCHIVE__FOLDER": str(archive.spool.folder), "TIDEMARK_ARCHIVE__KEEP_BYTES": str(1 << 30)}
        self.archiver = Archiver(archive.node, "postgres", root, copy=False, **QUICK, **folder)
        self.archiver.init()
        with StateStore.open(self.archiver.folder) as store, store.transaction(None) as transaction:
            transaction.put(STAGE, Stage.ARCHIVE)
        self.paths: list[Path] = []
        archive.switch()
        for number in range(SEGMENTS):
            low = first_id + number * ROWS
            ids = f"generate_series({low}, {low + ROWS - 1})"
            archive.node.sql(f"INSERT INTO account SELECT n, repeat('x', 100) FROM {ids} n")
            self.paths.append(archive.spool.folder / archive.switch()[0])
        archive.wait_until_archived()
        self.ids = set(range(first_id, first_id + SEGMENTS * ROWS))

    def delivered(self) -> set[object]:
        """Run the archiver until it has caught up; return the ids of all rows that were ever delivered."""
        self.archiver.start()
        items = self.archiver.catch_up()
        assert self.archiver.stop() == ExitCode.SUCCESS
        return set(replayed(change_log(items, "account")))


@pytest.mark.feature("I32")
def test_a_damaged_segment_stops_the_archiver_with_lsn_and_file_until_it_is_repaired(
    archive: ArchivingServer, tmp_path: Path
) -> None:
    archived = UndeliveredArchive(archive, tmp_path, 0)
    before, victim, _ = archived.paths
    whole = victim.read_bytes()
    start_lsn = Lsn(int(victim.name[16:], 16) * MB)
    with StateStore.open(archived.archiver.folder) as store:
        system, begin = store.identity.system_identifier, store.view().start
    assert begin is not None
    try:
        for name, damage in DAMAGES.items():
            victim.write_bytes(damage(whole, before.read_bytes()))
            found = find_damage(archive.spool.folder, system, begin.restart_lsn)
            assert found is not None, name
            assert victim.name in found.reason, name
            assert start_lsn - PAGE <= found.start_lsn < found.end_lsn == start_lsn + MB, name
            if name in STOPPING:
                reported = archived.archiver.refuses(ExitCode.CORRUPT_WAL, victim.name)
                assert format_lsn(start_lsn)[:4] in str(reported["error"]), (name, reported)
        victim.write_bytes(whole)
        assert find_damage(archive.spool.folder, system, begin.restart_lsn) is None
        assert archived.delivered() == archived.ids
    finally:
        victim.write_bytes(whole)
        archived.archiver.close()


@pytest.mark.feature("I32")
def test_a_damaged_segment_is_given_up_only_on_request_and_the_loss_is_reported(
    archive: ArchivingServer, tmp_path: Path
) -> None:
    archived = UndeliveredArchive(archive, tmp_path, 10_000)
    victim = archived.paths[-1]  # nothing follows it
    whole = victim.read_bytes()
    options = archived.archiver.options
    repair = ("archive", "repair", "--yes", "--state", archived.archiver.folder.root)
    try:
        assert b"no hole and no damage" in succeeded(cdcctl(*repair, **options)).out
        victim.write_bytes(DAMAGES["a bit turned in a record"](whole, b""))
        archived.archiver.refuses(ExitCode.CORRUPT_WAL, victim.name, "invalid WAL at 0/")
        done = succeeded(cdcctl(*repair, **options))
        assert f"damaged in {archive.spool.folder}" in done.err
        assert victim.name in done.out.decode()
        with StateStore.open(archived.archiver.folder) as store:
            (loss,) = store.view().losses.kept
        assert victim.name in loss.damage
        assert "invalid WAL at 0/" in loss.damage
        assert loss.hole_start_lsn < loss.hole_end_lsn
        archive.node.sql("INSERT INTO account VALUES (99999, 'behind')")
        archived.archiver.start()
        items = archived.archiver.catch_up()
        (message,) = [item for item in items if isinstance(item, LogicalMessage) and item.prefix == LOSS_PREFIX]
        assert victim.name in json.loads(message.content)["damage"]
        ids = {row["_after"]["id"] for row in change_log(items, "account") if isinstance(row["_after"], dict)}
        assert 99_999 in ids
        assert ids - {99_999} == {number for number in archived.ids if number < 10_000 + 2 * ROWS}
    finally:
        victim.write_bytes(whole)
        archived.archiver.close()


def test_a_damaged_segment_that_is_not_needed_stops_no_process(archive: ArchivingServer, tmp_path: Path) -> None:
    archived = UndeliveredArchive(archive, tmp_path, 20_000)
    oldest = min(path for path in archive.spool.folder.iterdir() if len(path.name) == 24)
    assert oldest < archived.paths[0]
    whole = oldest.read_bytes()
    try:
        for spoilt in (overwritten(whole, 24, bytes(8)), bytes(MB), whole[:100]):
            oldest.write_bytes(spoilt)
            assert archived.delivered() >= archived.ids
    finally:
        oldest.write_bytes(whole)
        archived.archiver.close()
