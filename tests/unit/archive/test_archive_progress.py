"""The segments that will not arrive by themselves, by the content of the folder and the node's answers."""

from dataclasses import replace
from pathlib import Path

from tidemark.io.archive.archive_progress import Missing, Unrecorded, is_off_over, missing, unrecorded
from tidemark.io.archive.archive_state import ArchiveState, SegmentRun, WalSpan
from tidemark.io.archive.hole_ledger import GivenUp
from tidemark.io.host.folder_changes import FolderView
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId
from tidemark.wal.segments import segment_name

SIZE = 1 << 20
FIRST = TimelineId(1)


def at(segment: float) -> Lsn:
    return Lsn(int(segment * SIZE))


def name(number: int) -> str:
    return segment_name(FIRST, number, SIZE)


def folder(*stretches: tuple[int, int], holes: tuple[int, ...] = ()) -> ArchiveState:
    """Return a spool with these segments, each range from its first one up to before its last one."""
    return ArchiveState(
        folder=Path("spool"),
        segment_bytes=SIZE,
        is_ours=True,
        file_count=0,
        byte_count=0,
        free_bytes=0,
        runs=(),
        timeline=FIRST if stretches else None,
        path=tuple(WalSpan(at(first), at(behind)) for first, behind in stretches),
        holes=tuple(GivenUp(name(hole), "given up", 0) for hole in holes),
        given_up=len(holes),
        failing_s=None,
        view=FolderView(device=1, inode=1, mtime_ns=0, at_s=0.0, since_s=0.0),
    )


def test_segments_are_missing_up_to_the_end_of_archive_mode_off_or_up_to_a_later_segment() -> None:
    assert missing(folder(), FIRST, at(3.5), INVALID_LSN) == Missing()
    assert missing(folder(), FIRST, at(3.5), at(3)) == Missing()
    assert missing(folder(), FIRST, at(3.5), at(5)) == Missing(name(3), 2)
    assert missing(folder((1, 4)), FIRST, at(3.5), at(6)) == Missing(name(4), 2)
    assert missing(folder((1, 3), (6, 8)), FIRST, at(2.5), INVALID_LSN) == Missing(name(3), 3)
    assert missing(folder((6, 8)), FIRST, at(2.5), at(4)) == Missing(name(2), 4)
    assert missing(folder((1, 3), (6, 8)), FIRST, at(6.5), at(4)) == Missing()


def test_segments_that_never_arrived_have_the_names_of_their_own_timeline() -> None:
    archived = segment_name(TimelineId(3), 9, SIZE)
    assert unrecorded(folder(), archived, at(3.5), FIRST) == Unrecorded(name(3), 7)
    assert unrecorded(folder(), archived, at(3.5)) == Unrecorded(segment_name(TimelineId(3), 3, SIZE), 7)
    second = segment_name(TimelineId(2), 6, SIZE)
    found = replace(folder((1, 7)), runs=(SegmentRun(TimelineId(2), second, second),))
    assert unrecorded(found, archived, at(3.5), FIRST) == Unrecorded(segment_name(TimelineId(2), 7, SIZE), 3)


def test_the_time_with_archive_mode_off_is_over_once_delivery_and_the_archive_are_past_it() -> None:
    assert not is_off_over(folder((1, 9)), at(9), INVALID_LSN), "it is off"
    assert not is_off_over(folder((1, 9)), at(4.5), at(5))
    assert not is_off_over(folder((1, 4)), at(9), at(5))
    assert is_off_over(folder((1, 5)), at(5), at(5))
    assert is_off_over(folder((6, 9), holes=(5,)), at(7), at(5))


def test_segments_that_were_given_up_are_holes_and_not_missing_as_well() -> None:
    assert missing(folder((1, 3), (6, 8), holes=(3, 5)), FIRST, at(2.5), INVALID_LSN) == Missing(name(4), 1)
    assert missing(folder((1, 3), (6, 8), holes=(3, 4, 5)), FIRST, at(2.5), INVALID_LSN) == Missing()
    assert missing(folder(holes=(3,)), FIRST, at(3.5), at(5)) == Missing(name(4), 1)
