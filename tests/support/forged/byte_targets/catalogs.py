"""The whole decoder over a real catalog, and the catalog's saved forms: bases and journals."""

import json
import struct
import zlib

import google_crc32c

from tests.support.forged.byte_targets.small_base import BASE, ITEM, MAJOR, NEXT_XID, sessions
from tests.support.forged.byte_targets.target import Bytes, ByteTarget, refusals
from tests.support.forged.forged_records import block_of
from tests.support.forged.memory_spill import MemorySpill
from tests.support.forged.wal import record
from tidemark.decode.catalog.history import (
    DamagedHistory,
    Journal,
    dump_entry,
    journal_head,
    load_base,
    replay,
)
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.decoder import Decoder
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.model.change import ChangeGroup  # noqa: TC001 - one import of all that is used
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId, Xid
from tidemark.wal.record import Record, parse_record
from tidemark.wal.versions import RMGR_LAST, wal_format
from tidemark.wire.outbox import encode_group
from tidemark.wire.values import EncodedGroup

FORMAT = wal_format(MAJOR)
TIMELINE = TimelineId(1)
RECORDS_MAX = 600
MEMORY_BYTES = 64 << 10  # so small that transactions spill
BASE_HEAD = struct.Struct("<8sHxxQQI")
BASE_HEAD_BYTES = BASE_HEAD.size
_BASE = BASE.read_bytes()


def records_of(data: bytes, lsn: Lsn) -> list[Record]:
    """Return the records of an input, with correct CRCs, one after the other from `lsn` on."""
    given, found = Bytes(data), list[Record]()
    while given and len(found) < RECORDS_MAX:
        size, xid, info, rmgr = ITEM.unpack(given.read(ITEM.size).ljust(ITEM.size, b"\0"))
        raw = record(given.read(size), rmgr=rmgr % (RMGR_LAST + 1), info=info, xid=xid)
        end = Lsn(lsn + len(raw) + -len(raw) % 8)
        found.append(parse_record(lsn, end, raw, FORMAT))
        lsn = end
    return found


def _decoded(data: bytes, *, by_block: bool) -> list[EncodedGroup]:
    """Decode records over a real catalog, one by one or in framing's blocks, into values of the outbox."""
    base = load_base(_BASE, "base")
    decoder = Decoder(FORMAT, TIMELINE, base.mirrors, next_xid=NEXT_XID, memory_bytes=MEMORY_BYTES, spill=MemorySpill())
    builder = GroupBuilder({oid: mirror.dialect for oid, mirror in base.mirrors.items()}, rows_max=8)
    records = records_of(data, base.lsn)
    groups: list[ChangeGroup] = []
    raws = [(found.lsn, found.end_lsn, found.raw) for found in records]
    for decoded in decoder.decode_block(block_of(raws)) if by_block else map(decoder.decode, records):
        if isinstance(decoded, CommittedTransaction):
            groups += builder.add_transaction(decoded)
        elif decoded is not None:
            groups += builder.add_message(decoded, decoder.restart_lsn)
    left = builder.flush()
    return [encode_group(group) for group in (*groups, *([left] if left is not None else []))]


def run_decode(data: bytes) -> None:
    """Decode records both ways: the output is the same, or both refuse it."""
    results = []
    for by_block in (False, True):
        with refusals():
            groups = _decoded(data, by_block=by_block)
            results.append([[(value.kind, bytes(value.payload)) for value in group.values] for group in groups])
    assert len(results) in (0, 2)
    assert results[:1] == results[1:]


def run_base(data: bytes) -> None:
    """Load a base: unchanged, and with a head that fits the unpacked content."""
    given = Bytes(data)
    headed = given.number() % 2
    content = given.rest()
    if headed:
        packed = zlib.compress(content, 1)
        magic, version, *_ = BASE_HEAD.unpack_from(_BASE)
        content = BASE_HEAD.pack(magic, version, len(packed), len(content), google_crc32c.value(packed)) + packed
    with refusals(DamagedHistory):
        load_base(content, "base")


def run_journal(data: bytes) -> None:
    """Read a journal unchanged, and replay records over a base as a journal."""
    with refusals(DamagedHistory):
        list(Journal(data, "journal"))
    base = load_base(_BASE, "base")
    with refusals():
        head = journal_head(MAJOR, SystemIdentifier(7))
        entries = [dump_entry(found, TIMELINE, Xid(found.xid)) for found in records_of(data, base.lsn)]
        replay(base, Journal(head + b"".join(entries), "journal"), Lsn((1 << 63) - 1))
        for mirror in base.mirrors.values():
            list(mirror.relations())


def _unpacked() -> bytes:
    return zlib.decompress(_BASE[BASE_HEAD_BYTES:])


def _announcing(unpacked_bytes: int) -> bytes:
    magic, version, packed_bytes, _, crc = BASE_HEAD.unpack_from(_BASE)
    return BASE_HEAD.pack(magic, version, packed_bytes, unpacked_bytes, crc) + _BASE[BASE_HEAD_BYTES:]


def _document() -> bytes:
    unpacked = _unpacked()
    (size,) = struct.unpack_from("<I", unpacked)
    reported = json.loads(unpacked[4 : 4 + size])
    reported["databases"], reported["shared"]["heaps"] = [], []
    text = json.dumps(reported).encode()
    return struct.pack("<I", len(text)) + text


TARGETS = (
    ByteTarget("decode", run_decode, dict(sessions())),
    ByteTarget(
        "base",
        run_base,
        {
            "whole": b"\0" + _BASE,
            "announces_four_gigabytes": b"\0" + _announcing((4 << 30) - 1),
            "unpacked": b"\1" + _unpacked(),
            "without_shared_catalogs": b"\1" + _document(),
        },
    ),
    ByteTarget("journal", run_journal, dict(sessions())),
)
