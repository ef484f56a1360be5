"""Hand-made WAL records, and a scripted catalog: input of the decoder, without a server."""

import struct
from collections.abc import Collection, Sequence

from tests.support.forged import wal as forged
from tests.support.forged.groups import DATABASE, TIMELINE
from tests.support.forged.wal import ForgedBlock
from tidemark.decode.datum.varlena import ExternalPointer
from tidemark.decode.transactions.decoder import Decoder
from tidemark.decode.transactions.ports import Catalog, CatalogRow, DatabaseSelectionChange, DroppedTable, SpillPort
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction, RowRun
from tidemark.decode.transactions.reorder_buffer.itemlog import Item
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import REGCLASS
from tidemark.model.lsn import INVALID_LSN, FullXid, Lsn, Oid, TimelineId, Xid
from tidemark.model.relation import Relation, RelFileLocator
from tidemark.wal.page import RecordBlock
from tidemark.wal.record import Record, parse_record
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, RM_LOGICALMSG, RM_STANDBY, RM_XACT, heap, heap2, xact
from tidemark.wal.versions import wal_format

FORMAT = wal_format(15)
NEXT_XID = FullXid(700)
MEMORY_BYTES = 1 << 20
CATALOG_FILE = RelFileLocator(Oid(1663), DATABASE, Oid(1259))
RECORD_BYTES = 64  # LSN space of each forged record
POSTGRES_EPOCH_US = 946_684_800_000_000


def locator(oid: int, database: Oid = DATABASE) -> RelFileLocator:
    """Return the file of the relation `oid` in a scripted catalog."""
    return RelFileLocator(Oid(1663), database, Oid(oid))


def packed_row(number: int, note: bytes | None = b"x") -> bytes:
    """Return a packed tuple of `groups.relation`: id, note; a note that is already a datum is used unchanged."""
    external = note is not None and note[:2] == b"\x01\x12"
    bits = 0 if note is not None else 1
    head = struct.pack("<HHB", 2, bits | (4 if external else 0) | 2, 24)
    values = struct.pack("<q", number)
    if note is not None:
        values += note if external else struct.pack("<I", len(note) + 4 << 2) + note
    return head + b"\x01" + values


def external(pointer: ExternalPointer) -> bytes:
    """Return the datum of a pointer into a TOAST table."""
    info = pointer.stored_size | pointer.compression << 30
    return b"\x01\x12" + struct.pack("<iIII", pointer.raw_size, info, pointer.value_id, pointer.toast_relation)


def packed_chunk(value_id: int, number: int, content: bytes, *, short: bool = False) -> bytes:
    """Return a packed row of a TOAST table; `short`: its datum has the header of one byte, if it is short enough."""
    is_short = short and len(content) < 127
    datum = (bytes([len(content) + 1 << 1 | 1]) if is_short else struct.pack("<I", len(content) + 4 << 2)) + content
    return struct.pack("<HHBx", 3, 2, 24) + struct.pack("<Ii", value_id, number) + datum


class ScriptedCatalog:
    """A catalog that changes at a test's request: the test defines what each transaction sees."""

    def __init__(self, *relations: Relation) -> None:
        self.committed = {relation.oid: relation for relation in relations}
        self.own: dict[Xid, dict[Oid, Relation | None]] = {}
        self.script: dict[Lsn, tuple[Xid, Oid, Relation | None]] = {}  # by catalog record: top-level xid, OID, version
        self._done: list[tuple[Xid, Xid, Oid]] = []  # record's xid, top-level xid, OID
        self._touched: dict[Xid, set[Oid]] = {}
        self.aborted_below: list[Xid] = []
        self.outdated_count = 0
        self.questions = 0  # number of lookups of relation versions

    @property
    def database(self) -> Oid:
        return DATABASE

    @property
    def dialect(self) -> Dialect:
        return Dialect()

    def look_different(self, top_xid: int, oid: int, version: Relation) -> None:
        """Let `top_xid` see `version` from now on, without a record."""
        self.own.setdefault(Xid(top_xid), {})[Oid(oid)] = version
        self._touched.setdefault(Xid(top_xid), set()).add(Oid(oid))

    def redo(self, record: Record, top_xid: Xid) -> bool:
        if not record.blocks or record.blocks[0].locator != CATALOG_FILE:
            return False
        top, oid, version = self.script[record.lsn]
        assert top == top_xid
        self.own.setdefault(top, {})[oid] = version
        self._done.append((record.xid, top, oid))
        self._touched.setdefault(top, set()).add(oid)
        return True

    @staticmethod
    def redo_rows(rows: Sequence[CatalogRow], xid: Xid, top_xid: Xid) -> int:
        del rows, xid, top_xid
        return 0  # each needs its record: the script is by records

    def commit(self, xids: Collection[Xid], lsn: Lsn) -> bool:
        del lsn
        changed = any(xid in self.own for xid in xids)
        self.outdated_count += changed
        for xid in xids:
            for oid, version in self.own.pop(xid, {}).items():
                self.committed.pop(oid, None)
                if version is not None:
                    self.committed[oid] = version
        return changed

    def abort(self, xids: Collection[Xid]) -> bool:
        gone = set(xids)
        for xid, top_xid, oid in self._done:
            if xid in gone:
                self.own.get(top_xid, {}).pop(oid, None)
                self._touched.setdefault(top_xid, set()).add(oid)
        return any(xid in gone for xid, _, _ in self._done)

    def abort_older_than(self, oldest_running: Xid) -> bool:
        self.aborted_below.append(oldest_running)
        return False

    def resolve(self, locator: RelFileLocator, top_xid: Xid) -> Relation | None:
        return self.relation(locator.rel, top_xid)

    def relation(self, oid: Oid, top_xid: Xid | None) -> Relation | None:
        self.questions += 1
        if top_xid is not None and oid in self.own.get(top_xid, {}):
            return self.own[top_xid][oid]
        return self.committed.get(oid)

    def object_name(self, kind: Oid, oid: Oid, top_xid: Xid) -> str | None:
        seen = self.relation(oid, top_xid)
        return seen.name if kind == REGCLASS and seen is not None else None

    def pop_touched(self, top_xid: Xid) -> Collection[Oid]:
        return self._touched.pop(top_xid, set())

    def rewriting(self, top_xid: Xid) -> Collection[Oid]:
        return [seen.rewrite_of for seen in self.own.get(top_xid, {}).values() if seen is not None]


class OneDatabase:
    """A cluster whose only followed database has a scripted catalog."""

    def __init__(self, catalog: ScriptedCatalog) -> None:
        self._catalog = catalog
        self.renamed_by: Xid | None = None  # the transaction that renames it out of the selection
        self.redo = catalog.redo
        self.commit = catalog.commit
        self.abort = catalog.abort
        self.abort_older_than = catalog.abort_older_than

    @property
    def outdated_count(self) -> int:
        return self._catalog.outdated_count

    def captured(self, database: Oid) -> Catalog | None:
        return self._catalog if database == DATABASE else None

    def selection_changes(self, xid: Xid) -> Sequence[DatabaseSelectionChange]:
        if xid != self.renamed_by:
            return ()
        tables = tuple(self._catalog.committed.values())
        return (DatabaseSelectionChange(self._catalog, tables, appears=False, is_dropped=False),)

    def dropped_in_left(self, xid: Xid) -> Sequence[DroppedTable]:
        del xid
        return ()


class Wal:
    """Forges records one after the other, feeds them to a decoder, and collects its output."""

    def __init__(
        self,
        *relations: Relation,
        memory_bytes: int = MEMORY_BYTES,
        spill: SpillPort | None = None,
        from_lsn: Lsn = INVALID_LSN,
    ) -> None:
        self.catalog = ScriptedCatalog(*relations)
        self.databases = OneDatabase(self.catalog)
        self.decoder = Decoder(
            FORMAT,
            TimelineId(TIMELINE),
            self.databases,
            next_xid=NEXT_XID,
            memory_bytes=memory_bytes,
            spill=spill,
            from_lsn=from_lsn,
        )
        self.lsn = 0x1000
        self.raws: list[tuple[Lsn, Lsn, bytes]] = []  # begin, end, record
        self.out: list[object] = []

    def record(
        self,
        rmgr: int,
        info: int,
        main: bytes,
        *,
        xid: int = 0,
        top: int = 0,
        file: RelFileLocator | None = None,
        data: bytes = b"",
        origin: int = 0,
    ) -> Lsn:
        """Feed a record; return its LSN."""
        lsn, end = Lsn(self.lsn), Lsn(self.lsn + RECORD_BYTES)
        self.lsn = end
        blocks = [] if file is None else [ForgedBlock(locator=file, data=data)]
        raw = forged.record(
            forged.body(main, blocks, origin=origin or None, top_xid=top or None), rmgr=rmgr, info=info, xid=xid
        )
        self.raws.append((lsn, end, raw))
        decoded = self.decoder.decode(parse_record(lsn, end, raw, FORMAT))
        if decoded is not None:
            self.out.append(decoded)
        return lsn

    def insert(
        self, xid: int, oid: int, packed: bytes, *, top: int = 0, offset: int = 1, flags: int = 0, origin: int = 0
    ) -> Lsn:
        main = struct.pack("<HB", offset, heap.INSERT_CONTAINS_NEW_TUPLE | flags)
        return self.record(RM_HEAP, heap.INSERT, main, xid=xid, top=top, file=locator(oid), data=packed, origin=origin)

    def update(self, xid: int, oid: int, packed: bytes, *, old: bytes = b"", old_flag: int = 0, top: int = 0) -> Lsn:
        flags = heap.UPDATE_CONTAINS_NEW_TUPLE | old_flag
        main = struct.pack("<IHBBIH", 0, 1, 0, flags, 0, 2) + old
        return self.record(RM_HEAP, heap.UPDATE, main, xid=xid, top=top, file=locator(oid), data=packed)

    def delete(self, xid: int, oid: int, *, old: bytes = b"", flags: int = 0, offset: int = 1) -> Lsn:
        main = struct.pack("<IHBB", xid, offset, 0, flags) + old
        return self.record(RM_HEAP, heap.DELETE, main, xid=xid, file=locator(oid))

    def confirm(self, xid: int, oid: int, offset: int = 1) -> Lsn:
        return self.record(RM_HEAP, heap.CONFIRM, struct.pack("<H", offset), xid=xid, file=locator(oid))

    def multi_insert(self, xid: int, oid: int, rows: Sequence[bytes], *, last: bool = True) -> Lsn:
        flags = heap.INSERT_CONTAINS_NEW_TUPLE | (heap.INSERT_LAST_IN_MULTI if last else 0)
        main = struct.pack(f"<BxH{len(rows)}H", flags, len(rows), *range(1, len(rows) + 1))
        data = b""
        for row in rows:
            data += bytes(len(data) % 2) + struct.pack("<H", len(row) - 5) + row
        return self.record(RM_HEAP2, heap2.MULTI_INSERT, main, xid=xid, file=locator(oid), data=data)

    def truncate(self, xid: int, *oids: int, flags: int = 0) -> Lsn:
        main = struct.pack(f"<IIB3x{len(oids)}I", DATABASE, len(oids), flags, *oids)
        return self.record(RM_HEAP, heap.TRUNCATE, main, xid=xid)

    def message(self, prefix: bytes, content: bytes, *, xid: int = 0, database: int = DATABASE) -> Lsn:
        main = struct.pack("<IB3xQQ", database, xid != 0, len(prefix) + 1, len(content)) + prefix + b"\0" + content
        return self.record(RM_LOGICALMSG, 0, main, xid=xid)

    def change_catalog(self, xid: int, oid: int, version: Relation | None, *, top: int = 0) -> Lsn:
        """Change a transaction's view of a relation, by a record of `xid`."""
        self.catalog.script[Lsn(self.lsn)] = (Xid(top or xid), Oid(oid), version)
        main = struct.pack("<HB", 1, 0)
        first = top if top and Xid(xid) not in self.decoder.transactions.top_of else 0
        return self.record(RM_HEAP, heap.INSERT, main, xid=xid, top=first, file=CATALOG_FILE)

    def commit(self, xid: int, *subxids: int) -> Lsn:
        return self._end(xact.COMMIT, xid, subxids)

    def abort(self, xid: int, *subxids: int, top: int = 0) -> Lsn:
        return self._end(xact.ABORT, xid, subxids, top)

    def assign(self, top: int, *subxids: int) -> Lsn:
        """Write an assignment record, as the first record of the last of them."""
        return self._assign(top, subxids, by=subxids[-1])

    def assign_outer(self, top: int, sub: int) -> Lsn:
        """Write an assignment record for a subtransaction inside it, which has no xid yet."""
        return self._assign(top, (sub,), by=0)

    def _assign(self, top: int, subxids: Sequence[int], by: int) -> Lsn:
        main = struct.pack(f"<Ii{len(subxids)}I", top, len(subxids), *subxids)
        return self.record(RM_XACT, xact.ASSIGNMENT, main, xid=by, top=top if by else 0)

    def prepare(self, xid: int, gid: bytes) -> Lsn:
        name = gid + b"\0"
        head = struct.pack(
            "<IIIIqIiiiiiiBxHQq", 0x57F94534, 0, xid, DATABASE, 0, 10, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0
        )
        return self.record(RM_XACT, xact.PREPARE, head + name + bytes(-len(name) % 8), xid=xid)

    def commit_prepared(self, xid: int, gid: bytes) -> Lsn:
        main = struct.pack("<qIIII", 0, 0x1 | 0x10 | 0x80, DATABASE, 1663, xid) + gid + b"\0"
        return self.record(RM_XACT, xact.COMMIT_PREPARED | 0x80, main)

    def running_xacts(self, oldest: int) -> Lsn:
        return self.record(RM_STANDBY, 0x10, struct.pack("<iiB3xIII", 0, 0, 0, oldest, oldest, oldest - 1))

    def _end(self, opcode: int, xid: int, subxids: Sequence[int], top: int = 0) -> Lsn:
        if opcode == xact.ABORT and not subxids:
            return self.record(RM_XACT, opcode, struct.pack("<q", 0), xid=xid, top=top)
        info = 0x1 | (0x2 if subxids else 0)
        main = struct.pack("<qIII", 0, info, DATABASE, 1663)
        if subxids:
            main += struct.pack(f"<i{len(subxids)}I", len(subxids), *subxids)
        return self.record(RM_XACT, opcode | 0x80, main, xid=xid, top=top)

    @property
    def committed(self) -> list[CommittedTransaction]:
        """The transactions that the decoder emitted."""
        return [decoded for decoded in self.out if isinstance(decoded, CommittedTransaction)]


def block_of(raws: Sequence[tuple[Lsn, Lsn, bytes]]) -> RecordBlock:
    """Return records as framing emits them, of major 15 like all forged records here."""
    block = RecordBlock(FORMAT, bytearray(b"".join(raw for _, _, raw in raws)))
    at = 0
    for index, (lsn, end, raw) in enumerate(raws):
        block.lsns[index], block.ends[index] = lsn, end
        block.xids[index] = int.from_bytes(raw[4:8], "little")
        block.infos[index], block.rmgrs[index] = raw[16], raw[17]
        block.offsets[index], block.lengths[index] = at, len(raw)
        at += len(raw)
    block.count = block.record_count = len(raws)
    if raws:
        block.last_lsn, block.end_lsn = raws[-1][:2]
    return block


def reported(transaction: CommittedTransaction) -> list[str | Item]:
    """Return the content of a transaction: rows as `op relation new/old`, other items unchanged."""
    rows: list[str | Item] = []
    for item in transaction.items():
        if not isinstance(item, RowRun):
            rows.append(item)
            continue
        for row in item.rows():
            name = item.versions.relations[row.relation].name
            values = "/".join(
                str(int.from_bytes(packed[6:14], "little")) if packed is not None else "-"
                for packed in (row.new, row.old)
            )
            origin = f" from {row.origin}" if row.origin else ""
            rows.append(f"{chr(row.op)} {name} {values}{origin}")
    return rows
