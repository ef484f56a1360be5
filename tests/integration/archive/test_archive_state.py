"""The state of an archive folder: runs, gaps on the way to the latest timeline, and the ledger's holes."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidemark.io.archive.archive_listing import ArchiveListing
from tidemark.io.archive.archive_state import ArchiveState, NoArchive, SegmentRun, WalSpan, archive_state
from tidemark.io.archive.hole_ledger import HoleLedger
from tidemark.io.archive.spool import Spool
from tidemark.io.host.folder_changes import MTIME_TICK_S_MAX, UNSHOWN_S
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.wal.segments import segment_name

MB = 1 << 20
FILES = 20_000
DEADLINE_S = 60.0
LISTED_S = 4.0  # of CPU time; it takes 0.3


def name(number: int, timeline: int = 1) -> str:
    return segment_name(timeline, number, MB)


def fill(folder: Path, *numbers: int, timeline: int = 1, more: str = "") -> None:
    for number in numbers:
        (folder / (name(number, timeline) + more)).write_bytes(b"x" * 10)


def stretch(first: int, behind: int) -> WalSpan:
    return WalSpan(Lsn(first), Lsn(behind))


def taken(folder: Path) -> ArchiveState:
    return archive_state(folder, MB)


def test_a_folder_is_described_by_runs_files_bytes_and_owner(tmp_path: Path) -> None:
    fill(tmp_path, 3, 4, 7, 8, 9)
    fill(tmp_path, 10, more=".gz")
    fill(tmp_path, 11, more=".partial")
    (tmp_path / "letter.txt").write_text("not counted")
    state = taken(tmp_path)
    assert not state.is_ours
    assert (state.file_count, state.byte_count) == (7, 5 * MB + 20), "a whole segment has a segment's size"
    assert state.free_bytes > 0
    assert state.runs == (SegmentRun(TimelineId(1), name(3), name(4)), SegmentRun(TimelineId(1), name(7), name(10)))
    assert state.path == (stretch(3 * MB, 5 * MB), stretch(7 * MB, 11 * MB))
    assert (state.holes, state.given_up, state.failing_s) == ((), 0, None)


def test_a_gap_is_the_missing_wal_from_an_lsn_to_the_next_segment(tmp_path: Path) -> None:
    fill(tmp_path, 3, 4, 7, 8)
    state = taken(tmp_path)
    for lsn, gap in (
        (MB, stretch(MB, 3 * MB)),
        (3 * MB + 5, stretch(5 * MB, 7 * MB)),
        (5 * MB, stretch(5 * MB, 7 * MB)),
        (6 * MB + 5, stretch(6 * MB + 5, 7 * MB)),
        (7 * MB, None),
        (8 * MB + 9, None),
        (20 * MB, None),
    ):
        assert state.gap_after(Lsn(lsn)) == gap
    assert state.names_in(stretch(5 * MB, 7 * MB)) == [name(5), name(6)]
    assert state.names_in(stretch(6 * MB + 5, 7 * MB)) == [name(6)]


def test_gaps_are_found_along_the_timelines_that_recovery_follows_and_a_dead_branch_fills_none(tmp_path: Path) -> None:
    fill(tmp_path, 2, 3, 4, 5, 6, 7)  # the first timeline continued after the fork, in segment 4
    fill(tmp_path, 5, 7, timeline=2)
    (tmp_path / "00000002.history").write_text(f"1\t0/{4 * MB + 0x300:X}\tpromoted\n")
    state = taken(tmp_path)
    assert state.timeline == 2
    fork = 4 * MB + 0x300
    assert state.path == (stretch(2 * MB, fork), stretch(5 * MB, 6 * MB), stretch(7 * MB, 8 * MB))
    assert state.gap_after(Lsn(2 * MB)) == stretch(fork, 5 * MB)
    fill(tmp_path, 4, timeline=2)
    assert taken(tmp_path).gap_after(Lsn(2 * MB)) == stretch(6 * MB, 7 * MB)
    assert taken(tmp_path).names_in(stretch(6 * MB, 7 * MB)) == [name(6, 2)]


def test_files_that_were_given_up_are_reported_until_they_are_there_and_failure_while_it_lasts(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.create(7)
    assert taken(spool.folder).failing_s is None
    with HoleLedger.open(spool.ledger, writable=True) as ledger:
        ledger.record_failure()
        ledger.give_up(name(3), "full")
        ledger.give_up(name(4), "full")
        state = taken(spool.folder)  # while the ledger is locked, as by a hanging copy
    assert state.is_ours
    assert [(hole.name, hole.reason) for hole in state.holes] == [(name(3), "full"), (name(4), "full")]
    assert state.failing_s is not None
    assert 0 < state.failing_s < 60
    fill(spool.folder, 3)
    with HoleLedger.open(spool.ledger, writable=True) as ledger:
        ledger.record_success()
    state = taken(spool.folder)
    assert [hole.name for hole in state.holes] == [name(4)]
    assert (state.given_up, state.failing_s) == (2, None)


def test_a_folder_that_has_not_changed_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr("tidemark.io.host.folder_changes.time", SimpleNamespace(monotonic=lambda: clock.now_s))
    spool = Spool(tmp_path / "spool")
    spool.create(7)

    def filled(number: int, last: ArchiveState) -> ArchiveState:
        """Add a segment as if the folder had not changed."""
        fill(spool.folder, number)
        os.utime(spool.folder, ns=(0, 10**18))
        return archive_state(spool.folder, MB, last)

    os.utime(spool.folder, ns=(0, 10**18))
    first = filled(3, taken(spool.folder))
    assert first.file_count == 1, "a change of the same second would not be visible"
    clock.now_s += 2 * MTIME_TICK_S_MAX
    second = filled(4, first)
    assert second.file_count == 2, "such a change may have come after the first listing"
    clock.now_s += 5
    assert filled(5, second).file_count == 2
    with HoleLedger.open(spool.ledger, writable=True) as ledger:
        ledger.give_up(name(2), "full")
    third = filled(6, second)
    assert ([hole.name for hole in third.holes], third.file_count) == ([name(2)], 4)
    assert filled(7, third).file_count == 4
    clock.now_s += UNSHOWN_S
    assert filled(8, third).file_count == 6, "some file systems do not show every change"
    fill(spool.folder, 9)
    assert archive_state(spool.folder, MB, third).file_count == 7


def test_a_missing_folder_is_named_and_an_empty_one_is_no_error(tmp_path: Path) -> None:
    with pytest.raises(NoArchive, match="gone"):
        taken(tmp_path / "gone")
    state = taken(tmp_path)
    assert (state.runs, state.path, state.end_lsn, state.timeline) == ((), (), None, None)
    assert state.gap_after(Lsn(MB)) is None


@pytest.mark.parametrize("content", ["gone", "not a timeline\n"])
def test_a_history_file_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    fill(tmp_path, 3)
    history = tmp_path / "00000002.history"
    if content == "gone":
        history.symlink_to(tmp_path / "a disk that is away")
    else:
        history.write_text(content)
    with pytest.raises(NoArchive, match=r"00000002\.history cannot be read") as reported:
        taken(tmp_path)
    assert "fetch it again" in reported.value.hint


def test_a_listing_that_fails_counts_its_cpu_time(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / "00000002.history").mkdir()
    listing = ArchiveListing(tmp_path, MB)
    with pytest.raises(NoArchive, match="cannot be read"):
        listing.result(DEADLINE_S)
    assert listing.cpu_s > 0, "or a folder of many segments would be listed again at once"


def test_twenty_thousand_files_are_listed_quickly(tmp_path: Path) -> None:
    for number in range(FILES):
        (tmp_path / name(number)).touch()
    began_s = time.process_time()
    state = taken(tmp_path)
    assert time.process_time() - began_s < LISTED_S
    assert state.path == (stretch(0, FILES * MB),)
