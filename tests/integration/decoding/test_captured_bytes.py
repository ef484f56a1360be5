"""The output of the network thread, compared with the segment files: the same bytes, in order, once (I02)."""

from pathlib import Path

import pytest

from tests.support.oracles.waldump import waldump
from tests.support.processes.receiving import Receiver
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.engine.progress import Progress
from tidemark.io.node.replication import WalStream
from tidemark.model.lsn import Lsn, TimelineId, format_lsn, parse_lsn
from tidemark.wal.page import Framer, NeedMore
from tidemark.wal.segments import WalSlice, first_page_lsn, segment_name

MB = 1 << 20


class Collector:
    """A sink that keeps everything, and is the fastest possible reader: it reads while a slice is put."""

    capacity = free_bytes = 1 << 30

    def __init__(self, begin: Lsn) -> None:
        self.begin = self.write_lsn = begin
        self.content = bytearray()
        self.progress = Progress(received_lsn=begin)

    def put(self, wal_slice: WalSlice) -> None:
        assert wal_slice.start_lsn == self.write_lsn
        assert self.progress.received_lsn == wal_slice.end_lsn, "it can be decoded from here on, so it was received"
        self.content += wal_slice.data
        self.write_lsn = wal_slice.end_lsn


def collect(node: Cluster, collector: Collector, upto: Lsn) -> None:
    """Run a network thread into `collector` until it has everything below `upto`; each call starts a new one."""
    thread = Receiver(node, collector, collector.progress)
    thread.start()

    def is_collected() -> bool:
        assert thread.error is None
        return collector.write_lsn >= upto

    wait_until(is_collected)
    thread.stop()


@pytest.mark.feature("I02")
def test_captured_bytes_equal_the_segment_files_across_switches_and_restarts_and_parse_as_records() -> None:
    with new_cluster(initdb=["--wal-segsize=1"], settings={"wal_keep_size": "1GB"}) as node:
        node.sql("CREATE TABLE t (a int, b text)")
        node.sql("SELECT pg_switch_wal()")
        collector = Collector(Lsn(parse_lsn(node.flush_lsn()) // MB * MB))
        first_record = parse_lsn(node.flush_lsn())
        for number in range(3):
            node.sql("INSERT INTO t SELECT n, repeat('x', 300) FROM generate_series(1, 6000) n")  # natural switches
            if number == 1:
                node.sql("SELECT pg_switch_wal()")
                node.sql("INSERT INTO t VALUES (0, 'after a forced switch')")
            collect(node, collector, parse_lsn(node.flush_lsn()))
        end = collector.write_lsn
        assert end - collector.begin > 5 * MB
        folder = node.data / "pg_wal"
        names = [segment_name(TimelineId(1), number, MB) for number in range(collector.begin // MB, -(-end // MB))]
        files = b"".join((folder / name).read_bytes() for name in names)
        assert bytes(collector.content) == files[: len(collector.content)]
        assert records_of(node, collector, first_record) == waldump_reported(node, folder, first_record, end)


def test_a_slice_counts_as_received_before_the_sink_has_it(cluster: Cluster) -> None:
    collector = Collector(first_page_lsn(parse_lsn(cluster.flush_lsn())))
    cluster.sql("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))")
    collect(cluster, collector, parse_lsn(cluster.flush_lsn()))
    assert collector.progress.received_lsn == collector.write_lsn


def records_of(node: Cluster, collector: Collector, begin: Lsn) -> list[str]:
    with WalStream(node.dsn()) as stream:
        fmt, identifier = stream.format, stream.identify().system_identifier
    framer = Framer(fmt, system_identifier=identifier, segment_bytes=MB, timeline=TimelineId(1), start_lsn=begin)
    framer.feed(collector.begin, bytes(collector.content))
    found: list[str] = []
    while not isinstance(block := framer.next_block(), NeedMore):
        assert not hasattr(block, "reason"), block
        found += [format_lsn(Lsn(lsn)) for lsn in block.lsns[: len(block)]]
    return found


def waldump_reported(node: Cluster, folder: Path, begin: Lsn, end: Lsn) -> list[str]:
    said = waldump(node, folder, begin, end)
    lsns = [parse_lsn(line.partition("lsn: ")[2].partition(",")[0]) for line in said.splitlines() if "lsn: " in line]
    return [format_lsn(lsn) for lsn in lsns]
