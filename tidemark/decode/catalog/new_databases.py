"""Databases that are being created, until their transaction ends.

    FILE_COPY   the files of another database are copied outside WAL: so its mirror is copied
    WAL_LOG     the relation map, then page images of every relation: the tracked catalogs are read from them

The source database has no sessions and no prepared transactions meanwhile (`createdb`, dbcommands.c): the copy equals
its mirror, as of the record of the copy. Transactions that a crash left open there have aborted.

Pages contain tuples of transactions that ended long ago, and may not show how: the server asks its commit log. For such
rows the source database's mirror decides. It is the mirror that agrees with the pages in all certain rows, including
pg_class with its statistics and horizons. If no mirror agrees, the database is not followed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from tidemark.decode.catalog.files import GUESSED_ROWS_MAX
from tidemark.decode.catalog.heap import CatalogHeap, make_tid
from tidemark.decode.catalog.layout import PG_CLASS, CatalogLayout, data_at
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.packed_rows import Tid
from tidemark.decode.catalog.rewrite import Hint, hint_of, shape_of
from tidemark.decode.catalog.store import CatalogStore
from tidemark.decode.types.encodings import SERVER_ENCODINGS
from tidemark.model.lsn import Oid, Xid
from tidemark.model.relation import RelFileLocator
from tidemark.wal.record import MAIN_FORK, Record
from tidemark.wal.rmgr import heap
from tidemark.wal.rmgr.relmap import RelmapUpdate


class NotFollowed(Exception):
    """A database whose catalogs cannot be read from WAL alone, with the reason."""


class _PageTuple(NamedTuple):
    """A tuple on a copied page."""

    packed: bytes
    hint: Hint


_PageTuples = dict[Tid, _PageTuple]


class CopiedFiles:
    """A database copied outside WAL (FILE_COPY)."""

    def __init__(self, xid: Xid) -> None:
        self.xid = xid
        self._heaps: list[CatalogHeap] | None = None
        self._reason = "its template is not captured, and FILE_COPY writes no pages into WAL"

    def copy(self, source: CatalogMirror, database: Oid, tablespace: Oid) -> None:
        """Copy the catalogs of `source`, whose default tablespace was copied to `tablespace`."""
        self._heaps = [_copy_of(heap, database, tablespace) for heap in source.store.heaps.values()]

    def heaps(self, _mirrors: Collection[CatalogMirror]) -> Collection[CatalogHeap]:
        """Return the catalogs; raise `NotFollowed`."""
        if self._heaps is None:
            raise NotFollowed(self._reason)
        return self._heaps


def _copy_of(heap: CatalogHeap, database: Oid, tablespace: Oid) -> CatalogHeap:
    copied = CatalogHeap(heap.layout, RelFileLocator(tablespace, database, heap.file.rel))
    # NB: an inserter or deleter that is still recorded died in a crash.
    copied.rows.update((tid, packed) for tid, packed in heap.rows.items() if tid not in heap.inserter)
    return copied


class CopiedPages:
    """A database whose pages are in WAL (WAL_LOG)."""

    def __init__(self, xid: Xid, database: Oid, tablespace: Oid, layouts: Mapping[Oid, CatalogLayout]) -> None:
        self.xid = xid
        self._database = database
        self._tablespace = tablespace
        self._layouts = layouts
        self._catalog_of: dict[Oid, Oid] = {}  # by file
        self._pages_of: dict[Oid, _PageTuples] = {}  # by file: of catalogs; before pg_class is read, of likely ones
        self._overflowed: set[Oid] = set()
        self._is_resolved = False

    def map(self, update: RelmapUpdate) -> None:
        """Store the relation map, which comes before all pages."""
        for catalog in update.files.keys() & self._layouts.keys():
            self._catalog_of[update.files[catalog]] = catalog

    def store_pages(self, record: Record) -> bool:
        """Store pages; return whether they may be of a tracked catalog."""
        locator = record.blocks[0].locator
        if locator.spc != self._tablespace:
            return False
        if not self._is_resolved and self._catalog_of.get(locator.rel) != PG_CLASS.oid:
            self._resolve()
        is_stored = False
        for block in record.blocks:
            if block.fork != MAIN_FORK or not block.has_image or block.locator != locator:
                continue
            image = block.restore_page()
            if not self._may_be_catalog(locator.rel, image):
                continue
            is_stored = True
            rows = self._pages_of.setdefault(locator.rel, {})
            for offset, packed, xmin, xmax in heap.page_tuples(image):
                rows[make_tid(block.block, offset)] = _PageTuple(packed, hint_of(packed, xmin, xmax))
            if len(rows) > GUESSED_ROWS_MAX and locator.rel not in self._catalog_of:
                del self._pages_of[locator.rel]
                self._overflowed.add(locator.rel)
        return is_stored

    def _may_be_catalog(self, file: Oid, image: bytes) -> bool:
        if file in self._catalog_of:
            return True
        if self._is_resolved or file in self._overflowed:
            return False
        return shape_of(image) in {len(layout.columns) for layout in self._layouts.values()}

    def _resolve(self) -> None:
        """Find the other catalogs' files in pg_class once it is complete: relations are copied one by one."""
        classes = next((file for file, catalog in self._catalog_of.items() if catalog == PG_CLASS.oid), None)
        rows = self._pages_of.get(classes) if classes is not None else None
        if rows is None:
            return
        self._is_resolved = True
        layout = self._layouts[PG_CLASS.oid]
        reader = layout.projection("oid", "relfilenode")
        for row in rows.values():
            # NB: the server has read each of these rows to find the relations to copy, so all have hint bits.
            if row.hint is Hint.LIVE and layout.fits(row.packed):
                oid, file = reader.unpack_from(row.packed, data_at(row.packed))
                if file and oid in self._layouts:
                    self._catalog_of[file] = oid
        for file in self._pages_of.keys() - self._catalog_of.keys():
            del self._pages_of[file]

    def heaps(self, mirrors: Collection[CatalogMirror]) -> Collection[CatalogHeap]:
        """Return the catalogs; raise `NotFollowed`. `mirrors`: of the databases that may have been copied."""
        self._resolve()
        if len(self._catalog_of) != len(self._layouts) or self._overflowed & self._catalog_of.keys():
            raise NotFollowed("not all of its catalogs were found in the pages in WAL")
        rows = {catalog: self._pages_of.get(file, {}) for file, catalog in self._catalog_of.items()}
        for catalog, found in rows.items():
            if not all(self._layouts[catalog].fits(row.packed) for row in found.values()):
                raise NotFollowed(f"WAL has pages that do not fit {self._layouts[catalog].catalog.name}")
        source = None
        if any(row.hint is Hint.UNSURE for found in rows.values() for row in found.values()):
            source = self._source(rows, mirrors)
        return [self._heap(file, rows[catalog], source) for file, catalog in self._catalog_of.items()]

    def _heap(self, file: Oid, rows: _PageTuples, source: CatalogMirror | None) -> CatalogHeap:
        catalog = self._catalog_of[file]
        copied = CatalogHeap(self._layouts[catalog], RelFileLocator(self._tablespace, self._database, file))
        decided = source.store.heaps[catalog].rows if source is not None else {}
        for tid, row in rows.items():
            if row.hint is Hint.LIVE or (row.hint is Hint.UNSURE and tid in decided):
                copied.insert(tid, row.packed)
        return copied

    def _source(self, rows: Mapping[Oid, _PageTuples], mirrors: Iterable[CatalogMirror]) -> CatalogMirror:
        """Return the mirror of the copied database; raise `NotFollowed` if there is none, or several that differ."""
        found = [mirror for mirror in mirrors if _agrees(mirror, rows)]
        unsure = [(catalog, tid) for catalog in rows for tid, row in rows[catalog].items() if row.hint is Hint.UNSURE]
        decisions = {
            tuple(_is_live(mirror.store.heaps[catalog], tid) for catalog, tid in unsure): mirror for mirror in found
        }
        if len(decisions) != 1:
            raise NotFollowed("its template is not captured, and its pages do not show which of their rows are valid")
        return next(iter(decisions.values()))


def _is_live(heap: CatalogHeap, tid: Tid) -> bool:
    return tid in heap.rows and tid not in heap.inserter


def _agrees(mirror: CatalogMirror, rows: Mapping[Oid, _PageTuples]) -> bool:
    """Return whether the pages may be a copy of the database of `mirror`."""
    return all(_agrees_on(mirror.store.heaps[catalog], found) for catalog, found in rows.items())


def _agrees_on(heap: CatalogHeap, rows: _PageTuples) -> bool:
    if any(row.hint is Hint.LIVE and not _is_live(heap, tid) for tid, row in rows.items()):
        return False
    size = heap.layout.fixed_bytes
    for tid, known in _live_rows(heap):
        row = rows.get(tid)
        if row is None or row.hint is Hint.DEAD:
            return False
        # NB: in a row made by a seed and not seen in a page image since, only the fixed columns are the server's.
        if known and _fixed(known, size) != _fixed(row.packed, size):
            return False
    return True


def _live_rows(heap: CatalogHeap) -> Iterator[tuple[Tid, bytes]]:
    return ((tid, packed) for tid, packed in heap.rows.items() if tid not in heap.inserter)


def _fixed(packed: bytes, size: int) -> bytes:
    at = data_at(packed)
    return packed[at : at + size]


def mirror_of(
    heaps: Collection[CatalogHeap], like: CatalogMirror, database: Oid, tablespace: Oid, encoding: int
) -> CatalogMirror:
    """Return the mirror of a new database; `encoding` is PostgreSQL's number, `like` any mirror of the same cluster."""
    if encoding >= len(SERVER_ENCODINGS):
        raise NotFollowed(f"its encoding has the unknown number {encoding}")
    store = CatalogStore(like.store.format, database, tablespace, heaps)
    return CatalogMirror(store, like.shared, SERVER_ENCODINGS[encoding])


def layouts_of(mirror: CatalogMirror) -> Mapping[Oid, CatalogLayout]:
    """Return the layouts of a database's catalogs, the same in all databases of a cluster."""
    return {catalog: heap.layout for catalog, heap in mirror.store.heaps.items()}
