"""The archive as a source: a spool that a real server fills is followed byte for byte; holes and forks end it."""

import gzip
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers.archiving import ArchivingServer, archiving
from tests.support.servers.postgres import Cluster
from tidemark.engine.progress import Progress
from tidemark.engine.ring import RING_BYTES_MIN, Ring
from tidemark.io.archive.archive import ArchiveFolder, Hole
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import Metrics
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId, format_lsn
from tidemark.runtime.capture.archive_input import POLL_S, ArchiveInput
from tidemark.runtime.capture.signal import Signal
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.runtime.replay.offline import ForeignArchive
from tidemark.wal.segments import SLICE_BYTES_MAX, WalSlice

MB = 1 << 20
DEADLINE_S = 120


@pytest.fixture(scope="module")
def archive() -> Iterator[ArchivingServer]:
    with tempfile.TemporaryDirectory(prefix="tm-") as folder, archiving(Path(folder)) as made:
        made.switch(4)
        made.wait_until_archived()
        yield made


@pytest.fixture
def copy(archive: ArchivingServer, tmp_path: Path) -> Path:
    """Copy the archived segments, to be damaged."""
    archive.wait_until_archived()
    return Path(shutil.copytree(archive.spool.folder, tmp_path / "copy"))


NO_NODE = "host=/nonexistent"


class WatchedRing(Ring):
    """A ring with the fastest possible reader: it reads while a slice is put."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(RING_BYTES_MIN, progress.received_lsn)
        self._progress = progress

    def put(self, wal_slice: WalSlice) -> None:
        assert self._progress.received_lsn == wal_slice.end_lsn, "it can be decoded from here on, so it was received"
        super().put(wal_slice)


def record_listings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of the folders that an input lists from now on."""
    listed: list[Path] = []

    def listing(
        folder: Path, *, complete_only: bool, of: SystemIdentifier, since: tuple[TimelineId, Lsn]
    ) -> ArchiveFolder:
        listed.append(folder)
        return ArchiveFolder(folder, complete_only=complete_only, of=of, since=since)

    monkeypatch.setattr("tidemark.runtime.capture.archive_input.ArchiveFolder", listing)
    return listed


def until_listed_again(listed: list[Path]) -> Callable[[], bool]:
    """Return a condition that holds after three further listings: the first one may have begun before."""
    wanted = len(listed) + 3
    return lambda: len(listed) >= wanted


class Drained:
    """An input, its ring, and the received bytes."""

    def __init__(self, source: ArchiveInput, ring: Ring, arrived: Signal) -> None:
        self.source = source
        self.content = bytearray()
        self.ring = ring
        self._arrived = arrived

    def until(self, condition: Callable[[], bool]) -> None:
        """Drain the ring until the condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, self.source.error
            while (wal_slice := self.ring.peek()) is not None:
                self.content += wal_slice.data
                self.ring.release(len(wal_slice.data))
            self._arrived.wait(0.05)


def system_of(node: Cluster) -> SystemIdentifier:
    (row,) = node.sql("SELECT system_identifier FROM pg_control_system()")
    return SystemIdentifier(int(str(row[0])))


@contextmanager
def following(
    folder: Path, start_lsn: Lsn, system: SystemIdentifier, timeline: int = 1, *, dsn: str = NO_NODE
) -> Iterator[Drained]:
    progress, arrived = Progress(received_lsn=start_lsn), Signal()
    ring = WatchedRing(progress)
    source = ArchiveInput(
        folder,
        ring,
        system_identifier=system,
        timeline=TimelineId(timeline),
        progress=progress,
        arrived=arrived,
        metrics=Metrics("main"),
        log=get_log("test"),
        dsn=dsn,
    )
    source.start()
    try:
        yield Drained(source, ring, arrived)
    finally:
        source.stop()


def whole(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if len(path.name) == 24)


def test_segments_are_followed_as_the_server_archives_them(archive: ArchivingServer) -> None:
    spool = archive.spool.folder
    first = ArchiveFolder(spool).first_lsn()
    with following(spool, first, system_of(archive.node)) as drained:
        for _ in range(4):
            archive.switch()
            archive.wait_until_archived()
            expected = whole(spool)
            drained.until(lambda: len(drained.content) >= len(expected))  # noqa: B023 - called at once
            assert drained.content == expected
        assert drained.source.error is None


def test_a_slice_counts_as_received_before_the_ring_has_it(copy: Path) -> None:
    archive = ArchiveFolder(copy)
    with following(copy, archive.first_lsn(), archive.system_identifier) as drained:
        drained.until(lambda: drained.source.error is not None or len(drained.content) >= MB)
        assert drained.source.error is None


def test_an_empty_folder_is_waited_for_and_a_partial_segment_is_not_read(copy: Path, tmp_path: Path) -> None:
    segments = sorted(path for path in copy.iterdir() if len(path.name) == 24)
    empty = tmp_path / "empty"
    empty.mkdir()
    archive = ArchiveFolder(copy)
    with following(empty, archive.first_lsn(), archive.system_identifier) as drained:
        partial = empty / f"{segments[0].name}.partial"
        shutil.copy(segments[0], partial)
        shutil.copy(segments[1], empty / f"{segments[1].name}.partial")
        drained.until(lambda: not drained.content)
        partial.rename(empty / segments[0].name)
        drained.until(lambda: len(drained.content) >= MB)
        assert drained.content == segments[0].read_bytes()


def test_a_folder_that_has_just_changed_is_not_listed_again_and_again(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mtime proves nothing yet; where a primary archives a segment a second it never does."""
    listed = record_listings(monkeypatch)
    archive, content = ArchiveFolder(copy), whole(copy)
    begun_s = time.monotonic()
    (copy / "some.backup").touch()
    with following(copy, archive.first_lsn(), archive.system_identifier) as drained:
        drained.until(lambda: len(drained.content) == len(content))
        drained.until(lambda: time.monotonic() - begun_s > 3 * POLL_S)
        assert 2 <= len(listed) <= 2 + (time.monotonic() - begun_s) / POLL_S


@pytest.mark.feature("I28")
def test_a_missing_segment_ends_reading_with_the_range_of_lsns(copy: Path) -> None:
    archive = ArchiveFolder(copy)
    first = archive.first_lsn()
    sorted(path for path in copy.iterdir() if len(path.name) == 24)[1].unlink()
    with following(copy, first, archive.system_identifier) as drained:
        drained.until(lambda: drained.source.error is not None)
        assert isinstance(drained.source.error, Hole)
        assert f"from {format_lsn(first + MB)} to {format_lsn(first + 2 * MB)}" in str(drained.source.error)


def test_a_segment_that_arrives_after_its_successor_is_waited_for_a_while(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = record_listings(monkeypatch)
    archive = ArchiveFolder(copy)
    *before, late, _ = sorted(path for path in copy.iterdir() if len(path.name) == 24)
    content = whole(copy)
    aside = shutil.move(late, tmp_path / late.name)
    with following(copy, archive.first_lsn(), archive.system_identifier) as drained:
        drained.until(lambda: len(drained.content) >= len(before) * MB)
        drained.until(until_listed_again(listed))
        assert drained.source.error is None
        shutil.move(aside, late)
        drained.until(lambda: len(drained.content) == len(content))
        assert drained.content == content


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_segment_that_is_written_in_place_is_waited_for_until_it_is_complete(
    copy: Path, monkeypatch: pytest.MonkeyPatch, *, is_packed: bool
) -> None:
    listed = record_listings(monkeypatch)
    archive = ArchiveFolder(copy)
    *_, last = sorted(path for path in copy.iterdir() if len(path.name) == 24)
    complete_bytes, content = last.read_bytes(), whole(copy)
    if is_packed:
        last.unlink()
        last, complete_bytes = last.with_name(f"{last.name}.gz"), gzip.compress(complete_bytes)
    last.write_bytes(complete_bytes[: len(complete_bytes) // 2])
    with following(copy, archive.first_lsn(), archive.system_identifier) as drained:
        drained.until(lambda: len(drained.content) >= len(content) - MB)
        drained.until(until_listed_again(listed))
        assert drained.source.error is None
        last.write_bytes(complete_bytes)
        drained.until(lambda: len(drained.content) == len(content))
        assert drained.content == content


@pytest.mark.feature("I33")
def test_a_branch_that_left_before_what_was_read_is_refused_and_one_behind_it_is_followed(copy: Path) -> None:
    archive = ArchiveFolder(copy)
    first, system = archive.first_lsn(), archive.system_identifier
    segments = sorted(path for path in copy.iterdir() if len(path.name) == 24)
    left_lsn = Lsn(first + MB + 8192)
    (copy / "00000002.history").write_text(f"1\t{format_lsn(left_lsn)}\tno recovery target specified\n")
    shutil.copy(segments[1], copy / segments[1].name.replace("00000001", "00000002", 1))
    with following(copy, first, system) as drained:
        drained.until(lambda: len(drained.content) >= 2 * MB)
        assert drained.source.error is None
    with following(copy, Lsn(first + 2 * MB), system) as drained:
        drained.until(lambda: drained.source.error is not None)
        assert isinstance(drained.source.error, DeadBranchDelivered)
    with following(copy, first, system, timeline=7) as drained:
        drained.until(lambda: drained.source.error is not None)
        assert isinstance(drained.source.error, DeadBranchDelivered)


@pytest.mark.feature("I33")
def test_a_branch_of_another_server_is_ignored_while_the_node_is_on_the_branch_that_was_read(
    archive: ArchivingServer, copy: Path
) -> None:
    first, system, node = ArchiveFolder(copy).first_lsn(), system_of(archive.node), archive.node
    segments = sorted(path for path in copy.iterdir() if len(path.name) == 24)
    late = [(path, path.read_bytes()) for path in segments[-1:]]
    segments[-1].unlink()
    left_lsn = format_lsn(Lsn(first + MB + 8192))
    (copy / "00000002.history").write_text(f"1\t{left_lsn}\tno recovery target specified\n")
    for segment in segments[1:-1]:
        shutil.copy(segment, copy / segment.name.replace("00000001", "00000002", 1))
    read_lsn = Lsn(first + 2 * MB)
    with following(copy, read_lsn, system, dsn=node.dsn()) as drained:
        drained.until(lambda: len(drained.content) == MB * (len(segments) - 3))
        for path, content in late:
            path.write_bytes(content)
        drained.until(lambda: len(drained.content) == MB * (len(segments) - 2))
        assert drained.content == b"".join(path.read_bytes() for path in segments[2:])
        assert drained.source.error is None
    with following(copy, read_lsn, system) as drained:
        drained.until(lambda: drained.source.error is not None)
        error = drained.source.error
        assert isinstance(error, DeadBranchDelivered)
        for words in (f"timeline 2 of {copy} left at {left_lsn} timeline 1", format_lsn(read_lsn), "does not answer"):
            assert words in str(error)
        assert f"move {copy}/00000002* out of the archive" in error.hint
        assert "cdcctl rewind" in error.hint


@pytest.mark.feature("I33")
@pytest.mark.parametrize("answers", [True, False])
def test_a_branch_that_begins_after_the_wal_that_was_read_is_followed_unless_the_node_is_not_on_it(
    archive: ArchivingServer, copy: Path, *, answers: bool
) -> None:
    first, system, node = ArchiveFolder(copy).first_lsn(), system_of(archive.node), archive.node
    segments = sorted(path for path in copy.iterdir() if len(path.name) == 24)
    (copy / "00000002.history").write_text(f"1\t{format_lsn(Lsn(first + MB + 8192))}\tno recovery target specified\n")
    for segment in segments[1:]:
        other = bytearray(segment.read_bytes())
        other[MB - 8192 :] = b"\xff" * 8192
        (copy / segment.name.replace("00000001", "00000002", 1)).write_bytes(other)
    with following(copy, first, system, dsn=node.dsn() if answers else NO_NODE) as drained:
        drained.until(lambda: len(drained.content) == MB * len(segments))
        assert drained.source.error is None
        assert (b"\xff" * 8192 in drained.content) is not answers


def test_the_archive_of_another_cluster_is_refused(copy: Path) -> None:
    with following(copy, ArchiveFolder(copy).first_lsn(), SystemIdentifier(5)) as drained:
        drained.until(lambda: drained.source.error is not None)
        assert isinstance(drained.source.error, ForeignArchive)


def test_a_stop_ends_reading_although_the_ring_is_full(copy: Path) -> None:
    archive = ArchiveFolder(copy)
    with following(copy, archive.first_lsn(), archive.system_identifier) as drained:
        deadline = time.monotonic() + DEADLINE_S
        while drained.ring.free_bytes >= SLICE_BYTES_MAX:
            assert time.monotonic() < deadline
    assert drained.content == b""
    assert drained.source.error is None


def test_a_segment_that_is_removed_after_the_listing_is_a_hole(copy: Path) -> None:
    archive = ArchiveFolder(copy)
    first, *_ = sorted(path for path in copy.iterdir() if len(path.name) == 24)
    start_lsn = archive.first_lsn()
    first.unlink()
    with pytest.raises(Hole, match="is not in"):
        list(archive.read_what_is_there(start_lsn))
    assert ArchiveFolder(copy).first_lsn() > start_lsn
