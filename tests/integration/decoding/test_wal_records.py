"""Tidemark's WAL records compared with those of PostgreSQL's own readers: `pg_waldump` and `pg_walinspect`.

`pg_waldump` is packaged for 15, 16 and 18; `pg_walinspect` came with 15 and shows blocks since 16. Neither is available
here for 14: its WAL must at least be framed up to its flush LSN, and every body be parsed.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.oracles.waldump import waldump
from tests.support.servers.postgres import Cluster, StopMode, new_cluster, sql
from tests.support.workloads import wal_workload
from tidemark.model.lsn import Lsn, TimelineId, format_lsn, parse_lsn
from tidemark.wal.page import Framer, Invalid, RecordBlock
from tidemark.wal.record import Record
from tidemark.wal.rmgr import heap, heap2, message, relmap, standby, xact, xlog
from tidemark.wal.segments import FileKind, file_kind, parse_segment_name, segment_name, segment_of, segment_start
from tidemark.wal.versions import MAJORS, wal_format

RMGRS = [
    "XLOG",
    "Transaction",
    "Storage",
    "CLOG",
    "Database",
    "Tablespace",
    "MultiXact",
    "RelMap",
    "Standby",
    "Heap2",
    "Heap",
    "Btree",
    "Hash",
    "Gin",
    "Gist",
    "Sequence",
    "SPGist",
    "BRIN",
    "CommitTs",
    "ReplicationOrigin",
    "Generic",
    "LogicalMessage",
]
RARE_RMGRS = {"Tablespace", "MultiXact", "CommitTs", "ReplicationOrigin", "Generic", "CLOG"}
FORKS = ("main", "fsm", "vm", "init")
LINE = re.compile(
    r"rmgr: (?P<rmgr>\w+) +len \(rec/tot\): +\d+/ *(?P<length>\d+), tx: +(?P<xid>\d+), lsn: (?P<lsn>\S+), "
    r"prev (?P<prev>[^, ]+), desc:"
)
BLOCK = re.compile(
    r"\tblkref #(?P<id>\d+): rel (?P<spc>\d+)/(?P<db>\d+)/(?P<rel>\d+) fork (?P<fork>\w+) blk (?P<block>\d+)"
    r"(?P<image> \(FPW.*?\)(?:; hole: offset: (?P<offset>\d+), length: (?P<hole>\d+)"
    r"(?:, compression saved: (?P<saved>\d+), method: (?P<method>\w+))?)?)?$"
)


def stored_segments(cluster: Cluster, begin: Lsn, end: Lsn) -> list[tuple[Lsn, bytes]]:
    """Return the segments of pg_wal that contain `[begin, end)`."""
    size = int(str(cluster.sql("SELECT setting FROM pg_settings WHERE name = 'wal_segment_size'")[0][0]))
    found = []
    for path in sorted(Path(cluster.data, "pg_wal").iterdir()):
        named = parse_segment_name(path.name, size)
        if named is not None and begin < segment_start(named[1] + 1, size) and segment_start(named[1], size) < end:
            found.append((segment_start(named[1], size), path.read_bytes()))
    return sorted(found)


def our_records(cluster: Cluster, begin: Lsn, end: Lsn) -> Iterator[Record]:
    """Yield the records of `[begin, end)`: flushed WAL ends there, followed by old bytes of a recycled segment.

    The WAL writer flushes whole pages, so the last record may extend beyond `end`.
    """
    framer = Framer(wal_format(cluster.major), timeline=TimelineId(1), start_lsn=begin)
    for lsn, data in stored_segments(cluster, begin, end):
        framer.feed(lsn, data)
        while isinstance(outcome := framer.next_block(), RecordBlock):
            for record in outcome.records():
                if record.lsn >= end:
                    return
                yield record
        assert not isinstance(outcome, Invalid) or outcome.lsn >= end, str(outcome)


def reported_by_us(record: Record) -> tuple[object, ...]:
    """Return the output of `pg_waldump -b` for a record, computed by us."""
    blocks = []
    for block in record.blocks:
        image = block.image
        compressed = image is not None and image.compression != ""
        blocks.append((
            block.id, *block.locator, FORKS[block.fork], block.block,
            image is not None,
            image.hole_offset if image else None,
            image.hole_bytes if image else None,
            8192 - image.hole_bytes - len(image.data) if image and compressed else None,
            image.compression if image and compressed else None,
        ))  # fmt: skip
    return RMGRS[record.rmgr], len(record.raw), record.xid, record.lsn, record.prev, tuple(blocks)


def waldump_reported(text: str) -> Iterator[tuple[object, ...]]:
    """Parse the output of `pg_waldump -b`."""
    head: tuple[object, ...] = ()
    blocks: list[tuple[object, ...]] = []
    for line in text.splitlines():
        if found := LINE.match(line):
            if head:
                yield *head, tuple(blocks)
            lsns = parse_lsn(found["lsn"]), parse_lsn(found["prev"])
            head = (found["rmgr"], int(found["length"]), int(found["xid"]), *lsns)
            blocks = []
        elif found := BLOCK.match(line):
            numbers = [None if found[name] is None else int(found[name]) for name in ("offset", "hole", "saved")]
            block_id = [int(found[name]) for name in ("id", "spc", "db", "rel")]
            image = found["image"] is not None
            blocks.append((*block_id, found["fork"], int(found["block"]), image, *numbers, found["method"]))
        else:
            assert not line.startswith(("rmgr", "\tblkref")), line
    if head:
        yield *head, tuple(blocks)


def compressions(cluster: Cluster) -> tuple[str, ...]:
    """Return the methods of wal_compression in this server's build."""
    if cluster.major == 14:
        return ("on",)
    found = cluster.sql("SELECT unnest(enumvals) FROM pg_settings WHERE name = 'wal_compression'")
    return tuple(str(name) for (name,) in found if name in {"pglz", "lz4", "zstd"})


@pytest.fixture(scope="module")
def written(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, Lsn, Lsn]]:
    """A cluster with 1 MB segments, so that records cross them, after the workload."""
    with new_cluster(request.param, initdb=["--wal-segsize=1"]) as cluster:
        yield cluster, *wal_workload.run(cluster, compressions=compressions(cluster))


@pytest.mark.parametrize("written", [15, 16, 18], indirect=True)
def test_our_records_are_those_of_pg_waldump(written: tuple[Cluster, Lsn, Lsn]) -> None:
    cluster, begin, end = written
    expected = list(waldump_reported(waldump(cluster, cluster.data / "pg_wal", begin, end, "-b")))
    assert len(expected) > 10_000
    assert {row[0] for row in expected} >= set(RMGRS) - RARE_RMGRS
    found = [reported_by_us(record) for record in our_records(cluster, begin, end)]
    for ours, theirs in zip(found, expected, strict=False):
        assert ours == theirs
    assert len(found) == len(expected)


@pytest.mark.parametrize("written", [15, 16, 17, 18], indirect=True)
def test_our_records_are_those_of_pg_walinspect(written: tuple[Cluster, Lsn, Lsn]) -> None:
    cluster, begin, end = written
    cluster.sql("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
    expected = cluster.sql(
        "SELECT start_lsn - '0/0', end_lsn - '0/0', prev_lsn - '0/0', xid::text::int8, resource_manager, "
        f"record_length, main_data_length FROM pg_get_wal_records_info('{format_lsn(begin)}', '{format_lsn(end)}')"
    )
    found = [
        (one.lsn, one.end_lsn, one.prev, one.xid, RMGRS[one.rmgr], len(one.raw), len(one.main))
        for one in our_records(cluster, begin, end)
    ]
    for ours, theirs in zip(found, expected, strict=False):
        assert ours == theirs
    assert len(found) == len(expected)


@pytest.mark.parametrize("written", [16, 17, 18], indirect=True)
def test_our_blocks_and_restored_pages_are_those_of_pg_walinspect(written: tuple[Cluster, Lsn, Lsn]) -> None:
    cluster, begin, end = written
    cluster.sql("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
    expected = cluster.sql(
        "SELECT start_lsn - '0/0', block_id, reltablespace, reldatabase, relfilenode, relforknumber, relblocknumber, "
        "coalesce(block_data, ''), block_fpi_data, coalesce('APPLY' = ANY (block_fpi_info), false) "
        f"FROM pg_get_wal_block_info('{format_lsn(begin)}', '{format_lsn(end)}') ORDER BY 1, 2"
    )
    found = [
        (record.lsn, block.id, *block.locator, block.fork, block.block, block.data,
         block.restore_page() if block.has_image else None, block.image_applies)
        for record in our_records(cluster, begin, end)
        for block in record.blocks
    ]  # fmt: skip
    used = {
        block.image.compression
        for record in our_records(cluster, begin, end)
        for block in record.blocks
        if block.image is not None
    }
    assert used == {"", *compressions(cluster)}
    for ours, theirs in zip(found, expected, strict=False):
        assert ours == theirs
    assert len(found) == len(expected)


@pytest.mark.parametrize("method", ["off", "pglz", "lz4", "zstd"])
def test_a_restored_page_of_15_is_the_page_that_the_server_has(cluster: Cluster, method: str) -> None:
    name = f"page_of_{method}"
    with cluster.connect() as session:
        for statement in (
            "CREATE EXTENSION IF NOT EXISTS pageinspect",
            f"CREATE TABLE {name} AS SELECT g, repeat('x', g) FROM generate_series(1, 60) g",
            f"SET wal_compression = {method}",
            "CHECKPOINT",
        ):
            sql(session, statement)
        begin = parse_lsn(str(sql(session, "SELECT redo_lsn FROM pg_control_checkpoint()")[0][0]))
        sql(session, f"UPDATE {name} SET g = -g WHERE g = 7")
        (page, file) = sql(session, f"SELECT get_raw_page('{name}', 0), pg_relation_filenode('{name}')")[0]
    end = parse_lsn(cluster.flush_lsn())
    images = [
        block
        for record in our_records(cluster, begin, end)
        for block in record.blocks
        if block.locator.rel == file and block.has_image
    ]
    assert [block.image.compression for block in images if block.image] == ["" if method == "off" else method]
    assert images[0].restore_page()[8:] == page[8:]  # the LSN is set after the record is written


@pytest.mark.parametrize("major", MAJORS)
def test_a_record_that_a_crash_cut_off_is_dropped_as_the_server_drops_it(major: int) -> None:
    with new_cluster(major, {"autovacuum": "off"}, initdb=["--wal-segsize=1"]) as cluster:
        begin = parse_lsn(str(cluster.sql("SELECT redo_lsn FROM pg_control_checkpoint()")[0][0]))
        torn = parse_lsn(str(cluster.sql("SELECT pg_current_wal_insert_lsn()")[0][0]))
        cluster.sql("SELECT pg_logical_emit_message(true, 'torn', repeat('cut off', 500000))")
        cluster.stop(StopMode.IMMEDIATE)
        after = segment_name(1, segment_of(torn, 1 << 20) + 1, 1 << 20)
        for path in Path(cluster.data, "pg_wal").iterdir():
            if file_kind(path.name) is FileKind.SEGMENT and path.name >= after:
                path.unlink()
        cluster.start()
        cluster.sql("SELECT pg_logical_emit_message(true, 'flushed', '')")
        end = parse_lsn(cluster.flush_lsn())
        records = list(our_records(cluster, begin, end))
    assert records[-1].end_lsn == end
    (at,) = [at for at, one in enumerate(records) if one.rmgr == 0 and one.info & 0xF0 == xlog.OVERWRITE_CONTRECORD]
    reported = xlog.parse(records[at], wal_format(major))
    assert isinstance(reported, xlog.OverwrittenContrecord)
    assert torn <= reported.overwritten_lsn < records[at].lsn
    assert reported.overwritten_lsn - records[at - 1].end_lsn in {0, 24, 40}  # a page header may come between


@pytest.mark.parametrize("written", MAJORS, indirect=True)
def test_every_body_that_we_read_parses(written: tuple[Cluster, Lsn, Lsn]) -> None:
    cluster, begin, end = written
    fmt = wal_format(cluster.major)
    parsers: dict[int, Callable[[Record], object]] = {
        0: lambda record: xlog.parse(record, fmt),
        1: lambda record: xact.parse(record, fmt),
        7: lambda record: relmap.parse(record, fmt),
        8: standby.parse,
        9: heap2.parse,
        10: heap.parse,
        21: message.parse,
    }
    kinds: set[str] = set()
    last_end = begin
    for record in our_records(cluster, begin, end):
        last_end = record.end_lsn
        if parse := parsers.get(record.rmgr):
            kinds.add(type(parse(record)).__name__)
        for block in record.blocks:
            if block.has_image:
                assert len(block.restore_page()) == 8192
    assert last_end == end
    assert kinds >= {
        "Checkpoint", "Commit", "Abort", "Prepare", "Assignment", "RelmapUpdate", "RunningXacts", "HeapInsert",
        "HeapUpdate", "HeapDelete", "HeapTruncate", "HeapConfirm", "HeapInplace", "HeapMultiInsert", "NewCid",
        "MessageBody", "NoneType",
    }  # fmt: skip
