"""The spool of WAL that is received while a first copy runs: cut where a timeline turned out to have ended."""

from pathlib import Path

import pytest

from tidemark.io.wal_spool import WalSpool
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.wal.segments import ReadSegment

START, FORK, END = Lsn(0x1000), Lsn(0x2000), Lsn(0x3000)
OLD, NEXT = TimelineId(1), TimelineId(2)


def spool_at(folder: Path) -> WalSpool:
    return WalSpool(folder, bytes_max=1 << 20, file_mode=0o600)


def slice_at(lsn: Lsn, timeline: TimelineId, fill: bytes) -> ReadSegment:
    return ReadSegment(lsn, fill * 0x1000, timeline)


@pytest.fixture
def spool(tmp_path: Path) -> WalSpool:
    made = spool_at(tmp_path)
    made.begin(START, OLD)
    made.put(slice_at(START, OLD, b"a"))
    made.put(slice_at(FORK, OLD, b"b"))
    return made


@pytest.mark.parametrize("lsn", [FORK, Lsn(FORK + 8)])
def test_a_spool_that_is_cut_goes_on_at_the_cut_along_another_timeline(
    spool: WalSpool, tmp_path: Path, lsn: Lsn
) -> None:
    spool.cut_behind(lsn)
    assert (spool.start_lsn, spool.write_lsn) == (START, lsn)
    again = spool_at(tmp_path)
    assert (again.start_lsn, again.write_lsn, again.timeline) == (START, lsn, OLD)
    again.put(slice_at(lsn, NEXT, b"c"))
    first, behind = again.read(START), again.read(lsn)
    assert first is not None
    assert behind is not None
    assert bytes(first.data) == b"a" * 0x1000 + b"b" * (lsn - FORK)
    assert (bytes(behind.data), behind.timeline) == (b"c" * 0x1000, NEXT)


def test_a_spool_that_ends_before_the_cut_stays_and_one_that_begins_behind_it_is_empty(spool: WalSpool) -> None:
    spool.cut_behind(END)
    assert (spool.start_lsn, spool.write_lsn) == (START, END)
    spool.cut_behind(START)
    assert spool.is_empty
