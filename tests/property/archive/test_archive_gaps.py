"""The gaps of an archive by names alone, compared with those that a reader finds: over any segments and a fork."""

import re
import struct
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.io.archive.archive import ArchiveFolder, BadSegment, Hole, NoWal
from tidemark.io.archive.archive_state import WalSpan, archive_state
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId, format_lsn, parse_lsn
from tidemark.wal.segments import segment_name

MB = 1 << 20
CLUSTER, OTHER_CLUSTER = 7, 8
MAGIC_15 = 0xD110
LONG_HEADER = struct.Struct("<HHIQI4xQII")
SEGMENTS = st.sets(st.integers(1, 9), max_size=8)


def forge(folder: Path, timeline: int, number: int, cluster: int = CLUSTER) -> None:
    path = folder / segment_name(timeline, number, MB)
    path.write_bytes(LONG_HEADER.pack(MAGIC_15, 2, timeline, number * MB, 0, cluster, MB, 8192))
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
        archive = ArchiveFolder(folder, complete_only=True, of=SystemIdentifier(CLUSTER), since=since)
        pieces.append((archive.system_identifier, archive.segment_bytes, archive.history.timeline))
        read = archive.read_what_is_there(lsn)
        pieces.extend((piece.start_lsn, len(piece.data), piece.timeline) for piece in read)
    except (BadSegment, Hole, NoWal) as error:
        return pieces, str(error)
    return pieces, ""


BLOCK = 4091  # segments of 1 MB: the upper half of the LSN grows with the fifth


@given(
    first=SEGMENTS,
    second=SEGMENTS,
    empty=SEGMENTS,
    foreign=SEGMENTS,
    others=st.sets(st.sampled_from(("tidemark-spool.sentinel", f".{segment_name(1, BLOCK, MB)}.new"))),
    fork=st.integers(2 * MB, 8 * MB),
    lsn=st.integers(MB, 10 * MB),
    has_history=st.booleans(),
)
@example(
    first={1, 2},
    second={2, 3},
    empty=set(),
    foreign=set(),
    others=set(),
    fork=2 * MB + 100,
    lsn=6 * MB,
    has_history=True,
)
@example(first={4, 5}, second=set(), empty={5}, foreign=set(), others=set(), fork=2 * MB, lsn=5 * MB, has_history=True)
@example(first={4, 5}, second=set(), empty=set(), foreign={5}, others=set(), fork=2 * MB, lsn=5 * MB, has_history=True)
@example(first={3, 6}, second={4}, empty=set(), foreign=set(), others=set(), fork=3 * MB, lsn=5 * MB, has_history=False)
@example(
    first={4},
    second=set(),
    empty=set(),
    foreign=set(),
    others={"tidemark-spool.sentinel"},
    fork=3 * MB,
    lsn=5 * MB,
    has_history=True,
)
def test_segments_before_what_was_read_make_no_difference(
    first: set[int],
    second: set[int],
    *,
    empty: set[int],
    foreign: set[int],
    others: set[str],
    fork: int,
    lsn: int,
    has_history: bool,
) -> None:
    if not first | second:
        return
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        for timeline, numbers in ((1, first), (2, second)):
            for number in numbers:
                forge(folder, timeline, BLOCK + number, OTHER_CLUSTER if number in foreign else CLUSTER)
                if number in empty:
                    (folder / segment_name(timeline, BLOCK + number, MB)).write_bytes(b"")
        for file in others:
            (folder / file).touch()
        fork_lsn, read_lsn = Lsn(fork + BLOCK * MB), Lsn(lsn + BLOCK * MB)
        if second and has_history:
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
