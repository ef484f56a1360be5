"""The sidecar's wait for the archive: as long as anything advances, up to its limit."""

from dataclasses import replace

import pytest

from tidemark.engine.archive_wait import ArchiveProgress, ArchiveWait
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Position

SEGMENT_BYTES = 1 << 20
SEEN = ArchiveProgress(
    Position(TimelineId(1), Lsn(5 * SEGMENT_BYTES), 0), Lsn(6 * SEGMENT_BYTES), archiver_is_alive=True
)


def later(seen: ArchiveProgress) -> ArchiveProgress:
    """Return the observation after one more delivered transaction."""
    assert seen.delivered is not None
    return replace(seen, delivered=replace(seen.delivered, commit_lsn=Lsn(seen.delivered.commit_lsn + 8)))


@pytest.mark.parametrize("lives", [True, False])
@pytest.mark.parametrize("archived_lsn", [SEEN.archived_lsn, None])
def test_the_wait_ends_when_nothing_has_advanced_for_its_bound(*, lives: bool, archived_lsn: Lsn | None) -> None:
    wait, seen = ArchiveWait(60, SEGMENT_BYTES), replace(SEEN, archiver_is_alive=lives, archived_lsn=archived_lsn)
    assert [wait.is_over(seen, now_s) for now_s in (100, 159.9, 160)] == [False, False, True]


def test_each_advance_of_archive_or_delivery_restarts_the_wait() -> None:
    wait = ArchiveWait(60, SEGMENT_BYTES)
    assert not wait.is_over(SEEN, 0)
    assert not wait.is_over(later(SEEN), 59)
    assert not wait.is_over(replace(later(SEEN), archived_lsn=Lsn(7 * SEGMENT_BYTES)), 118)
    assert not wait.is_over(replace(later(SEEN), archived_lsn=Lsn(7 * SEGMENT_BYTES)), 177)


def test_a_running_archiver_with_wal_to_read_is_waited_for() -> None:
    wait = ArchiveWait(60, SEGMENT_BYTES)
    behind = replace(SEEN, archived_lsn=Lsn(6 * SEGMENT_BYTES + 1))
    assert not any(wait.is_over(behind, now_s) for now_s in (0, 60, 6000))
    dead = replace(behind, archiver_is_alive=False)
    assert wait.is_over(dead, 6000)


def test_the_wait_begins_again_after_a_restart() -> None:
    wait = ArchiveWait(60, SEGMENT_BYTES)
    assert not wait.is_over(SEEN, 0)
    wait.restart()
    assert [wait.is_over(SEEN, now_s) for now_s in (60, 119, 120)] == [False, False, True]


def test_the_whole_archive_is_unread_if_nothing_was_delivered() -> None:
    wait = ArchiveWait(60, SEGMENT_BYTES)
    nothing = replace(SEEN, delivered=None)
    assert not any(wait.is_over(nothing, now_s) for now_s in (0, 60))
