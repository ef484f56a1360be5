"""The gaps of an archive by names alone, compared with those that a reader finds: over any segments and a fork."""

import re
import struct
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.io.archive.archive import ArchiveFolder, Hole
from tidemark.io.archive.archive_state import WalSpan, archive_state
from tidemark.model.lsn import Lsn, TimelineId, format_lsn, parse_lsn
from tidemark.wal.segments import segment_name

MB = 1 << 20
CLUSTER = 7
MAGIC_15 = 0xD110
LONG_HEADER = struct.Struct("<HHIQI4xQII")
SEGMENTS = st.sets(st.integers(1, 9), max_size=8)


def forge(folder: Path, timeline: int, number: int) -> None:
    path = folder / segment_name(timeline, number, MB)
    path.write_bytes(LONG_HEADER.pack(MAGIC_15, 2, timeline, number * MB, 0, CLUSTER, MB, 8192))
    with path.open("r+b") as file:
        file.truncate(MB)


def read_gap(folder: Path, lsn: Lsn) -> WalSpan | None:
    """Return the gap at which a reader stops."""
    try:
        for _ in ArchiveFolder(folder, complete_only=True).read_what_is_there(lsn):
            pass
    except Hole as hole:
        found = re.search(r"from (\S+) to (\S+) is", str(hole))
        assert found is not None
        return WalSpan(parse_lsn(found[1]), parse_lsn(found[2]))
    return None


def read_from(folder: Path, lsn: Lsn, since: tuple[TimelineId, Lsn] | None) -> tuple[list[tuple[int, int, int]], str]:
    """Return the pieces that a reader yields, and where it stops."""
    pieces: list[tuple[int, int, int]] = []
    try:
        read = ArchiveFolder(folder, complete_only=True, since=since).read_what_is_there(lsn)
        pieces.extend((piece.start_lsn, len(piece.data), piece.timeline) for piece in read)
    except Hole as hole:
        return pieces, str(hole)
    return pieces, ""


@given(first=SEGMENTS, second=SEGMENTS, fork=st.integers(2 * MB, 8 * MB), lsn=st.integers(MB, 10 * MB - 1))
@example(first={1, 2}, second={2, 3}, fork=2 * MB + 100, lsn=6 * MB)
@example(first={1, 2}, second=set(), fork=2 * MB, lsn=6 * MB)
def test_segments_before_what_was_read_make_no_difference(
    first: set[int], second: set[int], fork: int, lsn: int
) -> None:
    if not first | second:
        return
    block = 4091  # segments of 1 MB: the upper half of the LSN grows with the fifth
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        for timeline, numbers in ((1, first), (2, second)):
            for number in numbers:
                forge(folder, timeline, block + number)
        fork_lsn, read_lsn = Lsn(fork + block * MB), Lsn(lsn + block * MB)
        if second:
            (folder / "00000002.history").write_text(f"1\t{format_lsn(fork_lsn)}\tpromoted\n")
        of = TimelineId(2 if second and read_lsn >= fork_lsn else 1)
        assert read_from(folder, read_lsn, (of, read_lsn)) == read_from(folder, read_lsn, None)


@given(first=SEGMENTS, second=SEGMENTS, fork=st.integers(2 * MB, 8 * MB), lsn=st.integers(MB, 10 * MB - 1))
@example(first={1, 2, 3}, second={4}, fork=3 * MB, lsn=MB)
@example(first={1, 2}, second={3}, fork=2 * MB + 100, lsn=MB)
@example(first={1}, second={1, 2}, fork=2 * MB + 1, lsn=MB)
def test_a_gap_by_names_is_where_a_reader_stops(first: set[int], second: set[int], fork: int, lsn: int) -> None:
    if not first | second:
        return
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        for timeline, numbers in ((1, first), (2, second)):
            for number in numbers:
                forge(folder, timeline, number)
        if second:
            (folder / "00000002.history").write_text(f"1\t0/{fork:X}\tpromoted\n")
        assert archive_state(folder, MB).gap_after(Lsn(lsn)) == read_gap(folder, Lsn(lsn))
