"""Decodes a stored round again: the same catalogs, the same WAL, and no server."""

from collections.abc import Iterator
from pathlib import Path

from tests.support.oracles.oracle import rendered, renderer_of
from tests.support.oracles.oracle_rounds.evidence import Facts, read_facts, read_lines
from tests.support.oracles.oracle_rounds.round import assert_equal
from tidemark.decode.catalog.history import Base, load_base
from tidemark.decode.transactions.decoder import Decoded
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.node.node import NodeFacts
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.snapshot import Snapshot, parse_snapshot
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT, InvalidWal, WalDecoding
from tidemark.runtime.seed.seeding import Seed, decoder_of
from tidemark.wal.page import Framer
from tidemark.wal.versions import PAGE_BYTES, wal_format


def replay(folder: Path) -> None:
    """Decode again and compare with the server's output; raise differences."""
    facts = read_facts(folder)
    expected, found = read_lines(folder / "server.lines"), list(decoded_again(folder, facts))
    assert_equal(str(folder), expected, found[: len(expected)] if facts.server_failed else found)


def decoded_again(folder: Path, facts: Facts) -> Iterator[str]:
    """Yield our lines, up to the fence that ended the round."""
    seed = _seed(load_base((folder / "base").read_bytes(), str(folder / "base")), facts)
    renderer, fences = renderer_of(seed), set[str]()
    snapshot = parse_snapshot(facts.snapshot) if facts.snapshot else None
    for decoded in _decoded(folder / "wal", seed):
        if _wanted(decoded, snapshot, Lsn(facts.begin_lsn)):
            for _, line in rendered(renderer, decoded, fences.add):
                yield line
        if facts.fence in fences:
            return


def _decoded(wal: Path, seed: Seed) -> Iterator[Decoded]:
    framer = Framer(
        seed.format,
        system_identifier=seed.node.system_identifier,
        segment_bytes=seed.node.segment_bytes,
        timeline=seed.timeline,
        start_lsn=seed.lsn,
    )
    decoder = decoder_of(seed, memory_bytes=MEMORY_BYTES_DEFAULT)
    decoder.keep_names()
    decoding = WalDecoding(framer, decoder, seed.timeline)
    try:
        for segment in ArchiveFolder(wal).read(Lsn(seed.lsn // PAGE_BYTES * PAGE_BYTES)):
            yield from decoding.feed(segment)
    except InvalidWal:
        return  # the unused rest of the last segment


def _wanted(decoded: Decoded, snapshot: Snapshot | None, begin_lsn: Lsn) -> bool:
    if isinstance(decoded, CommittedTransaction):
        return snapshot is None or not snapshot.sees(decoded.end.full_xid)
    return decoded.lsn >= begin_lsn


def _seed(base: Base, facts: Facts) -> Seed:
    database = Oid(facts.database_oid)
    node = NodeFacts(
        major=base.major,
        server_version="",
        system_identifier=base.system_identifier,
        timeline=base.timeline,
        segment_bytes=facts.segment_bytes,
        database=facts.database,
        database_oid=database,
        role="",
    )
    return Seed(
        node=node,
        format=wal_format(base.major),
        timeline=base.timeline,
        lsn=base.lsn,
        mirrors=base.mirrors,
        databases={database: facts.database},
        complete_from=base.next_xid,
        top_of=base.top_of,
    )
