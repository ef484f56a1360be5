"""A transaction larger than the memory limit: the same rows, spilled to disk, and no file left."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.oracles.catalogs import Observed, flush_lsn, observe
from tests.support.oracles.plugin_lines import PluginLines
from tests.support.servers.postgres import Cluster, database_in
from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.transactions.decoder import Decoder
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.io.host.spill import SpillFailed, SpillFolder
from tidemark.model.lsn import FullXid, Lsn, TimelineId
from tidemark.wal.page import Framer, Invalid, NeedMore, RecordBlock
from tidemark.wal.segments import segment_name, segment_of
from tidemark.wal.versions import wal_format

DATABASE = "spilled"
SEGMENT_BYTES = 16 << 20
MEMORY_BYTES = 1 << 20
LARGE = """
    BEGIN;
    INSERT INTO big SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i;
    SAVEPOINT a; INSERT INTO big SELECT i, repeat('y', 100) FROM generate_series(20001, 30000) i; ROLLBACK TO a;
    SAVEPOINT b; UPDATE big SET v = 'z' WHERE k <= 10000; RELEASE b;
    SAVEPOINT c; DELETE FROM big WHERE k <= 100; SAVEPOINT d; DELETE FROM big; ROLLBACK TO d; RELEASE c;
    COMMIT
"""
WRITTEN = 20_000 + 10_000 + 100


@pytest.fixture
def observed(cluster: Cluster) -> Iterator[Observed]:
    with database_in(cluster, DATABASE, "CREATE TABLE big (k int PRIMARY KEY, v text)"):
        yield observe(cluster, DATABASE)


def blocks(cluster: Cluster, start: Lsn, end: Lsn) -> Iterator[RecordBlock]:
    """Yield the records in [start, end) from the server's own files."""
    framer = Framer(wal_format(cluster.major), segment_bytes=SEGMENT_BYTES, start_lsn=start)
    at = start // 8192 * 8192
    while at < end:
        segment = segment_of(Lsn(at), SEGMENT_BYTES)
        stop = min(end, (segment + 1) * SEGMENT_BYTES, at + (128 << 10))
        path = cluster.data / "pg_wal" / segment_name(TimelineId(1), segment, SEGMENT_BYTES)
        with path.open("rb") as file:
            file.seek(at % SEGMENT_BYTES)
            framer.feed(Lsn(at), file.read(stop - at))
        at = stop
        while not isinstance(block := framer.next_block(), NeedMore):
            assert not isinstance(block, Invalid), str(block)
            yield block


@pytest.mark.feature("P04")
def test_a_transaction_larger_than_memory_is_decoded_within_it(
    cluster: Cluster, observed: Observed, tmp_path: Path
) -> None:
    with cluster.connect(DATABASE) as session:
        start = flush_lsn(session)
        observed.follow(start)
        session.execute(LARGE.encode())
        end = flush_lsn(session)
    spill = SpillFolder(tmp_path / "spill")
    decoder = Decoder(
        wal_format(cluster.major),
        TimelineId(1),
        DatabaseMirrors([observed.mirror]),
        next_xid=FullXid(700),
        memory_bytes=MEMORY_BYTES,
        spill=spill,
    )
    renderer = PluginLines(cluster.major, {observed.mirror.database: observed.mirror.dialect})
    lines: list[str] = []
    most_on_disk = most_in_memory = 0
    for block in blocks(cluster, start, end):
        for decoded in decoder.decode_block(block):
            assert isinstance(decoded, CommittedTransaction)
            if decoded.end.item_count == WRITTEN:
                assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (tmp_path / "spill").iterdir())
                lines = list(renderer.of(decoded))
            decoded.release()
        most_on_disk = max(most_on_disk, spill.byte_count)
        most_in_memory = max(most_in_memory, sum(known.byte_count for known in decoder.transactions))
    assert len(lines) == WRITTEN + 2
    assert sum(" INSERT: " in line for line in lines) == 20_000
    assert not any("'y" in line for line in lines)
    assert lines[-2] == "table public.big: DELETE: k[integer]:100"
    assert most_on_disk > 3 * MEMORY_BYTES
    assert most_in_memory <= MEMORY_BYTES
    assert spill.byte_count == 0
    assert list((tmp_path / "spill").iterdir()) == []


def test_a_folder_that_a_killed_process_left_is_emptied_when_it_is_used_again(tmp_path: Path) -> None:
    SpillFolder(tmp_path).write(b"left over")
    assert SpillFolder(tmp_path).byte_count == 0
    assert list(tmp_path.iterdir()) == []


def test_a_strangers_file_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    for name in ("notes.spill", "-.spill", "7.spill"):
        (tmp_path / name).write_bytes(b"mine")
    assert SpillFolder(tmp_path).byte_count == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_a_chunk_that_cannot_be_read_back_is_reported_with_its_file(tmp_path: Path) -> None:
    spill = SpillFolder(tmp_path)
    handle = spill.write(b"content")
    (file,) = tmp_path.glob("*.spill")
    file.unlink()
    with pytest.raises(SpillFailed, match=rf"cannot read .*{file.name} back"):
        spill.read(handle)
