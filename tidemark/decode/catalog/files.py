"""Which file is which catalog, and the copies that are about to become one (the story is told in `rewrite`)."""

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

GUESSED_ROWS_MAX = 500_000  # of one unknown file while a seed is taken; each is a few hundred bytes


class CatalogFiles:
    """The heaps of one store by catalog and by file."""

    def __init__(
        self,
        database: Oid,
        tablespace: Oid,
        heaps: Iterable[CatalogHeap],
        open_changes: dict[Xid, OpenChanges],
        marks: Marks,
        *,
        files_lsn: Lsn,
        note: Callable[[Xid, CatalogHeap, bytes], None],
    ) -> None:
        """Share `open_changes` and `marks` with the store; the heaps' files were current at `files_lsn`.

        `note` is told which rows of a copy an open transaction made or ended: that may be all that tells of it.

        A seed asks for the files after the LSN from which it reads: earlier rewrites lead to files known already.
        """
        self.database = database
        self.tablespace = tablespace
        self.heaps = {heap.layout.catalog.oid: heap for heap in heaps}
        self._open = open_changes
        self._marks = marks
        self._note = note
        self._files_lsn = files_lsn
        self._by_file = {heap.file: heap for heap in self.heaps.values()}
        self._guesses: set[RelFileLocator] = set()
        self._strangers: set[RelFileLocator] = set()  # guessed wrong
        local = self.heaps.get(PG_CLASS.oid)
        columns = ("oid", "relfilenode", "reltablespace", "relrewrite")
        self._class_row = local.layout.projection(*columns) if local is not None else None

    def __contains__(self, locator: RelFileLocator) -> bool:
        return locator in self._by_file

    def get(self, locator: RelFileLocator) -> CatalogHeap | None:
        """Return the heap, current or a copy, that `locator` is the file of."""
        return self._by_file.get(locator)

    def may_be_copy(self, locator: RelFileLocator, top_xid: Xid, lsn: Lsn) -> bool:
        """Tell if pages of `locator`, written at `lsn`, can be a copy that is not the catalog yet."""
        heap = self._by_file.get(locator)
        if heap is None or locator in self._guesses or self._is_pending(locator):
            return True
        changes = self._open.get(top_xid)
        marked = changes is not None and heap.layout.catalog.oid in changes.rewriting
        return lsn < self._files_lsn and (marked or self.database == INVALID_OID)

    def _is_pending(self, locator: RelFileLocator) -> bool:
        return any(locator in changes.pending for changes in self._open.values())

    def restore(self, changes: OpenChanges) -> None:
        """Take over the copies of a saved transaction."""
        self._by_file.update((locator, pending.heap) for locator, pending in changes.pending.items())

    def move(self, tablespace: Oid) -> None:
        """Follow the files of the default tablespace to another one; nobody is in the database, so copies are dead."""
        for heap in self.heaps.values():
            if heap.file.spc == self.tablespace:
                heap.file = heap.file._replace(spc=tablespace)
        for changes in self._open.values():
            changes.pending.clear()
            changes.views.clear()
        self._guesses.clear()
        self._by_file = {heap.file: heap for heap in self.heaps.values()}
        self.tablespace = tablespace

    def stop_learning(self) -> None:
        """Hold that all rows are known from here on."""
        for heap in self.heaps.values():
            heap.stop_learning()
        self._guesses.clear()
        self._strangers.clear()
        self._by_file = {heap.file: heap for heap in self.heaps.values()}
        for changes in self._open.values():
            self.restore(changes)

    # --- what tells of a rewrite

    def note_relation(self, changes: OpenChanges, packed: bytes, xid: Xid) -> None:
        """Look at a new relation that `xid` put into pg_class: a transient heap may be one of a catalog."""
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
        """Take pages of a file that may be the new file of a catalog; tell if it may."""
        locator = record.blocks[0].locator
        changes = self._open.get(top_xid)
        if locator.db != self.database:
            return False
        untold = self._marks.is_older_than_learning(top_xid) and (changes is None or not changes.rewriting)
        if untold or locator in self._guesses:
            return self._learn_copy(record)
        pending = self._pending_file(changes, record, top_xid)
        if pending is None:
            return False
        old = self.heaps[pending.layout.catalog.oid]
        ends = Ends(self._marks.fate, self._marks.updaters.get, partial(self._deleter_behind, old, record))
        for block in record.blocks:
            if block.fork != MAIN_FORK or not block.has_image:
                continue
            for row in copied_rows(block.block, block.restore_page(), ends):
                pending.insert(row.tid, row.packed, row.inserter)
                if row.deleter:
                    pending.deleter[row.tid] = row.deleter
                for xid in row.waits_for:
                    self._marks.add(xid, pending, row.tid)
                    self._note(xid, pending, row.packed)
        return True

    def _deleter_behind(self, old: CatalogHeap, record: Record, packed: bytes) -> Xid | None:
        """Return the open deleter of a row whose xmax is a multixact that was not seen being made."""
        if self._marks.learning:
            reported = (
                f"a row of {old.layout.catalog.name}, copied at {format_lsn(record.lsn)}, is in an older multixact"
            )
            raise SeedOvertaken(reported)
        return deleter_of_twin(packed, old)

    def _pending_file(self, changes: OpenChanges | None, record: Record, top_xid: Xid) -> CatalogHeap | None:
        """Return the copy that the pages of `record` belong to; None if they are of something else."""
        locator = record.blocks[0].locator
        if changes is None:
            # Nobody tells of a shared catalog's rewrite if it runs in a database that is not captured.
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

    def _learn_copy(self, record: Record) -> bool:
        """Take pages of an unknown file whose transaction began before the seed: perhaps a catalog's new file.

        What SQL will see is in that file if it comes to be the catalog's: the transaction ends before SQL looks.
        """
        block = record.blocks[0]
        if block.locator not in self._by_file:
            unknown = block.fork == MAIN_FORK and block.locator not in self._strangers
            shape = shape_of(block.restore_page()) if unknown else None
            old = next((heap for heap in self.heaps.values() if len(heap.layout.columns) == shape), None)
            if old is None:
                return False
            self._by_file[block.locator] = CatalogHeap(old.layout, block.locator, learning=True)
            self._guesses.add(block.locator)
        heap = self._by_file[block.locator]
        learnt = refresh(heap, record)
        if heap.learning is not None and len(heap.learning.images) > GUESSED_ROWS_MAX:
            self.disprove(block.locator)
        return learnt

    def disprove(self, locator: RelFileLocator) -> bool:
        """Forget a file that was only guessed to be a catalog's; tell if it was.

        Should it come to be one all the same, the seed is overtaken: nothing wrong is held for true.
        """
        if locator not in self._guesses:
            return False
        self._guesses.discard(locator)
        self._strangers.add(locator)
        del self._by_file[locator]
        return True

    # --- how it ends

    def relation_map(self, record: Record, fmt: WalFormat) -> bool:
        """Follow the mapped catalogs; tell if one got another file."""
        update = relmap.parse(record, fmt)
        if update is None or update.database != self.database:
            return False
        moved = False
        for catalog in update.files.keys() & self.heaps.keys():
            heap = self.heaps[catalog]
            locator = heap.file._replace(rel=update.files[catalog])
            if self._is_news(heap, locator, record.lsn):
                self._activate(catalog, locator, record.lsn)
                moved = True
        return moved

    def follow_classes(self, changes: OpenChanges, lsn: Lsn) -> None:
        """Follow the catalogs whose file stands in pg_class, where `changes`, which committed, changed their row."""
        if self._class_row is None:
            return
        classes = self.heaps[PG_CLASS.oid]
        for subject in changes.subjects:
            if subject.kind != PG_CLASS.oid or subject.oid not in self.heaps:
                continue
            for packed in classes.find_committed("oid", subject.oid):
                _oid, relfilenode, tablespace, _rewritten = self._class_row.unpack_from(packed, data_at(packed))
                locator = RelFileLocator(tablespace or self.tablespace, self.database, relfilenode)
                if relfilenode != INVALID_OID and self._is_news(self.heaps[subject.oid], locator, lsn):
                    self._activate(subject.oid, locator, lsn)

    def drop_copies(self, changes: OpenChanges, gone: set[Xid]) -> None:
        """Forget the rewrites of aborted subtransactions."""
        for catalog in [catalog for catalog, xid in changes.rewriting.items() if xid in gone]:
            del changes.rewriting[catalog]
        for locator in [locator for locator, pending in changes.pending.items() if pending.owner in gone]:
            heap = changes.pending.pop(locator).heap
            del self._by_file[locator]
            if changes.views.get(heap.layout.catalog.oid) is heap:
                del changes.views[heap.layout.catalog.oid]

    def close(self, changes: OpenChanges) -> None:
        """Forget the copies of an ended transaction that did not become a catalog."""
        for locator in changes.pending:
            del self._by_file[locator]

    def _is_news(self, heap: CatalogHeap, locator: RelFileLocator, lsn: Lsn) -> bool:
        """Tell if a catalog gets another heap when it gets the file `locator` at `lsn`.

        Before `files_lsn` a file whose copy was not seen is passed by: it is the known one, or was copied again.
        """
        return self._is_pending(locator) or (locator != heap.file and lsn >= self._files_lsn)

    def _can_be_copy(self, old: CatalogHeap, new: CatalogHeap) -> bool:
        """Tell if everybody may see as many rows in `new` as in `old`.

        NB: the server itself loses a row whose update was open when the copy met it, and aborted before the copy met
        the row's newer version (`rewrite_heap_dead_tuple`, seen on 18): we follow the server.
        """
        lost = old.row_count() - new.row_count()
        return lost == 0 or (lost > 0 and bool(self._marks.aborted))

    def _activate(self, catalog: Oid, locator: RelFileLocator, lsn: Lsn) -> None:
        """Let the copy in `locator` be the catalog from here on, whatever becomes of the transaction that made it."""
        old = self.heaps[catalog]
        name = old.layout.catalog.name
        writer = next((changes for changes in self._open.values() if locator in changes.pending), None)
        if writer is not None:
            new = writer.pending.pop(locator).heap
            writer.views.pop(catalog, None)
            if old.layout.catalog.mapped and not old.learning and not self._can_be_copy(old, new):
                counts = f"{old.row_count()} rows before, {new.row_count()} after"
                raise CatalogDiverged(f"{name} was copied to a new file at {format_lsn(lsn)}: {counts}")
        elif locator in self._guesses and self._by_file[locator].layout is old.layout:
            new = self._by_file[locator]
            self._guesses.discard(locator)
        elif self._marks.learning:
            raise SeedOvertaken(f"what {name} was copied to is not known when it is swapped at {format_lsn(lsn)}")
        else:
            raise CatalogDiverged(f"{name} got a new file at {format_lsn(lsn)} that was not seen being written")
        self._by_file.pop(old.file, None)
        self._by_file[locator] = new
        self.heaps[catalog] = new
