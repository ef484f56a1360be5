"""The tracked catalogs of one database (or the shared ones), updated by records and ends of transactions."""

from collections.abc import Callable, Collection, Iterable, Sequence

from tidemark.decode.catalog.files import CatalogFiles
from tidemark.decode.catalog.heap import CatalogHeap, CatalogSnapshot, format_tid
from tidemark.decode.catalog.layout import PG_CLASS, CatalogId
from tidemark.decode.catalog.packed_rows import Tid
from tidemark.decode.catalog.redo import (
    CatalogDiverged,
    RowInserted,
    RowOverwritten,
    SeedOvertaken,
    refresh,
    row_changes,
)
from tidemark.decode.catalog.rewrite import CopiedRow, Ends, copied_rows
from tidemark.decode.catalog.transactions import Marks, OpenChanges, Subject, XidStatus, precedes, subject_of
from tidemark.decode.transactions.ports import CatalogRow
from tidemark.model.lsn import INVALID_LSN, BlockNumber, Lsn, Oid, Xid, format_lsn
from tidemark.model.relation import RelFileLocator
from tidemark.wal.record import INFO_MASK, MAIN_FORK, BadRecord, Record
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, RM_MULTIXACT, RM_RELMAP, RM_XLOG, multixact, xlog
from tidemark.wal.rmgr.heap import INSERT, OPCODE_MASK
from tidemark.wal.versions import WalFormat

GLOBAL_TABLESPACE = Oid(1664)
_WITH_ROWS = frozenset({RM_HEAP, RM_HEAP2, RM_XLOG})


class CatalogStore:
    """Catalogs, marks and rewrites of one database; database 0: the shared catalogs."""

    def __init__(
        self,
        fmt: WalFormat,
        database: Oid,
        tablespace: Oid,
        heaps: Iterable[CatalogHeap],
        *,
        seeding_from: Xid | None = None,
        files_lsn: Lsn = INVALID_LSN,
    ) -> None:
        """`tablespace` is that of files whose reltablespace is 0; for the last two see `Marks` and `CatalogFiles`."""
        self.format = fmt
        self.database = database
        self.open: dict[Xid, OpenChanges] = {}
        self.top_of: dict[Xid, Xid] = {}  # of subtransactions that changed catalogs
        self.marks = Marks(seeding_from=seeding_from)
        self.files = CatalogFiles(
            database, tablespace, heaps, self.open, self.marks, files_lsn=files_lsn, record_change=self._record_change
        )
        self.commits = 0  # that changed these catalogs
        self.revision = 0  # grows with every record that changed the store: these records belong into a journal

    @property
    def heaps(self) -> dict[Oid, CatalogHeap]:
        """The catalogs' rows by the catalogs' OIDs."""
        return self.files.heaps

    @property
    def tablespace(self) -> Oid:
        """The tablespace of files whose reltablespace is 0."""
        return self.files.tablespace

    def move(self, tablespace: Oid) -> None:
        """Move all files of the default tablespace to another one."""
        self.files.move(tablespace)
        self._count(True)

    @property
    def seeding(self) -> bool:
        """Return whether a seed is in progress: most rows are not known yet."""
        return self.marks.seeding

    @property
    def awaits_no_end(self) -> bool:
        """Return whether no transaction's end has any effect here."""
        return not (self.open or self.top_of or self.marks.open_xids() or self.marks.seeding)

    def end_seed(self, status: Callable[[Xid], XidStatus] | None = None) -> None:
        """From now on all rows are known; `status` decides on the transactions from before the seed's WAL."""
        for xid in self.marks.end_seed(status):
            changes = self._enter(xid, self.top_of.get(xid, xid))
            for subject in self.marks.subjects(xid):
                changes.record(subject)
        self.files.end_seed()

    def add_page(
        self,
        heap: CatalogHeap,
        block: BlockNumber,
        page: bytes,
        status: Callable[[Xid], XidStatus],
        updater: Callable[[Xid], Xid],
    ) -> None:
        """Add the rows on a page of the file that WAL did not contain during the seed."""
        assert heap.seeding is not None, "rows are added during a seed"
        images = heap.seeding.images
        for row in copied_rows(block, page, Ends(status, updater, _gone)):
            if heap.is_determined(row.tid):
                continue
            if not heap.layout.fits(row.packed):
                raise BadRecord(INVALID_LSN, f"tuple {format_tid(row.tid)} has {len(row.packed)} bytes")
            deleter = heap.deleter.get(row.tid, row.deleter)  # a record is later than the page
            heap.insert(row.tid, images.get(row.tid, row.packed), row.inserter)
            if deleter:
                heap.deleter[row.tid] = deleter
            self._wait_for_open(heap, row)

    def restore(self, changes: Iterable[OpenChanges]) -> None:
        """Add the open transactions of a saved store, and create their marks."""
        heaps = list(self.heaps.values())
        for restored in changes:
            self.open[restored.xid] = restored
            self.files.restore(restored)
            heaps += [pending.heap for pending in restored.pending.values()]
        for heap in heaps:
            for tid, xid in (*heap.inserter.items(), *heap.deleter.items()):
                self.marks.add(xid, heap, tid)

    def heap(self, catalog: CatalogId, top_xid: Xid | None = None) -> CatalogHeap:
        """Return the rows of `catalog`, from the new file if the transaction already uses it."""
        changes = self.open.get(top_xid) if top_xid is not None else None
        if changes is not None and catalog.oid in changes.views:
            return changes.views[catalog.oid]
        return self.heaps[catalog.oid]

    def snapshot(self, top_xid: Xid | None) -> CatalogSnapshot:
        """Return what the transaction sees; None: what is committed."""
        return CatalogSnapshot(top_xid, self.top_of)

    def tracks(self, locator: RelFileLocator) -> bool:
        """Return whether `locator` is a file of a tracked catalog."""
        return locator in self.files

    # --- records

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Apply a record of `top_xid` (0: no transaction); return whether it concerned these catalogs."""
        if record.rmgr == RM_RELMAP:
            return self._count(self.files.relation_map(record, self.format))
        if record.rmgr == RM_MULTIXACT and self.seeding:
            self._record_multixact(record)
        if not record.blocks or record.rmgr not in _WITH_ROWS:
            return False
        try:
            return self._apply_rows(record, top_xid)
        except SeedOvertaken:
            if not self.files.disprove(record.blocks[0].locator):
                raise
        return False

    def redo_rows(self, rows: Sequence[CatalogRow], xid: Xid, top_xid: Xid) -> int:
        """Apply inserted and deleted rows of `xid`, a part of `top_xid`.

        Return how many were applied: the next one needs `redo` with its record, in a seed, during a rewrite of a
        catalog, and for an error.
        """
        changes = self.open.get(top_xid)
        if changes is None or changes.pending or self.seeding:
            return 0
        self._enter(xid, top_xid)
        count = 0
        for _record, _xid, file, place, packed in rows:
            tid = Tid(place)
            heap = None if file is None else self.files.get(file)
            if heap is None or not (heap.layout.fits(packed) if packed else tid in heap.rows):
                break
            self._change_row(changes, heap, tid, packed or None, xid)
            if packed and heap.layout.catalog is PG_CLASS:
                self.files.check_relation(changes, packed, xid)
            count += 1
            if changes.pending:  # that row began the rewrite of a catalog
                break
        self._count(count > 0)
        return count

    def _apply_rows(self, record: Record, top_xid: Xid) -> bool:
        block = record.blocks[0]
        heap = self.files.get(block.locator)
        is_page = record.rmgr == RM_XLOG and record.info & INFO_MASK == xlog.FPI
        if is_page and top_xid and self.files.may_be_copy(block.locator, top_xid, record.lsn):
            return self._count(self.files.copy(record, top_xid))
        if heap is None:
            return False
        on_rows = block.fork == MAIN_FORK  # a record on the visibility map may have an image of the rows' page, too
        changed = on_rows and record.rmgr != RM_XLOG and self._change_rows(heap, record, top_xid)
        refreshed = refresh(heap, record)
        if refreshed and heap.seeding:
            self._add_undecided(heap, record)
        self._count(changed or refreshed)
        return on_rows or refreshed

    def _add_undecided(self, heap: CatalogHeap, record: Record) -> None:
        """Add the undecided rows in page images whose writing was not seen here.

        They come from a copy of pg_class made before the seed read its file: earlier records on that file were not
        recognised, and SQL does not show uncommitted rows. SQL does show the results of older transactions.
        """
        ends = Ends(self.marks.status_if_younger, self.marks.updaters.get, _gone)
        for block in record.blocks:
            if not block.image_applies or block.fork != MAIN_FORK or block.locator != heap.file:
                continue
            for row in copied_rows(block.block, block.restore_page(), ends):
                if (row.inserter or row.deleter) and not heap.is_determined(row.tid):
                    self._add_row(heap, row)

    def _record_multixact(self, record: Record) -> None:
        made = multixact.parse(record)
        if made is not None and made.updater:
            self.marks.record_multixact(made.multixact, made.updater)

    def _add_row(self, heap: CatalogHeap, row: CopiedRow) -> None:
        if row.inserter:
            heap.insert(row.tid, row.packed, row.inserter)
        if row.deleter:
            heap.deleter[row.tid] = row.deleter
        self._wait_for_open(heap, row)

    def _wait_for_open(self, heap: CatalogHeap, row: CopiedRow) -> None:
        for xid in row.waits_for:
            self._record_change(xid, heap, row.packed)
            self.marks.add(xid, heap, row.tid)

    def _record_change(self, xid: Xid, heap: CatalogHeap, packed: bytes) -> None:
        """Record that an object of a row looks different to the open transaction of `xid`."""
        if heap.layout.fits(packed) and not self.marks.is_older_than_seed(xid):
            self._enter(xid, self.top_of.get(xid, xid)).record(subject_of(heap, packed))

    def _count(self, changed: bool) -> bool:  # noqa: FBT001 - the answer is passed on
        self.revision += changed
        return changed

    def _change_rows(self, heap: CatalogHeap, record: Record, top_xid: Xid) -> bool:
        changed = False
        for change in row_changes(heap, record):
            changed = True
            if isinstance(change, RowOverwritten):
                heap.overwrite(change.tid, change.packed)
                continue
            if not record.xid:
                raise CatalogDiverged(f"row change without a transaction at {format_lsn(record.lsn)}")
            changes = self._enter(record.xid, top_xid)
            if heap.file in changes.pending:
                changes.views[heap.layout.catalog.oid] = heap
            packed = change.packed if isinstance(change, RowInserted) else None
            self._change_row(changes, heap, change.tid, packed, record.xid)
            # NB: not for an update: the row of a transient heap is updated when the files are swapped.
            if packed is not None and heap.layout.catalog is PG_CLASS and record.info & OPCODE_MASK == INSERT:
                self.files.check_relation(changes, packed, record.xid)
        return changed

    def _change_row(self, changes: OpenChanges, heap: CatalogHeap, tid: Tid, packed: bytes | None, xid: Xid) -> None:
        """Insert the row at `tid`, or, with None, delete it, for the time after the commit of `xid`."""
        described = heap.known_bytes(tid) if packed is None else packed
        if described and heap.layout.fits(described):
            changes.record(subject_of(heap, described))
        if packed is None:
            heap.deleter[tid] = xid
        else:
            heap.insert(tid, packed, xid)
        self.marks.add(xid, heap, tid)

    def _enter(self, xid: Xid, top_xid: Xid) -> OpenChanges:
        if xid != top_xid:
            self.top_of[xid] = top_xid
        changes = self.open.get(top_xid)
        if changes is None:
            changes = self.open[top_xid] = OpenChanges(top_xid)
        return changes

    # --- ends of transactions

    def commit(self, xids: Collection[Xid], lsn: Lsn) -> frozenset[Subject]:
        """Apply the commit of a transaction with its subtransactions; return the subjects that it changed."""
        subjects: set[Subject] = set()
        changed = [self.open[xid] for xid in xids if xid in self.open]
        for xid in xids:
            self.top_of.pop(xid, None)
            self.marks.commit(xid)
        for changes in changed:
            subjects |= changes.subjects
            self.files.follow_classes(changes, lsn)
            self._close(changes)
        self.commits += bool(changed)
        self._count(bool(changed))
        return frozenset(subjects)

    def abort(self, xids: Collection[Xid]) -> frozenset[Subject]:
        """Apply the abort of a transaction, or of a subtransaction with those below it.

        Return the subjects that the ended top-level transactions had changed.
        """
        gone, subjects = set(xids), set[Subject]()
        for xid in self.open.keys() & gone:
            gone |= {child for child, top in self.top_of.items() if top == xid}
        # An xid may have counted as top-level before its top-level xid was known: then it has both entries.
        tops = (gone | {self.top_of.get(xid, xid) for xid in gone}) & self.open.keys()
        for xid in gone - tops:
            top_xid = self.top_of.get(xid, xid)
            if top_xid in tops - gone:
                for subject in self.marks.subjects(xid):
                    self.open[top_xid].record(subject)
        for xid in gone:
            self.top_of.pop(xid, None)
            self._count(self.marks.abort(xid))
        for changes in [self.open[top_xid] for top_xid in tops]:
            self._count(True)
            if changes.xid in gone:
                subjects |= changes.subjects
                self._close(changes)
            else:
                self.files.drop_copies(changes, gone)
        return frozenset(subjects)

    def abort_older_than(self, oldest_running: Xid) -> frozenset[Subject]:
        """Abort the transactions that a crash left open: all older than the oldest running transaction."""
        subjects = self.abort([xid for xid in self.open if precedes(xid, oldest_running)])
        if not any(changes.rewriting for changes in self.open.values()):
            self._count(self.marks.forget_aborted(oldest_running))
        return subjects

    def _close(self, changes: OpenChanges) -> None:
        del self.open[changes.xid]
        self.files.close(changes)


def _gone(_packed: bytes) -> Xid | None:
    """Treat a row with an unknown multixact as deleted: SQL shows the rows that older transactions left."""
    return None
