"""The progress of archiving from the node: WAL that waits, and WAL that never arrived (I25, I28, I31).

It compares names and positions only: of a listing of the folder, and of the node's report from before that listing.
"""

from dataclasses import dataclass

from tidemark.io.archive.archive_state import ArchiveState
from tidemark.io.node.node import NodeArchiving
from tidemark.model.lsn import INVALID_LSN, Lsn, SegmentNo, TimelineId
from tidemark.wal.segments import parse_segment_name, segment_name, segment_of, segment_start


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """Segments that the server reports as archived and that are neither in the folder nor recorded as holes."""

    first: str = ""
    count: int = 0


def unrecorded(
    found: ArchiveState, archived_file: str, begin_lsn: Lsn, timeline: TimelineId | None = None
) -> Unrecorded:
    """Return the unrecorded segments from `begin_lsn` of a timeline on, by default that of `archived_file`.

    `found` must be newer than the node's report of `archived_file`.
    """
    archived = parse_segment_name(archived_file, found.segment_bytes)
    if archived is None or not found.is_ours:
        return Unrecorded()
    archived_timeline, last = archived
    timeline, first = timeline or archived_timeline, segment_of(begin_lsn, found.segment_bytes)
    newest = parse_segment_name(max((run.last for run in found.runs), default=""), found.segment_bytes)
    if newest is not None:
        if newest[0] > archived_timeline:
            return Unrecorded()
        timeline, first = newest[0], max(first, SegmentNo(newest[1] + 1))
    recorded = sum(first <= number <= last for number in _given_up(found))
    count = max(0, last + 1 - first - recorded)
    return Unrecorded(segment_name(timeline, first, found.segment_bytes), count) if count else Unrecorded()


@dataclass(frozen=True, slots=True)
class Missing:
    """Segments that delivery needs and that will not arrive without an action."""

    first: str = ""
    count: int = 0


def missing(found: ArchiveState, timeline: TimelineId, restart_lsn: Lsn, off_lsn: Lsn) -> Missing:
    """Return the missing WAL from `restart_lsn` on: there are later segments, or archive_mode was off.

    Segments that are recorded as holes do not count. `off_lsn`: see `tidemark.wire.state.values.Archiving`.
    """
    gap = found.gap_after(restart_lsn)
    begin_lsn = gap.start_lsn if gap is not None else max(reached_lsn(found), restart_lsn)
    end_lsn = gap.end_lsn if gap is not None else off_lsn
    first = segment_of(begin_lsn, found.segment_bytes)
    behind = segment_of(end_lsn + found.segment_bytes - 1, found.segment_bytes)
    recorded = _given_up(found)
    while first in recorded:
        first = SegmentNo(first + 1)
    count = behind - first - sum(first <= number < behind for number in recorded)
    if count <= 0:
        return Missing()
    return Missing(segment_name(found.timeline or timeline, first, found.segment_bytes), count)


def has_no_filler(node: NodeArchiving, found: ArchiveState, filled_by: str) -> bool:
    """Return whether the server is to fill our spool but has archive_mode off; False (unknown) for a standby."""
    is_the_servers = found.is_ours and filled_by == "archive_command"
    return is_the_servers and not node.is_on and node.insert_lsn != INVALID_LSN


def is_off_over(found: ArchiveState, restart_lsn: Lsn, on_lsn: Lsn) -> bool:
    """Return whether no WAL from before archive_mode was on again is needed or still to arrive."""
    return on_lsn != INVALID_LSN and min(restart_lsn, reached_lsn(found)) >= on_lsn


def waiting_segments(found: ArchiveState, insert_lsn: Lsn, beginning_lsn: Lsn) -> int:
    """Return how many completed segments of the node are neither in the archive nor recorded as holes."""
    reached = segment_of(max(reached_lsn(found), beginning_lsn), found.segment_bytes)
    return max(0, segment_of(insert_lsn, found.segment_bytes) - reached)


def reached_lsn(found: ArchiveState) -> Lsn:
    """Return the end of the archive, or of the recorded holes if that is later."""
    behind = [segment_start(SegmentNo(number + 1), found.segment_bytes) for number in _given_up(found)]
    return max([found.end_lsn or INVALID_LSN, *behind])


def _given_up(found: ArchiveState) -> set[SegmentNo]:
    """Return the numbers of the segments that are recorded as holes."""
    parsed = (parse_segment_name(hole.name, found.segment_bytes) for hole in found.holes)
    return {each[1] for each in parsed if each is not None}
