"""Data that Tidemark wrote and reads again: values of state and outbox, the manifest, spilled chunks, ledgers.

A checksum detects damage; content with a correct checksum may be of another version, or forged.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import google_crc32c

from tests.support.forged import groups
from tests.support.forged.byte_targets.target import Bytes, ByteTarget, refusals
from tidemark.decode.transactions.reorder_buffer.rowlog import RowChunk
from tidemark.io.archive.hole_ledger import HoleLedger
from tidemark.model.errors import StateError
from tidemark.model.lsn import FullXid, Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch, Pointer, Sequence
from tidemark.wire.envelope import seal
from tidemark.wire.items import decode_transactions, encode_item, encode_transactions
from tidemark.wire.manifest import MANIFEST, CopiedTable, Manifest
from tidemark.wire.outbox import encode_group, join
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Fingerprint
from tidemark.wire.state.history_index import BaseEntry, HistoryIndex, JournalFile, JournalMark
from tidemark.wire.state.key import FORMAT_VERSION
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import (
    ARCHIVING,
    BEGINNING,
    COPY,
    DELIVERED,
    FINGERPRINT,
    HAND_OVER,
    HISTORY,
    IDENTITY,
    JOURNAL,
    LEDGER,
    LOSSES,
    READER,
    STAGE,
    SWITCHES,
    TERM,
)
from tidemark.wire.state.values import Beginning, Identity, Term, Watermark
from tidemark.wire.values import ValueKind, decode_header, encode_header

KEYS = (
    IDENTITY,
    BEGINNING,
    STAGE,
    HAND_OVER,
    SWITCHES,
    LOSSES,
    TERM,
    DELIVERED,
    LEDGER,
    READER,
    HISTORY,
    JOURNAL,
    COPY,
    FINGERPRINT,
    ARCHIVING,
    MANIFEST,
)
KINDS = tuple(ValueKind)
FIRST = Sequence(1)
ITEMS = (
    groups.message(1000, b"content"),
    groups.batch(1000, [1, 2]),
    groups.schema_event(1000, groups.relation()),
)
_GROUP = encode_group(groups.group(1000, ITEMS[:1]))
_HEADER = next(_GROUP.numbered(Sequence(0), lambda _database, _relation: SchemaVersion(1)))[0]


def run_state_value(data: bytes) -> None:
    """Decode a value of the state: unchanged, and in an envelope with a correct checksum."""
    given = Bytes(data)
    key, sealed = KEYS[given.number() % len(KEYS)], given.number() % 2
    stored = given.rest()
    with refusals(StateError):
        key.decode(seal(stored, FORMAT_VERSION) if sealed else stored)


def run_outbox_value(data: bytes) -> None:
    """Read a value of the outbox: unchanged, and with a header that fits its payload."""
    given = Bytes(data)
    kind, headed = KINDS[given.number() % len(KINDS)], given.number() % 2
    stored = given.rest()
    if headed:
        crc = google_crc32c.value(stored)
        stored = encode_header(replace(_HEADER, kind=kind, payload_length=len(stored), payload_crc=crc)) + stored
    with refusals(StateError):
        decode_header(stored, FIRST)
    with refusals(StateError):
        value = join(FIRST, [stored])
        if value.header.kind is ValueKind.TRANSACTIONS:
            decode_transactions(value.payload)
        else:
            value.item()


def run_spilled_chunk(data: bytes) -> None:
    """Read back a part of a large transaction."""
    with refusals(StateError):
        RowChunk.load(data)


def run_hole_ledger(data: bytes) -> None:
    """Read the ledger beside a spool; a torn one yields nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger"
        path.write_bytes(data)
        with HoleLedger.peek(path) as ledger:
            assert len(ledger.holes()) <= ledger.hole_count
            assert ledger.failing_s is None or ledger.failing_s >= 0


def _state_seeds() -> dict[str, bytes]:
    identity = Identity("main", SystemIdentifier(7), "ab12", 15, 1 << 24, 1 << 30)
    beginning = Beginning(TimelineId(1), Lsn(0x2000028), FullXid(700), {Oid(5): "postgres"}, "700:700:")
    pointer = Pointer(groups.position(0x2000028, 3), Lsn(0x2000000))
    term = Term(Epoch(TimelineId(1), 2), Owner("sidecar", "host", "boot", 17, 99))
    history = HistoryIndex(
        (BaseEntry("base-1", TimelineId(1), Lsn(8), Lsn(8), 9),),
        (JournalFile("journal-1", TimelineId(1), Lsn(8)),),
    )
    copied = CopiedTable(Oid(5), Oid(16385), CopyProgress(CopyPhase.DONE, 1, row_count=7))
    manifest = Manifest(
        identity, beginning, history, JournalMark(Lsn(9)), pointer, FIRST, term, Fingerprint(), (copied,), 5
    )
    payloads = (
        IDENTITY.encode(identity),
        STAGE.encode(Stage.ARCHIVE),
        DELIVERED.encode(Watermark(pointer, FIRST)),
        MANIFEST.encode(manifest),
    )
    places = (0, KEYS.index(STAGE), KEYS.index(DELIVERED), len(KEYS) - 1)
    names = ("identity", "stage", "delivered", "manifest")
    found = {name: bytes([at, 0]) + stored for name, at, stored in zip(names, places, payloads, strict=True)}
    envelope_bytes = 5
    found |= {
        f"{name}_sealed": bytes([at, 1]) + stored[envelope_bytes:]
        for name, at, stored in zip(names, places, payloads, strict=True)
    }
    return found


def _outbox_seeds() -> dict[str, bytes]:
    found = {}
    for item in ITEMS:
        kind, payload = encode_item(item)
        found[kind.name.lower()] = bytes([KINDS.index(kind), 1]) + bytes(payload)
    ends = encode_transactions((groups.end(1000),))
    found["transactions"] = bytes([KINDS.index(ValueKind.TRANSACTIONS), 1]) + ends
    content = bytes(encode_item(ITEMS[0])[1])
    header = replace(_HEADER, payload_length=len(content), payload_crc=google_crc32c.value(content))
    found["whole"] = b"\0\0" + encode_header(header) + content
    return found


def _chunk_seed() -> bytes:
    chunk = RowChunk()
    chunk.entries += bytes(32)
    chunk.tuples += b"tuple"
    return b"".join(chunk.dump())


def _ledger_seed() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger"
        HoleLedger.create(path, 0o600)
        with HoleLedger.open(path, writable=True) as ledger:
            ledger.record_failure()
            ledger.give_up("000000010000000000000001", "no space")
        return path.read_bytes()[:512]


TARGETS = (
    ByteTarget("state_value", run_state_value, _state_seeds()),
    ByteTarget("outbox_value", run_outbox_value, _outbox_seeds()),
    ByteTarget("spilled_chunk", run_spilled_chunk, {"one_row": _chunk_seed()}),
    ByteTarget("hole_ledger", run_hole_ledger, {"one_hole": _ledger_seed()}),
)
