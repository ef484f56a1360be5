"""The catalog history as bytes: bases (whole mirrors at one LSN) and the journal between them.

Decoding can start from a base at its LSN; a base includes open transactions and incomplete rewrites. The journal has
the records that changed a mirror, in WAL order; `replay` moves a base from its LSN to a later one. Other modules handle
the files and their index.

  base     header, then zlib of: length of the JSON part, JSON part, binary sections in the order of the JSON
  journal  header, then entries; an entry that is cut off or fails its CRC ends the file, as after a crash
"""

import json
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TypedDict

import google_crc32c

from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.catalog.follower import CatalogFollower
from tidemark.decode.catalog.heap import CatalogHeap
from tidemark.decode.catalog.layout import CATALOG_OF_OID, CatalogColumn, CatalogLayout
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.packed_rows import PackedRows, Tid
from tidemark.decode.catalog.shared import SharedCatalogs
from tidemark.decode.catalog.store import CatalogStore
from tidemark.decode.catalog.transactions import OpenChanges, PendingFile, Subject
from tidemark.model.errors import InternalError, NodeUnfit, StateError
from tidemark.model.lsn import FullXid, Lsn, Oid, SystemIdentifier, TimelineId, Xid, format_lsn
from tidemark.model.relation import RelFileLocator
from tidemark.wal.record import RawRecord, Record, parse_record
from tidemark.wal.versions import RECORD_BYTES_MAX, wal_format

BASE_VERSION = 1
JOURNAL_VERSION = 1
BASE_BYTES_MAX = 4 << 30  # uncompressed; a hundred thousand tables take about one
_BASE_MAGIC = b"TMBASE\r\n"
_JOURNAL_MAGIC = b"TMJRNL\r\n"
_BASE_HEAD = struct.Struct("<8sHxxQQI")  # magic, version, bytes compressed and uncompressed, CRC-32C of the compressed
_JOURNAL_HEAD = struct.Struct("<8sHHQ")  # magic, version, major, system identifier
_ENTRY_HEAD = struct.Struct("<IIQQII")  # CRC-32C of the rest, bytes of the record, lsn, end, timeline, top-level xid
_CRC_BYTES = 4
_MISSHAPEN = (
    *(LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError),
    *(struct.error, zlib.error, NodeUnfit),
)
_U32 = struct.Struct("<I")
_PIECE_BYTES = 64 << 10  # compressed and uncompressed bytes in one step
_COMPRESSION = 1  # zlib's fastest: decoding waits while a base is written


class DamagedHistory(StateError):
    """A base or a journal whose contents are not valid."""

    hint = "restore the file from the spool's copy, or make a new first copy (cdcctl init)"


@dataclass(frozen=True, slots=True)
class OpenTransactionStart:
    """A transaction that was open at a base's LSN, and the LSN of its first record."""

    xid: Xid
    first_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Base:
    """Mirrors at one LSN, with everything else that decoding needs to start there."""

    system_identifier: SystemIdentifier
    timeline: TimelineId
    lsn: Lsn  # all records that begin before it are applied
    major: int
    next_xid: FullXid  # a 64-bit xid from near that LSN
    mirrors: DatabaseMirrors
    open_transactions: Sequence[OpenTransactionStart] = ()
    top_of: Mapping[Xid, Xid] = field(default_factory=dict)  # of all open subtransactions


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A record that changed a mirror."""

    lsn: Lsn
    end_lsn: Lsn
    timeline: TimelineId
    top_xid: Xid
    raw: bytes


class _HeapJson(TypedDict):
    catalog: int
    columns: list[tuple[int, str, int, int, str, bool]]
    file: tuple[int, int, int]
    rows: int
    inserters: list[tuple[int, int]]
    deleters: list[tuple[int, int]]


class _PendingJson(TypedDict):
    owner: int
    heap: _HeapJson
    is_view: bool


class _OpenJson(TypedDict):
    xid: int
    subjects: list[tuple[int, int]]
    rewriting: list[tuple[int, int]]
    pending: list[_PendingJson]


class _StoreJson(TypedDict):
    database: int
    tablespace: int
    encoding: str
    heaps: list[_HeapJson]
    open: list[_OpenJson]
    top_of: list[tuple[int, int]]
    aborted: list[int]


class _BaseJson(TypedDict):
    system_identifier: int
    timeline: int
    lsn: int
    major: int
    next_xid: int
    open: list[tuple[int, int]]
    top_of: list[tuple[int, int]]
    shared: _StoreJson
    databases: list[_StoreJson]


# --- bases


def dump_base(base: Base) -> bytes:
    """Return the bytes of a base."""
    sections: list[bytes] = []
    if base.mirrors.is_growing:
        raise InternalError("a database that is being created cannot be saved")
    shared = base.mirrors.shared
    document: _BaseJson = {
        "system_identifier": base.system_identifier,
        "timeline": base.timeline,
        "lsn": base.lsn,
        "major": base.major,
        "next_xid": base.next_xid,
        "open": [(start.xid, start.first_lsn) for start in base.open_transactions],
        "top_of": list(base.top_of.items()),
        "shared": _dump_store(shared.store, "", sections),
        "databases": [_dump_store(mirror.store, mirror.encoding, sections) for mirror in base.mirrors.values()],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    unpacked = b"".join([_U32.pack(len(text)), text, *sections])
    packed = zlib.compress(unpacked, _COMPRESSION)
    head = _BASE_HEAD.pack(_BASE_MAGIC, BASE_VERSION, len(packed), len(unpacked), google_crc32c.value(packed))
    return head + packed


def _dump_store(store: CatalogStore, encoding: str, sections: list[bytes]) -> _StoreJson:
    if store.seeding:
        raise InternalError("a mirror whose seed is not complete cannot be saved")
    return {
        "database": store.database,
        "tablespace": store.tablespace,
        "encoding": encoding,
        "heaps": [_dump_heap(heap, sections) for heap in store.heaps.values()],
        "open": [_dump_open(changes, sections) for changes in store.open.values()],
        "top_of": list(store.top_of.items()),
        "aborted": list(store.marks.aborted),
    }


def _dump_heap(heap: CatalogHeap, sections: list[bytes]) -> _HeapJson:
    """Add tids, lengths and bytes of all rows to the sections."""
    tids, lengths, run = heap.rows.pack()
    sections += (tids.tobytes(), lengths.tobytes(), run)
    return {
        "catalog": heap.layout.catalog.oid,
        "columns": [(c.number, c.name, c.type_oid, c.length, c.align, c.not_null) for c in heap.layout.columns],
        "file": _numbers(heap.file),
        "rows": len(tids),
        "inserters": list(heap.inserter.items()),
        "deleters": list(heap.deleter.items()),
    }


def _dump_open(changes: OpenChanges, sections: list[bytes]) -> _OpenJson:
    views = list(changes.views.values())
    return {
        "xid": changes.xid,
        "subjects": [(subject.kind, subject.oid) for subject in changes.subjects],
        "rewriting": list(changes.rewriting.items()),
        "pending": [
            {
                "owner": pending.owner,
                "heap": _dump_heap(pending.heap, sections),
                "is_view": any(view is pending.heap for view in views),
            }
            for pending in changes.pending.values()
        ],
    }


def load_base(data: bytes, where: str) -> Base:
    """Return the base in `data`; `where` is the file's name in errors."""
    if len(data) < _BASE_HEAD.size:
        raise DamagedHistory(f"{where}: {len(data)} bytes are too few for a catalog base")
    magic, version, packed_bytes, unpacked_bytes, crc = _BASE_HEAD.unpack_from(data)
    if magic != _BASE_MAGIC:
        raise DamagedHistory(f"{where}: not a catalog base")
    if version != BASE_VERSION:
        raise DamagedHistory(f"{where}: base of format {version}; this Tidemark reads {BASE_VERSION}")
    packed = memoryview(data)[_BASE_HEAD.size :]
    if len(packed) != packed_bytes or unpacked_bytes > BASE_BYTES_MAX or google_crc32c.value(bytes(packed)) != crc:
        raise DamagedHistory(f"{where}: the base is cut off or fails its checksum")
    try:
        sections = _Sections(packed, unpacked_bytes)
        (text_bytes,) = _U32.unpack(sections.read(_U32.size))
        document: _BaseJson = json.loads(sections.read(text_bytes))
        return _Loader(document, sections).load()
    except _MISSHAPEN as error:  # the checksum is valid, so it was written like this
        raise DamagedHistory(f"{where}: the base has an invalid form: {type(error).__name__}: {error}") from error


class _Sections:
    """Decompresses a base section by section.

    NB: limited by the announced size, which is not allocated in advance: the checksum does not cover the header.
    """

    def __init__(self, packed: memoryview, unpacked_bytes: int) -> None:
        self._inflater = zlib.decompressobj()
        self._packed = packed
        self._at = 0
        self._left = unpacked_bytes

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if not 0 <= count <= self._left:
            raise ValueError(f"section of {count} bytes, but {self._left} are left")
        self._left -= count
        content = BytesIO(bytes(count))  # pages are allocated when written, and the end needs no copy
        while content.tell() < count:
            source: bytes | memoryview = self._inflater.unconsumed_tail
            if not source:
                source = self._packed[self._at : self._at + _PIECE_BYTES]
                self._at += len(source)
            part = self._inflater.decompress(source, min(count - content.tell(), _PIECE_BYTES))
            if not part and self._at >= len(self._packed) and not self._inflater.unconsumed_tail:
                raise ValueError(f"{content.tell()} of {count} bytes of a section are present")
            content.write(part)
        return content.getvalue()


class _Loader:
    """Reads the sections of a base in the order in which `dump_base` wrote them."""

    def __init__(self, document: _BaseJson, sections: _Sections) -> None:
        self._document = document
        self._sections = sections
        self._format = wal_format(document["major"])

    def load(self) -> Base:
        document = self._document
        shared = SharedCatalogs(self._store(document["shared"]))
        mirrors = [
            CatalogMirror(self._store(database), shared, database["encoding"]) for database in document["databases"]
        ]
        return Base(
            SystemIdentifier(document["system_identifier"]),
            TimelineId(document["timeline"]),
            Lsn(document["lsn"]),
            document["major"],
            FullXid(document["next_xid"]),
            DatabaseMirrors(mirrors),
            tuple(OpenTransactionStart(Xid(xid), Lsn(lsn)) for xid, lsn in document["open"]),
            {Xid(xid): Xid(top) for xid, top in document["top_of"]},
        )

    def _store(self, stored: _StoreJson) -> CatalogStore:
        heaps = [self._heap(heap) for heap in stored["heaps"]]
        store = CatalogStore(self._format, Oid(stored["database"]), Oid(stored["tablespace"]), heaps)
        store.top_of.update((Xid(xid), Xid(top)) for xid, top in stored["top_of"])
        store.marks.aborted.update(map(Xid, stored["aborted"]))
        store.restore([self._open(changes) for changes in stored["open"]])
        return store

    def _open(self, stored: _OpenJson) -> OpenChanges:
        changes = OpenChanges(Xid(stored["xid"]))
        for kind, oid in stored["subjects"]:
            changes.record(Subject(Oid(kind), Oid(oid)))
        changes.rewriting.update((Oid(catalog), Xid(xid)) for catalog, xid in stored["rewriting"])
        for pending in stored["pending"]:
            heap = self._heap(pending["heap"])
            changes.pending[heap.file] = PendingFile(heap, Xid(pending["owner"]))
            if pending["is_view"]:
                changes.views[heap.layout.catalog.oid] = heap
        return changes

    def _heap(self, stored: _HeapJson) -> CatalogHeap:
        columns = [
            CatalogColumn(number, name, Oid(type_oid), length, align, not_null)
            for number, name, type_oid, length, align, not_null in stored["columns"]
        ]
        layout = CatalogLayout(CATALOG_OF_OID[Oid(stored["catalog"])], columns)
        heap = CatalogHeap(layout, _locator(stored["file"]))
        count = stored["rows"]
        tids, lengths = array("Q"), array("H")
        tids.frombytes(self._sections.read(count * tids.itemsize))
        lengths.frombytes(self._sections.read(count * lengths.itemsize))
        heap.rows = PackedRows(tids, lengths, self._sections.read(sum(lengths)))
        heap.inserter.update((Tid(tid), Xid(xid)) for tid, xid in stored["inserters"])
        heap.deleter.update((Tid(tid), Xid(xid)) for tid, xid in stored["deleters"])
        return heap


def _numbers(locator: RelFileLocator) -> tuple[int, int, int]:
    return locator.spc, locator.db, locator.rel


def _locator(stored: Sequence[int]) -> RelFileLocator:
    spc, db, rel = stored
    return RelFileLocator(Oid(spc), Oid(db), Oid(rel))


# --- journal


def journal_head(major: int, system_identifier: SystemIdentifier) -> bytes:
    """Return the header of a journal file."""
    return _JOURNAL_HEAD.pack(_JOURNAL_MAGIC, JOURNAL_VERSION, major, system_identifier)


def dump_entry(record: Record | RawRecord, timeline: TimelineId, top_xid: Xid) -> bytes:
    """Return the journal entry of a record."""
    head = _ENTRY_HEAD.pack(0, len(record.raw), record.lsn, record.end_lsn, timeline, top_xid)
    rest = head[_CRC_BYTES:] + record.raw
    return _U32.pack(google_crc32c.value(rest)) + rest


class Journal:
    """The complete part of a journal file's contents."""

    def __init__(self, data: bytes, where: str) -> None:
        if len(data) < _JOURNAL_HEAD.size:
            raise DamagedHistory(f"{where}: {len(data)} bytes are too few for a catalog journal")
        magic, version, major, system_identifier = _JOURNAL_HEAD.unpack_from(data)
        if magic != _JOURNAL_MAGIC:
            raise DamagedHistory(f"{where}: not a catalog journal")
        if version != JOURNAL_VERSION:
            raise DamagedHistory(f"{where}: journal of format {version}; this Tidemark reads {JOURNAL_VERSION}")
        self.major: int = major
        self.system_identifier = SystemIdentifier(system_identifier)
        self.complete_bytes = _JOURNAL_HEAD.size  # end of the last complete entry that was iterated
        self._data = data

    def __iter__(self) -> Iterator[JournalEntry]:
        self.complete_bytes = _JOURNAL_HEAD.size
        for entry, end in entries_from(self._data, _JOURNAL_HEAD.size):
            yield entry
            self.complete_bytes = end


def entries_from(data: bytes, at: int) -> Iterator[tuple[JournalEntry, int]]:
    """Yield the complete entries of a journal from the start of one, each with the offset of its end."""
    while at + _ENTRY_HEAD.size <= len(data):
        crc, raw_bytes, lsn, end_lsn, timeline, top_xid = _ENTRY_HEAD.unpack_from(data, at)
        begin = at + _ENTRY_HEAD.size
        end = begin + raw_bytes
        if raw_bytes > RECORD_BYTES_MAX or end > len(data) or google_crc32c.value(data[at + _CRC_BYTES : end]) != crc:
            return
        yield JournalEntry(Lsn(lsn), Lsn(end_lsn), TimelineId(timeline), Xid(top_xid), data[begin:end]), end
        at = end


def replay(base: Base, entries: Iterable[JournalEntry], until: Lsn) -> Lsn:
    """Apply the journal to the mirrors of `base` up to `until`; return the end of the last applied record."""
    fmt = wal_format(base.major)
    follower = CatalogFollower(fmt, base.mirrors)
    reached = base.lsn
    for entry in entries:
        if entry.lsn >= until:
            break
        if entry.lsn < base.lsn:
            continue
        if entry.lsn < reached:
            raise DamagedHistory(f"journal goes back from {format_lsn(reached)} to {format_lsn(entry.lsn)}")
        follower.follow(parse_record(entry.lsn, entry.end_lsn, entry.raw, fmt), entry.top_xid)
        reached = entry.end_lsn
    return reached
