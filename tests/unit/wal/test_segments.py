import pytest

from tidemark.model.lsn import Lsn, TimelineId
from tidemark.wal.segments import (
    SEGMENT_BYTES_DEFAULT,
    BadHistory,
    FileKind,
    TimelineSpan,
    WalSlice,
    file_kind,
    history_name,
    is_segment_size,
    parse_history,
    parse_segment_name,
    segment_name,
    segment_of,
    segment_start,
)

MB = 1 << 20


@pytest.mark.parametrize(
    ("timeline", "lsn", "segment_bytes", "name"),
    [
        (1, 0x1000000, 16 * MB, "000000010000000000000001"),
        (1, 0xFFFFFFFF, 16 * MB, "0000000100000000000000FF"),
        (2, 0x100000000, 16 * MB, "000000020000000100000000"),
        (10, 0xAB_CDEF0123, 16 * MB, "0000000A000000AB000000CD"),
        (1, 0x1_FFFFFFFF, MB, "000000010000000100000FFF"),
        (1, 0x1_C0000000, 1 << 30, "000000010000000100000003"),
    ],
)
def test_a_segment_name_is_what_the_server_calls_the_file(
    timeline: int, lsn: int, segment_bytes: int, name: str
) -> None:
    segment = segment_of(lsn, segment_bytes)
    assert segment_name(timeline, segment, segment_bytes) == name
    assert parse_segment_name(name, segment_bytes) == (timeline, segment)
    assert segment_start(segment, segment_bytes) == lsn // segment_bytes * segment_bytes


@pytest.mark.parametrize(
    "name",
    ["", "00000001000000000000000", "0000000100000000000000ZZ", "00000001000000000000010a", "000000000000000000000001",
     "000000010000000000000100", "000000010000000000000001.partial"],
)  # fmt: skip
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_segment_name(name, SEGMENT_BYTES_DEFAULT) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("000000010000000000000001", FileKind.SEGMENT),
        ("000000010000000000000001.partial", FileKind.PARTIAL),
        ("00000002.history", FileKind.HISTORY),
        ("000000010000000000000001.00000028.backup", FileKind.BACKUP),
        ("000000010000000000000001.gz", FileKind.OTHER),
        ("archive_status", FileKind.OTHER),
        ("00000002", FileKind.OTHER),
        ("00000002.histor", FileKind.OTHER),
    ],
)
def test_a_name_gives_the_kind_of_a_file(name: str, kind: FileKind) -> None:
    assert file_kind(name) is kind


def test_segment_sizes_are_powers_of_two_between_1_mb_and_1_gb() -> None:
    assert [size for size in (0, 1, MB // 2, MB, 3 * MB, 16 * MB, 1 << 30, 2 << 30) if is_segment_size(size)] == [
        MB, 16 * MB, 1 << 30
    ]  # fmt: skip


def test_a_slice_of_wal_has_its_end() -> None:
    assert WalSlice(Lsn(100), b"12345", TimelineId(1)).end_lsn == 105


HISTORY = """1\t0/3000148\tno recovery target specified

# a comment of an administrator
2\t0/5000000\tbefore 2000-01-01 00:00:00+00
"""


def test_a_history_gives_the_timeline_of_a_byte() -> None:
    history = parse_history(HISTORY, 5)
    assert history.spans == (
        TimelineSpan(TimelineId(1), Lsn(0), Lsn(0x3000148)),
        TimelineSpan(TimelineId(2), Lsn(0x3000148), Lsn(0x5000000)),
        TimelineSpan(TimelineId(5), Lsn(0x5000000), None),
    )
    assert history.timeline == 5
    assert [history.timeline_at(lsn) for lsn in (0, 0x3000147, 0x3000148, 0x4FFFFFF, 0x5000000)] == [1, 1, 2, 2, 5]
    assert history.switch_lsn(2) == 0x5000000
    assert history.switch_lsn(5) is history.switch_lsn(3) is None
    forks = [history.fork_before(2, 0x5000000), history.fork_before(2, 0x5000001), history.fork_before(5, 0x5000001)]
    assert forks == [None, 0x5000000, None]
    assert 2 in history
    assert 3 not in history
    assert history_name(5) == "00000005.history"


def test_the_first_timeline_has_an_empty_history() -> None:
    assert parse_history("", 1).timeline_at(0x5000000) == 1


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("1 0/G", "line 1: not an LSN"),
        ("one 0/1", "not a timeline and an LSN"),
        ("1", "not a timeline and an LSN"),
        ("2 0/1\n1 0/2", "line 2: timeline 1 is out of order"),
        ("0 0/1", "timeline 0 is out of order"),
        ("5 0/1", "timeline 5 is out of order"),
        ("1 0/5\n2 0/4", "line 2: 0/4 is before the switch in the previous line"),
    ],
)
def test_an_invalid_history_is_refused_by_line(text: str, reported: str) -> None:
    with pytest.raises(BadHistory, match=reported):
        parse_history(text, 5)
