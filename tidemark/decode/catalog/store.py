"""The tracked catalogs of one database (or the shared ones) as WAL leaves them, and what open transactions did to them.

A mark says that an xid, top-level or sub, made or ended a row; the end of the xid settles its marks. The deleter is
the record's xid, never the tuple's xmax, which may be a lock. What a transaction changed is kept as *subjects*: the
relations, types, namespaces and databases whose rows it touched.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemark.decode.catalog.heap import CatalogHeap, Sight, Tid
from tidemark.decode.catalog.layout import (
    CATALOG_OF_OID,
    PG_CLASS,
    PG_DATABASE,
    PG_ENUM,
    PG_NAMESPACE,
    PG_RANGE,
    PG_TYPE,
    Catalog,
    data_at,
)
from tidemark.decode.catalog.redo import (
    CatalogDiverged,
    RowDeleted,
    RowInserted,
    RowOverwritten,
    SeedOvertaken,
    refresh,
    row_changes,
)
from tidemark.decode.catalog.rewrite import Fate, copied_rows, shape_of
from tidemark.model.lsn import INVALID_OID, Lsn, Oid, Xid, format_lsn
from tidemark.model.relation import RelFileLocator
from tidemark.wal.record import INFO_MASK, MAIN_FORK, Record
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, RM_RELMAP, RM_XLOG, relmap, xlog
from tidemark.wal.versions import WalFormat

GLOBAL_TABLESPACE = Oid(1664)
_HALF_OF_XIDS = 1 << 31
_ALL_XIDS = (1 << 32) - 1


class Subject(NamedTuple):
    """Something that has a description: `kind` is the catalog that names it."""

    kind: Oid
    oid: Oid


_KIND_OF_CATALOG = {catalog.oid: PG_CLASS.oid for catalog in CATALOG_OF_OID.values()} | {
    PG_TYPE.oid: PG_TYPE.oid,
    PG_ENUM.oid: PG_TYPE.oid,
    PG_RANGE.oid: PG_TYPE.oid,
    PG_NAMESPACE.oid: PG_NAMESPACE.oid,
    PG_DATABASE.oid: PG_DATABASE.oid,
}


def precedes(xid: int, other: int) -> bool:
    """Tell if `xid` is older than `other`, as the server compares 32-bit xids."""
    return (xid - other) & _ALL_XIDS >= _HALF_OF_XIDS


@dataclass(slots=True)
class PendingFile:
    """A copy of a catalog that is not the catalog yet."""

    heap: CatalogHeap
    owner: Xid  # sub- or top-level: its end decides


@dataclass(slots=True)
class OpenChanges:
    """What one open top-level transaction did to catalogs."""

    xid: Xid
    subjects: set[Subject] = field(default_factory=set)
    version: int = 0  # grows with every change, so that what was seen through it can be known to be old
    rewriting: dict[Oid, Xid] = field(default_factory=dict)  # catalogs that it copies, and which xid said so
    expected: dict[RelFileLocator, Oid] = field(default_factory=dict)  # files of unmapped ones, told beforehand
    pending: dict[RelFileLocator, PendingFile] = field(default_factory=dict)
    views: dict[Oid, CatalogHeap] = field(default_factory=dict)  # catalogs that it sees in its own new file


class CatalogStore:
    """Catalogs, marks and rewrites of one database; database 0 is the shared catalogs."""

    def __init__(
        self, fmt: WalFormat, database: Oid, tablespace: Oid, heaps: Iterable[CatalogHeap], *, learning: bool = False
    ) -> None:
        self.format = fmt
        self.database = database
        self.tablespace = tablespace  # of files whose reltablespace is 0
        self.learning = learning
        self.heaps = {heap.layout.catalog.oid: heap for heap in heaps}
        self.open: dict[Xid, OpenChanges] = {}
        self.top_of: dict[Xid, Xid] = {}  # of subtransactions that touched catalogs
        self.marks: dict[Xid, list[tuple[CatalogHeap, Tid]]] = {}
        self.aborted: set[Xid] = set()  # while a rewrite is on
        self.commits = 0  # that changed these catalogs
        self.revision = 0  # grows with every record that changed anything here: those belong into a journal
        self._by_file = {heap.file: heap for heap in self.heaps.values()}
        self._class_row = None
        if PG_CLASS.oid in self.heaps:
            self._class_row = self.heaps[PG_CLASS.oid].layout.projection(
                "oid", "relfilenode", "reltablespace", "relrewrite"
            )

    def restore(self, changes: Iterable[OpenChanges]) -> None:
        """Take over the open transactions of a saved store, and make their marks again."""
        heaps = list(self.heaps.values())
        for told in changes:
            self.open[told.xid] = told
            self._by_file.update((locator, pending.heap) for locator, pending in told.pending.items())
            heaps += [pending.heap for pending in told.pending.values()]
        for heap in heaps:
            for tid, xid in (*heap.inserter.items(), *heap.deleter.items()):
                self.marks.setdefault(xid, []).append((heap, tid))

    def heap(self, catalog: Catalog, top_xid: Xid | None = None) -> CatalogHeap:
        """Return the rows of `catalog`, from the new file where the transaction is already in it."""
        changes = self.open.get(top_xid) if top_xid is not None else None
        if changes is not None and catalog.oid in changes.views:
            return changes.views[catalog.oid]
        return self.heaps[catalog.oid]

    def sight(self, top_xid: Xid | None) -> Sight:
        """Return what the transaction sees; None: what is committed."""
        return Sight(top_xid, self.top_of)

    def tracks(self, locator: RelFileLocator) -> bool:
        """Tell if `locator` is a file of a tracked catalog."""
        return locator in self._by_file

    # --- records

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Take a record of `top_xid` (0: of no transaction); tell if it was about these catalogs."""
        if record.rmgr == RM_RELMAP:
            return self._relation_map(record)
        if not record.blocks or record.rmgr not in (RM_HEAP, RM_HEAP2, RM_XLOG):
            return False
        block = record.blocks[0]
        heap = self._by_file.get(block.locator)
        is_page = record.rmgr == RM_XLOG and record.info & INFO_MASK == xlog.FPI
        if is_page and top_xid and (heap is None or self._is_pending(block.locator)):
            return self._copy(record, top_xid)
        if heap is None or block.fork != MAIN_FORK:
            return False
        changed = record.rmgr != RM_XLOG and self._change_rows(heap, record, top_xid)
        refreshed = refresh(heap, record)
        self.revision += changed or refreshed
        return True

    def _is_pending(self, locator: RelFileLocator) -> bool:
        return any(locator in changes.pending for changes in self.open.values())

    def _change_rows(self, heap: CatalogHeap, record: Record, top_xid: Xid) -> bool:
        changed = False
        for change in row_changes(heap, record):
            changed = True
            if isinstance(change, RowOverwritten):
                if change.tid in heap.rows:
                    heap.replace(change.tid, change.packed)
                elif heap.learning:
                    heap.learning.images[change.tid] = change.packed
                continue
            if not record.xid:
                raise CatalogDiverged(f"row change without a transaction at {format_lsn(record.lsn)}")
            changes = self._enter(record.xid, top_xid)
            if heap.file in changes.pending:
                changes.views[heap.layout.catalog.oid] = heap
            if isinstance(change, RowInserted):
                heap.insert(change.tid, change.packed, record.xid)
                self._note(changes, heap, change.packed)
                if heap.layout.catalog is PG_CLASS:
                    self._mark_rewrite(changes, change.packed, record.xid)
            elif isinstance(change, RowDeleted):
                heap.deleter[change.tid] = record.xid
                self._note(changes, heap, heap.known_bytes(change.tid))
            self.marks.setdefault(record.xid, []).append((heap, change.tid))
        return changed

    def _enter(self, xid: Xid, top_xid: Xid) -> OpenChanges:
        if xid != top_xid:
            self.top_of[xid] = top_xid
        changes = self.open.get(top_xid)
        if changes is None:
            changes = self.open[top_xid] = OpenChanges(top_xid)
        changes.version += 1
        return changes

    def _note(self, changes: OpenChanges, heap: CatalogHeap, packed: bytes | None) -> None:
        if packed and heap.layout.fits(packed):
            changes.subjects.add(Subject(_KIND_OF_CATALOG[heap.layout.catalog.oid], heap.subject(packed)))

    # --- ends of transactions

    def commit(self, xids: Collection[Xid], lsn: Lsn) -> frozenset[Subject]:
        """Settle a committed transaction with its subtransactions; return the subjects that it changed."""
        subjects: set[Subject] = set()
        changed = [self.open[xid] for xid in xids if xid in self.open]
        for xid in xids:
            self.top_of.pop(xid, None)
            for heap, tid in self.marks.pop(xid, ()):
                heap.commit(tid, xid)
        for changes in changed:
            subjects |= changes.subjects
            self._activate_unmapped(changes, lsn)
            self._close(changes)
        self.commits += bool(changed)
        self.revision += bool(changed)
        return frozenset(subjects)

    def abort(self, xids: Collection[Xid]) -> bool:
        """Settle an aborted transaction, or a subtransaction with those below it; tell if that changed rows."""
        gone = set(xids)
        for xid in xids:
            if xid in self.open:
                gone |= {child for child, top in self.top_of.items() if top == xid}
        parents = {self.top_of.get(xid, xid) for xid in gone} & self.open.keys()
        if any(changes.rewriting for changes in self.open.values()):
            self.aborted |= gone & self.marks.keys()
        changed = False
        for xid in gone:
            self.top_of.pop(xid, None)
            for heap, tid in self.marks.pop(xid, ()):
                heap.abort(tid, xid)
                changed = True
        for top_xid in parents:
            changes = self.open[top_xid]
            changes.version += 1
            if top_xid in gone:
                self._close(changes)
                changed = True
            else:
                self._drop_rewrites(changes, gone)
        self.revision += changed
        return changed

    def abort_older_than(self, oldest_running: Xid) -> bool:
        """Abort what a crash left open: everything older than the oldest transaction that runs."""
        return self.abort([xid for xid in self.open if precedes(xid, oldest_running)])

    def _close(self, changes: OpenChanges) -> None:
        del self.open[changes.xid]
        for locator in changes.pending:
            del self._by_file[locator]
        if not any(other.rewriting for other in self.open.values()):
            self.aborted.clear()

    # --- rewrites (see rewrite.py)

    def _mark_rewrite(self, changes: OpenChanges, packed: bytes, xid: Xid) -> None:
        assert self._class_row is not None
        _oid, relfilenode, tablespace, rewritten = self._class_row.unpack_from(packed, data_at(packed))
        if rewritten in self.heaps:
            changes.rewriting[rewritten] = xid
            if relfilenode:
                locator = RelFileLocator(tablespace or self.tablespace, self.database, relfilenode)
                changes.expected[locator] = rewritten

    def _copied_catalog(self, changes: OpenChanges, locator: RelFileLocator, image: bytes) -> CatalogHeap | None:
        """Return the catalog that the unknown file `locator` with the page `image` is a copy of."""
        if locator in changes.expected:
            return self.heaps[changes.expected[locator]]
        shape = shape_of(image)
        told = set(changes.expected.values())
        for catalog, heap in self.heaps.items():
            # Nobody tells of a shared catalog's rewrite if it runs in a database that is not captured.
            marked = catalog in changes.rewriting and catalog not in told
            if (marked or not self.database) and shape == len(heap.layout.columns):
                return heap
        return None

    def _copy(self, record: Record, top_xid: Xid) -> bool:
        """Take pages of a file that may be the new file of a catalog."""
        changes = self.open.get(top_xid)
        locator = record.blocks[0].locator
        if locator.db != self.database or (changes is None and self.database):
            return False
        changes = changes or OpenChanges(top_xid)
        copied = False
        for block in record.blocks:
            if block.fork != MAIN_FORK or not block.has_image:
                continue
            image = block.restore_page()
            pending = changes.pending.get(locator)
            if pending is None:
                old = self._copied_catalog(changes, locator, image)
                if old is None:
                    return copied
                self.open.setdefault(top_xid, changes)
                heap = CatalogHeap(old.layout, locator, learning=False)
                pending = changes.pending[locator] = PendingFile(heap, record.xid)
                self._by_file[locator] = heap
            old = self.heaps[pending.heap.layout.catalog.oid]
            for row in copied_rows(block.block, image, old, self._fate):
                pending.heap.insert(row.tid, row.packed, row.inserter)
                if row.inserter:
                    self.marks[row.inserter].append((pending.heap, row.tid))
                if row.deleter:
                    pending.heap.deleter[row.tid] = row.deleter
                    self.marks[row.deleter].append((pending.heap, row.tid))
            copied = True
        self.revision += copied
        return copied

    def _fate(self, xid: Xid) -> Fate:
        if xid in self.marks:
            return Fate.OPEN
        return Fate.ABORTED if xid in self.aborted else Fate.COMMITTED

    def _drop_rewrites(self, changes: OpenChanges, gone: set[Xid]) -> None:
        """Forget the rewrites of aborted subtransactions."""
        for catalog in [catalog for catalog, xid in changes.rewriting.items() if xid in gone]:
            del changes.rewriting[catalog]
            changes.expected = {file: oid for file, oid in changes.expected.items() if oid != catalog}
        for locator in [locator for locator, pending in changes.pending.items() if pending.owner in gone]:
            heap = changes.pending.pop(locator).heap
            del self._by_file[locator]
            if changes.views.get(heap.layout.catalog.oid) is heap:
                del changes.views[heap.layout.catalog.oid]

    def _relation_map(self, record: Record) -> bool:
        update = relmap.parse(record, self.format)
        if update is None or update.database != self.database:
            return False
        moved = False
        for catalog, heap in list(self.heaps.items()):
            relfilenode = update.files.get(catalog, heap.file.rel)
            if relfilenode != heap.file.rel:
                self._activate(catalog, heap.file._replace(rel=relfilenode), record.lsn)
                moved = True
        self.revision += moved
        return moved

    def _activate_unmapped(self, changes: OpenChanges, lsn: Lsn) -> None:
        """Follow catalogs whose file stands in pg_class: its row for them changed with this commit."""
        if self._class_row is None:
            return
        for subject in changes.subjects:
            if subject.kind == PG_CLASS.oid and subject.oid in self.heaps:
                for packed in self.heaps[PG_CLASS.oid].find("oid", subject.oid, self.sight(None)):
                    _oid, relfilenode, tablespace, _rewritten = self._class_row.unpack_from(packed, data_at(packed))
                    locator = RelFileLocator(tablespace or self.tablespace, self.database, relfilenode)
                    if relfilenode != INVALID_OID and locator != self.heaps[subject.oid].file:
                        self._activate(subject.oid, locator, lsn)

    def _activate(self, catalog: Oid, locator: RelFileLocator, lsn: Lsn) -> None:
        """Let the copy in `locator` be the catalog from here on, whatever becomes of the transaction that made it."""
        old = self.heaps[catalog]
        name = old.layout.catalog.name
        writer = next((changes for changes in self.open.values() if locator in changes.pending), None)
        if writer is not None:
            new = writer.pending.pop(locator).heap
            writer.views.pop(catalog, None)
        elif self.learning:
            raise SeedOvertaken(f"{name} got a new file at {format_lsn(lsn)}")
        elif any(catalog in changes.rewriting for changes in self.open.values()):
            new = CatalogHeap(old.layout, locator)  # a copy without rows has no pages
        else:
            raise CatalogDiverged(f"{name} got a new file at {format_lsn(lsn)} that was not seen being written")
        self._by_file.pop(old.file, None)
        self._by_file[locator] = new
        self.heaps[catalog] = new
