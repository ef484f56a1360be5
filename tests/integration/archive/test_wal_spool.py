"""The WAL spool during a first copy: cut at a fork, and closed once the stream has caught up."""

import threading
from pathlib import Path

import pytest

from tests.support.processes.receiving import Receiver
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark.engine.progress import Progress
from tidemark.engine.ring import Ring
from tidemark.io.host.logs import get_log
from tidemark.io.state.wal_spool import WalSpool
from tidemark.model.lsn import Lsn, TimelineId, parse_lsn
from tidemark.runtime.capture.inputs import SpooledInput
from tidemark.runtime.capture.network import WalSink
from tidemark.runtime.capture.signal import Signal
from tidemark.wal.segments import WalSlice, first_page_lsn

DEADLINE_S = 60.0
START, FORK, END = Lsn(0x1000), Lsn(0x2000), Lsn(0x3000)
OLD, NEXT = TimelineId(1), TimelineId(2)


def spool_at(folder: Path) -> WalSpool:
    return WalSpool(folder, bytes_max=1 << 20, file_mode=0o600)


def slice_at(lsn: Lsn, timeline: TimelineId, fill: bytes) -> WalSlice:
    return WalSlice(lsn, fill * 0x1000, timeline)


@pytest.fixture
def spool(tmp_path: Path) -> WalSpool:
    made = spool_at(tmp_path)
    made.begin(START, OLD)
    made.put(slice_at(START, OLD, b"a"))
    made.put(slice_at(FORK, OLD, b"b"))
    return made


@pytest.mark.parametrize("lsn", [FORK, Lsn(FORK + 8)])
def test_a_spool_that_is_cut_continues_at_the_cut_along_another_timeline(
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


def test_a_spool_that_ends_before_the_cut_stays_and_one_that_begins_after_it_is_emptied(spool: WalSpool) -> None:
    spool.cut_behind(END)
    assert (spool.start_lsn, spool.write_lsn) == (START, END)
    spool.cut_behind(START)
    assert spool.is_empty


class HangingSpool(WalSpool):
    """A spool on a disk that hangs while a slice is written, until it is released."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, bytes_max=1 << 24, file_mode=0o600)
        self.hangs = threading.Event()
        self.goes_on = threading.Event()

    def put(self, wal_slice: WalSlice) -> None:
        self.hangs.set()
        assert self.goes_on.wait(DEADLINE_S)
        super().put(wal_slice)


def test_no_other_thread_receives_while_a_hanging_disk_blocks_the_thread_that_fills_the_spool(
    cluster: Cluster, tmp_path: Path
) -> None:
    begin = first_page_lsn(parse_lsn(cluster.flush_lsn()))
    cluster.sql("SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))")
    spool, ring, progress = HangingSpool(tmp_path), Ring(1 << 24, begin), Progress(received_lsn=begin)
    spool.begin(begin, OLD)
    receivers: list[Receiver] = []

    def receive_into(sink: WalSink) -> Receiver:
        receivers.append(Receiver(cluster, sink, progress))
        return receivers[-1]

    source = SpooledInput(spool, ring, Signal(), receive_into, get_log("test"))
    source.start()
    try:
        wait_until(spool.hangs.is_set)
        source.drain()
        wait_until(lambda: receivers[0].stops > 1 or len(receivers) > 1)
        assert len(receivers) == 1
        spool.goes_on.set()
        flushed = parse_lsn(cluster.flush_lsn())
        wait_until(lambda: len(receivers) > 1 and ring.write_lsn >= flushed)
        assert source.error is None
    finally:
        spool.goes_on.set()
        source.stop()
