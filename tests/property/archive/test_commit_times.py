"""A range by time over commit records whose times go back, as after a clock was set: no commit is missed."""

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.forged.wal import SEGMENT, SYSTEM, WalWriter, body
from tidemark.io.archive.archive import ArchiveFolder, Hole
from tidemark.io.state.history_files import NoBase
from tidemark.model.commit_time import CommitTime, InvalidTime, parse_commit_time
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.runtime.replay.archive_blocks import archived_blocks
from tidemark.runtime.replay.commit_times import CLOCK_BACK_S, RecordedEnd, TimeRange, begin_lsn, transaction_ends
from tidemark.runtime.replay.history_start import WalTrimmed
from tidemark.wal.rmgr import RM_XACT, xact
from tidemark.wal.segments import segment_name
from tidemark.wire.state import BaseEntry, HistoryIndex

POSTGRES_EPOCH_S = 946_684_800
NOON = parse_commit_time("2026-11-22T12:00:00Z")
SECOND = 1_000_000


def commit_record(time: CommitTime) -> bytes:
    return body(struct.pack("<q", time.us - POSTGRES_EPOCH_S * SECOND))


def archive_of(folder: Path, times: list[CommitTime]) -> tuple[ArchiveFolder, list[RecordedEnd]]:
    """Write an archive with commits, aborts, and other records between them."""
    writer = WalWriter()
    ends = []
    for number, time in enumerate(times):
        writer.add(body(b"row" * 50), xid=700 + number)
        info = xact.ABORT if number % 3 == 2 else xact.COMMIT
        lsn = writer.add(commit_record(time), rmgr=RM_XACT, info=info, xid=700 + number)
        ends.append(RecordedEnd(lsn, time))
    writer.switch()
    (folder / segment_name(1, 1, SEGMENT)).write_bytes(bytes(writer.data))
    return ArchiveFolder(folder, of=SystemIdentifier(SYSTEM)), ends


@st.composite
def clocks(draw: st.DrawFn) -> list[CommitTime]:
    """Return times, none of which is earlier than a previous one by more than `CLOCK_BACK_S`."""
    steps = draw(st.lists(st.integers(-CLOCK_BACK_S, 2 * CLOCK_BACK_S), min_size=1, max_size=20))
    latest = NOON.us
    times: list[int] = []
    for step in steps:
        time = max(latest - CLOCK_BACK_S * SECOND, (times[-1] if times else latest) + step * SECOND)
        latest = max(latest, time)
        times.append(time)
    return [CommitTime(time) for time in times]


@settings(max_examples=150)
@given(clocks(), st.data())
def test_decoding_begins_before_all_that_commits_in_the_range_and_ends_behind_it(
    times: list[CommitTime], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as made:
        archive, ends = archive_of(Path(made), times)
        chosen = data.draw(st.sets(st.integers(0, len(ends) - 1), min_size=1, max_size=4))
        bases = [ends[number].lsn for number in sorted(chosen)]
        index = HistoryIndex(tuple(BaseEntry(f"base-{lsn}", TimelineId(1), lsn, lsn, 1) for lsn in bases))
        wanted = CommitTime(data.draw(st.sampled_from(times)).us + data.draw(st.integers(-1, 1)))
        behind = [end for end in ends if end.lsn >= bases[0]]
        if behind[0].time >= wanted:
            with pytest.raises(NoBase, match=str(wanted)):
                begin_lsn(archive, index, wanted)
        else:
            begin = begin_lsn(archive, index, wanted)
            assert begin >= bases[0]
            assert all(end.time < wanted for end in behind if end.lsn < begin)
        span = TimeRange(to_time=wanted)
        for number, end in enumerate(ends):
            if span.is_passed:
                assert all(later.time >= wanted for later in ends[number:])
                break
            for block in archived_blocks(archive, end.lsn):
                block.count = 1
                span.read(block)
                break
        assert span.is_reached == any(end.time >= wanted for end in ends) or span.is_passed
        assert span.set_back is None


def test_wal_that_is_trimmed_or_not_archived_yet_is_passed_over_and_the_key_is_named(tmp_path: Path) -> None:
    writer, lsns, hour = WalWriter(), [], 3600 * SECOND
    times = [CommitTime(NOON.us + number * hour) for number in range(4)]
    for time in times:  # a segment each
        lsns.append(writer.add(commit_record(time), rmgr=RM_XACT, info=xact.COMMIT, xid=700))
        writer.switch()
    content = bytes(writer.data)
    for number in (1, 2):  # the first is trimmed, the last not archived yet
        (tmp_path / segment_name(1, number + 1, SEGMENT)).write_bytes(
            content[number * SEGMENT : (number + 1) * SEGMENT]
        )
    archive = ArchiveFolder(tmp_path, of=SystemIdentifier(SYSTEM))

    def index(*bases: Lsn) -> HistoryIndex:
        return HistoryIndex(tuple(BaseEntry(f"base-{lsn}", TimelineId(1), lsn, lsn, 1) for lsn in bases))

    assert begin_lsn(archive, index(lsns[0], lsns[3]), times[2]) == lsns[2]
    assert begin_lsn(archive, index(lsns[1], lsns[3]), times[2]) == lsns[2]
    with pytest.raises(WalTrimmed, match=f"no WAL for {times[0]}: it begins with {times[1]}") as refused:
        begin_lsn(archive, index(lsns[0]), times[0])
    assert "archive.keep_bytes" in refused.value.hint
    with pytest.raises(NoBase, match=str(times[0])):
        begin_lsn(archive, index(lsns[1], lsns[3]), times[0])
    with pytest.raises(Hole):
        begin_lsn(archive, index(lsns[3]), times[2])


def test_all_ends_of_transactions_are_found_with_their_times(tmp_path: Path) -> None:
    times = [CommitTime(NOON.us + number) for number in range(200)]
    archive, ends = archive_of(tmp_path, times)
    assert [end for block in archived_blocks(archive, Lsn(SEGMENT)) for end in transaction_ends(block)] == ends


def test_a_clock_that_was_set_back_farther_than_is_read_is_reported(tmp_path: Path) -> None:
    back = NOON.earlier_by(CLOCK_BACK_S + 1)
    archive, ends = archive_of(tmp_path, [NOON, back, NOON])
    span = TimeRange(from_time=back)
    for block in archived_blocks(archive, Lsn(SEGMENT)):
        span.read(block)
    assert span.set_back == ends[1]


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-22T14:00:00+01:00", 1_795_352_400 * SECOND),
        ("2026-11-22 13:00:00.000001+00", 1_795_352_400 * SECOND + 1),
    ],
)
def test_times_are_read_as_iso_8601_and_as_postgresql_prints_them(text: str, us: int) -> None:
    assert parse_commit_time(text) == CommitTime(us)
    assert parse_commit_time(str(CommitTime(us))) == CommitTime(us)


@pytest.mark.parametrize("text", ["2026-11-22T14:00:00", "2026-11-22", "yesterday", "14:00", ""])
def test_a_time_without_a_zone_or_none_at_all_is_refused(text: str) -> None:
    with pytest.raises(InvalidTime) as caught:
        parse_commit_time(text)
    assert "2026-11-22T14:00:00+01:00" in caught.value.hint
