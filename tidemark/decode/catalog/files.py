"""Which file belongs to which catalog, and the copies that may become a catalog's file (see `rewrite`)."""

from collections.abc import Callable, Iterable
from functools import partial

from tidemark.decode.catalog.heap import CatalogHeap
from tidemark.decode.catalog.layout import PG_CLASS, data_at
from tidemark.decode.catalog.redo import CatalogDiverged, SeedOvertaken, refresh
from tidemark.decode.catalog.rewrite import Ends, copied_rows, deleter_of_twin, shape_of
from tidemark.decode.catalog.transactions import Marks, OpenChanges, PendingFile
from tidemark.model.lsn import INVALID_OID, Lsn, Oid, Xid, format_lsn
from tidemark.model.relation import RelFileLocator
from tidemark.wal.record import MAIN_FORK, Record
from tidemark.wal.rmgr import relmap
from tidemark.wal.versions import WalFormat

GUESSED_ROWS_MAX = 500_000  # in one unknown file during a seed; each takes a few hundred bytes


class CatalogFiles:
    """The heaps of one store, by catalog and by file."""

    def __init__(
        self,
        database: Oid,
        tablespace: Oid,
        heaps: Iterable[CatalogHeap],
        open_changes: dict[Xid, OpenChanges],
        marks: Marks,
        *,
        files_lsn: Lsn,
        record_change: Callable[[Xid, CatalogHeap, bytes], None],
    ) -> None:
        """`open_changes` and `marks` are shared with the store; the heaps' files were current at `files_lsn`.

        `record_change` is called for each row of a copy that an open transaction inserted or deleted: there may be no
        other record of it. A seed reads the files after the LSN from which it follows WAL: earlier rewrites lead to
        known files.
        """
        self.database = database
        self.tablespace = tablespace
        self.heaps = {heap.layout.catalog.oid: heap for heap in heaps}
        self._open = open_changes
        self._marks = marks
        self._record_change = record_change
        self._files_lsn = files_lsn
        self._by_file = {heap.file: heap for heap in self.heaps.values()}
        self._guesses: set[RelFileLocator] = set()
        self._disproved: set[RelFileLocator] = set()  # guesses that were wrong
        local = self.heaps.get(PG_CLASS.oid)
        columns = ("oid", "relfilenode", "reltablespace", "relrewrite")
        self._class_row = local.layout.projection(*columns) if local is not None else None

    def __contains__(self, locator: RelFileLocator) -> bool:
        return locator in self._by_file

    def get(self, locator: RelFileLocator) -> CatalogHeap | None:
        """Return the heap, current or a copy, whose file is `locator`."""
        return self._by_file.get(locator)

    def may_be_copy(self, locator: RelFileLocator, top_xid: Xid, lsn: Lsn) -> bool:
        """Return whether pages of `locator`, written at `lsn`, may be of a copy that is not the catalog yet."""
        heap = self._by_file.get(locator)
        if heap is None or locator in self._guesses or self._is_pending(locator):
            return True
        changes = self._open.get(top_xid)
        marked = changes is not None and heap.layout.catalog.oid in changes.rewriting
        return lsn < self._files_lsn and (marked or self.database == INVALID_OID)

    def _is_pending(self, locator: RelFileLocator) -> bool:
        return any(locator in changes.pending for changes in self._open.values())

    def restore(self, changes: OpenChanges) -> None:
        """Add the copies of a saved transaction."""
        self._by_file.update((locator, pending.heap) for locator, pending in changes.pending.items())

    def move(self, tablespace: Oid) -> None:
        """Move the files of the default tablespace to another one; the database has no sessions: copies are void."""
        for heap in self.heaps.values():
            if heap.file.spc == self.tablespace:
                heap.file = heap.file._replace(spc=tablespace)
        for changes in self._open.values():
            changes.pending.clear()
            changes.views.clear()
        self._guesses.clear()
        self._by_file = {heap.file: heap for heap in self.heaps.values()}
        self.tablespace = tablespace

    def end_seed(self) -> None:
        """From now on all rows are known."""
        for heap in self.heaps.values():
            heap.end_seed()
        self._guesses.clear()
        self._disproved.clear()
        self._by_file = {heap.file: heap for heap in self.heaps.values()}
        for changes in self._open.values():
            self.restore(changes)

    # --- detection of a rewrite

    def check_relation(self, changes: OpenChanges, packed: bytes, xid: Xid) -> None:
        """Check a new row of pg_class inserted by `xid`: it may be the transient heap of a catalog's rewrite."""
        assert self._class_row is not None, "pg_class is in this store"
        _oid, relfilenode, tablespace, rewritten = self._class_row.unpack_from(packed, data_at(packed))
        if rewritten not in self.heaps:
            return
        changes.rewriting[rewritten] = xid
        if relfilenode != INVALID_OID:
            locator = RelFileLocator(tablespace or self.tablespace, self.database, relfilenode)
            self._add_copy(changes, locator, rewritten, xid)

    def _add_copy(self, changes: OpenChanges, locator: RelFileLocator, catalog: Oid, xid: Xid) -> None:
        heap = self._by_file[locator] = CatalogHeap(self.heaps[catalog].layout, locator)
        changes.pending[locator] = PendingFile(heap, xid)

    def copy(self, record: Record, top_xid: Xid) -> bool:
        """Store pages of a file that may be the new file of a catalog; return whether it may."""
        locator = record.blocks[0].locator
        changes = self._open.get(top_xid)
        if locator.db != self.database:
            return False
        is_unknown_rewrite = self._marks.is_older_than_seed(top_xid) and (changes is None or not changes.rewriting)
        if is_unknown_rewrite or locator in self._guesses:
            return self._store_guessed_copy(record)
        pending = self._pending_file(changes, record, top_xid)
        if pending is None:
            return False
        old = self.heaps[pending.layout.catalog.oid]
        ends = Ends(self._marks.status, self._marks.updaters.get, partial(self._deleter_behind, old, record))
        for block in record.blocks:
            if block.fork != MAIN_FORK or not block.has_image:
                continue
            for row in copied_rows(block.block, block.restore_page(), ends):
                pending.insert(row.tid, row.packed, row.inserter)
                if row.deleter:
                    pending.deleter[row.tid] = row.deleter
                for xid in row.waits_for:
                    self._marks.add(xid, pending, row.tid)
                    self._record_change(xid, pending, row.packed)
        return True

    def _deleter_behind(self, old: CatalogHeap, record: Record, packed: bytes) -> Xid | None:
        """Return the open deleter of a row whose xmax is a multixact created before the WAL that was read."""
        if self._marks.seeding:
            text = f"a row of {old.layout.catalog.name}, copied at {format_lsn(record.lsn)}, is in an older multixact"
            raise SeedOvertaken(text)
        return deleter_of_twin(packed, old)

    def _pending_file(self, changes: OpenChanges | None, record: Record, top_xid: Xid) -> CatalogHeap | None:
        """Return the copy that the pages of `record` belong to; None if they belong to another relation."""
        locator = record.blocks[0].locator
        if changes is None:
            # A shared catalog may be rewritten from an uncaptured database, without a row of pg_class that shows it.
            if self.database != INVALID_OID:
                return None
            changes = OpenChanges(top_xid)
        if locator not in changes.pending:
            catalog = self._copied_catalog(changes, record)
            if catalog is None:
                return None
            self._open.setdefault(top_xid, changes)
            self._add_copy(changes, locator, catalog, record.xid)
        return changes.pending[locator].heap

    def _copied_catalog(self, changes: OpenChanges, record: Record) -> Oid | None:
        """Return the mapped catalog that the unknown file of `record` is a copy of."""
        block = record.blocks[0]
        is_shared = self.database == INVALID_OID
        if block.fork != MAIN_FORK or not (changes.rewriting or is_shared):
            return None
        shape = shape_of(block.restore_page())
        for catalog, heap in self.heaps.items():
            likely = heap.layout.catalog.mapped and (catalog in changes.rewriting or is_shared)
            if likely and shape == len(heap.layout.columns):
                return catalog
        return None

    def _store_guessed_copy(self, record: Record) -> bool:
        """Store pages of an unknown file whose transaction began before the seed: it may be a catalog's new file.

        If it becomes the catalog's file, SQL will read it: the transaction ends before the SELECTs.
        """
        block = record.blocks[0]
        if block.locator not in self._by_file:
            unknown = block.fork == MAIN_FORK and block.locator not in self._disproved
            shape = shape_of(block.restore_page()) if unknown else None
            old = next((heap for heap in self.heaps.values() if len(heap.layout.columns) == shape), None)
            if old is None:
                return False
            self._by_file[block.locator] = CatalogHeap(old.layout, block.locator, seeding=True)
            self._guesses.add(block.locator)
        heap = self._by_file[block.locator]
        refreshed = refresh(heap, record)
        if heap.seeding is not None and len(heap.seeding.images) > GUESSED_ROWS_MAX:
            self.disprove(block.locator)
        return refreshed

    def disprove(self, locator: RelFileLocator) -> bool:
        """Discard a file that was guessed to be a catalog's; return whether it was a guess.

        If it becomes the catalog's file nevertheless, `SeedOvertaken` is raised: nothing wrong is used.
        """
        if locator not in self._guesses:
            return False
        self._guesses.discard(locator)
        self._disproved.add(locator)
        del self._by_file[locator]
        return True

    # --- end of a rewrite

    def relation_map(self, record: Record, fmt: WalFormat) -> bool:
        """Follow the mapped catalogs; return whether one got another file."""
        update = relmap.parse(record, fmt)
        if update is None or update.database != self.database:
            return False
        moved = False
        for catalog in update.files.keys() & self.heaps.keys():
            heap = self.heaps[catalog]
            locator = heap.file._replace(rel=update.files[catalog])
            if self._needs_heap(heap, locator, record.lsn):
                self._activate(catalog, locator, record.lsn)
                moved = True
        return moved

    def follow_classes(self, changes: OpenChanges, lsn: Lsn) -> None:
        """Follow the catalogs whose file is in pg_class, for rows that the committed `changes` changed."""
        if self._class_row is None:
            return
        classes = self.heaps[PG_CLASS.oid]
        for subject in changes.subjects:
            if subject.kind != PG_CLASS.oid or subject.oid not in self.heaps:
                continue
            for packed in classes.find_committed("oid", subject.oid):
                _oid, relfilenode, tablespace, _rewritten = self._class_row.unpack_from(packed, data_at(packed))
                locator = RelFileLocator(tablespace or self.tablespace, self.database, relfilenode)
                if relfilenode != INVALID_OID and self._needs_heap(self.heaps[subject.oid], locator, lsn):
                    self._activate(subject.oid, locator, lsn)

    def drop_copies(self, changes: OpenChanges, gone: set[Xid]) -> None:
        """Discard the rewrites of aborted subtransactions."""
        for catalog in [catalog for catalog, xid in changes.rewriting.items() if xid in gone]:
            del changes.rewriting[catalog]
        for locator in [locator for locator, pending in changes.pending.items() if pending.owner in gone]:
            heap = changes.pending.pop(locator).heap
            del self._by_file[locator]
            if changes.views.get(heap.layout.catalog.oid) is heap:
                del changes.views[heap.layout.catalog.oid]

    def close(self, changes: OpenChanges) -> None:
        """Discard the copies of an ended transaction that did not become a catalog."""
        for locator in changes.pending:
            del self._by_file[locator]

    def _needs_heap(self, heap: CatalogHeap, locator: RelFileLocator, lsn: Lsn) -> bool:
        """Return whether the file `locator`, assigned at `lsn`, requires another heap for a catalog.

        Before `files_lsn` a file whose copy was not seen is ignored: it is the known one, or was copied again.
        """
        return self._is_pending(locator) or (locator != heap.file and lsn >= self._files_lsn)

    def _can_be_copy(self, old: CatalogHeap, new: CatalogHeap) -> bool:
        """Return whether `new` has as many committed rows as `old`.

        NB: the server itself loses a row whose update was open when the copy met it, and aborted before the copy met
        the row's newer version (`rewrite_heap_dead_tuple`, seen on 18): the mirror follows the server.
        """
        lost = old.row_count() - new.row_count()
        return lost == 0 or (lost > 0 and bool(self._marks.aborted))

    def _activate(self, catalog: Oid, locator: RelFileLocator, lsn: Lsn) -> None:
        """Make the copy in `locator` the catalog from here on, even if the transaction that wrote it aborts."""
        old = self.heaps[catalog]
        name = old.layout.catalog.name
        writer = next((changes for changes in self._open.values() if locator in changes.pending), None)
        if writer is not None:
            new = writer.pending.pop(locator).heap
            writer.views.pop(catalog, None)
            if old.layout.catalog.mapped and not old.seeding and not self._can_be_copy(old, new):
                counts = f"{old.row_count()} rows before, {new.row_count()} after"
                raise CatalogDiverged(f"{name} was copied to a new file at {format_lsn(lsn)}: {counts}")
        elif locator in self._guesses and self._by_file[locator].layout is old.layout:
            new = self._by_file[locator]
            self._guesses.discard(locator)
        elif self._marks.seeding:
            raise SeedOvertaken(f"{name} was swapped at {format_lsn(lsn)}, but its new file is not known")
        else:
            raise CatalogDiverged(f"{name} has a new file from {format_lsn(lsn)}, but no record that writes it")
        self._by_file.pop(old.file, None)
        self._by_file[locator] = new
        self.heaps[catalog] = new
