"""A range by time over commit records whose times go back, as after a clock was set: no commit is missed."""

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged.forged_records import block_of
from tests.support.forged.wal import SEGMENT, SYSTEM, WalWriter, body, record
from tests.unit.decoder.test_small_transactions import lines_outside_kernels
from tidemark.io.archive.archive import ArchiveFolder, Hole
from tidemark.io.state.history_files import NoBase
from tidemark.model.commit_time import CommitTime, InvalidTime, parse_commit_time
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.runtime.replay.archive_blocks import archived_blocks
from tidemark.runtime.replay.commit_times import (
    CLOCK_BACK_S,
    RecordedEnd,
    TimeRange,
    TransactionTimes,
    begin_lsn,
    first_end_lsn,
)
from tidemark.runtime.replay.history_start import WalTrimmed
from tidemark.wal.kernel import COMPILED
from tidemark.wal.rmgr import RM_XACT, xact
from tidemark.wal.segments import segment_name
from tidemark.wire.state.history_index import BaseEntry, HistoryIndex

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


@settings(max_examples=examples(150))
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
            first = next((end.lsn for end in behind if end.time >= wanted), None)
            assert first_end_lsn(archive, index, wanted) == first
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


def test_wal_that_is_trimmed_or_not_yet_archived_is_skipped_and_the_key_is_named(tmp_path: Path) -> None:
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
    blocks = [TransactionTimes(block) for block in archived_blocks(archive, Lsn(SEGMENT))]
    assert [block.end(number) for block in blocks for number in range(len(block))] == ends


@settings(max_examples=examples(150))
@given(clocks(), st.integers(0, 3 * CLOCK_BACK_S * SECOND))
def test_the_first_end_far_behind_the_latest_is_the_same_as_end_by_end(times: list[CommitTime], behind_us: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        archive, ends = archive_of(Path(made), times)
        (block,) = [TransactionTimes(block) for block in archived_blocks(archive, Lsn(SEGMENT))]
    for latest_us in (0, NOON.us, max(times).us):
        before = [max([latest_us, *(end.time.us for end in ends[:number])]) for number in range(len(ends))]
        behind = [end for end, latest in zip(ends, before, strict=True) if end.time.us < latest - behind_us]
        assert block.first_behind(latest_us, behind_us) == (behind[0] if behind else None)


@st.composite
def xact_records(draw: st.DrawFn) -> tuple[int, bytes]:
    """Return the info and the bytes of a record of a transaction, in one of the forms that servers write."""
    opcode = draw(st.sampled_from([xact.COMMIT, xact.ABORT, xact.COMMIT_PREPARED, xact.ABORT_PREPARED, 0x60, 0x50]))
    if opcode == xact.ASSIGNMENT:
        return opcode, body(struct.pack("<IiI", 690, 1, 701))
    time = draw(st.sampled_from([0, 1, NOON.us, -1, -(1 << 63), (1 << 63) - 1 - POSTGRES_EPOCH_S * SECOND]))
    subxids = [0] * draw(st.sampled_from([0, 1, 70]))
    flags, rest = (
        xact.HAS_DBINFO | xact.HAS_SUBXACTS,
        struct.pack(f"<IIi{len(subxids)}I", 5, 1663, len(subxids), *subxids),
    )
    if opcode in (xact.COMMIT_PREPARED, xact.ABORT_PREPARED):
        flags, rest = flags | 0x10, rest + struct.pack("<I", 690)
    elif draw(st.booleans()):
        return opcode, body(struct.pack("<q", time))
    origin = draw(st.sampled_from([None, 3]))
    if origin is not None:
        flags, rest = flags | 0x20, rest + struct.pack("<Qq", 0, 0)
    top_xid = draw(st.sampled_from([None, 690]))
    return opcode | xact.HAS_INFO, body(struct.pack("<qI", time, flags) + rest, origin=origin, top_xid=top_xid)


@given(st.lists(xact_records(), max_size=20))
def test_the_times_of_a_block_are_those_of_its_parsed_records(records: list[tuple[int, bytes]]) -> None:
    raws = [
        (Lsn(8 * number), Lsn(8 * number + 8), record(rest, rmgr=RM_XACT, info=info))
        for number, (info, rest) in enumerate(records)
    ]
    block = block_of(raws)
    parsed = [(one.lsn, xact.parse(one, block.format)) for one in block.records()]
    expected = [(lsn, found.time_us) for lsn, found in parsed if isinstance(found, xact.Commit | xact.Abort)]
    times = TransactionTimes(block)
    assert [(end.lsn, end.time.us) for end in map(times.end, range(len(times)))] == expected


@pytest.mark.skipif(not COMPILED, reason="interpreted kernels are Python")
def test_a_search_by_time_reads_no_commit_one_by_one(tmp_path: Path) -> None:
    lines = {}
    for count in (500, 2500):
        times = [CommitTime(NOON.us + number * SECOND) for number in range(count)]
        (folder := tmp_path / str(count)).mkdir()
        archive, ends = archive_of(folder, times)
        index = HistoryIndex((BaseEntry("base", TimelineId(1), ends[0].lsn, ends[0].lsn, 1),))
        wanted = CommitTime(times[-1].us + (CLOCK_BACK_S + 1) * SECOND)

        def search(archive: ArchiveFolder = archive, index: HistoryIndex = index, wanted: CommitTime = wanted) -> None:
            span = TimeRange(from_time=wanted)
            for block in archived_blocks(archive, begin_lsn(archive, index, wanted)):
                span.read(block)
            for block in archived_blocks(archive, Lsn(SEGMENT)):
                span.read(block)

        search()
        lines[count] = lines_outside_kernels(search)
    assert lines[2500] - lines[500] < 500, lines  # a quarter of a line for each


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
