"""The first filling of a mirror from raw pages: a base backup's files, joined with the WAL since the backup began.

As with a seed by SQL (`seed`) the mirror follows the WAL from the redo LSN on and remembers what it contains; all other
rows have not changed since. They are on the catalogs' pages, and `CommitLog` decides on their visibility.

A page of a backup may be torn, or from any moment of the backup. But a page that was changed after the redo LSN has its
image in WAL, which replaces it (`PageImages`); an unchanged page is as it was there. Rows in later records are known
already, in a later version.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from tidemark.decode.catalog.heap import CatalogHeap
from tidemark.decode.catalog.layout import PG_CLASS, data_at
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.seeding.commit_log import CommitLog, Multixacts
from tidemark.decode.catalog.store import CatalogStore
from tidemark.model.lsn import INVALID_OID, BlockNumber, Oid, Xid
from tidemark.model.relation import RelFileLocator
from tidemark.wal.data_directory import BackupUnusable
from tidemark.wal.record import MAIN_FORK, BadRecord, Record

Pages = Callable[[RelFileLocator], Iterator[tuple[BlockNumber, bytes]]]


class PageImages:
    """The latest image of each page of the needed files."""

    def __init__(self, wanted: Iterable[RelFileLocator]) -> None:
        self._images: dict[RelFileLocator, dict[BlockNumber, bytes]] = {locator: {} for locator in wanted}

    def store_images(self, record: Record) -> None:
        """Store the images in a record."""
        for block in record.blocks:
            if block.image_applies and block.fork == MAIN_FORK:
                images = self._images.get(block.locator)
                if images is not None:
                    images[block.block] = block.restore_page()

    def over(self, locator: RelFileLocator, pages: Pages) -> Iterator[tuple[BlockNumber, bytes]]:
        """Yield the pages of a file, each from its image if there is one."""
        images = dict(self._images[locator])
        for block, page in pages(locator):
            yield block, images.pop(block, page)
        yield from sorted(images.items())


def complete(
    mirrors: Iterable[CatalogMirror], images: PageImages, pages: Pages, log: CommitLog, multixacts: Multixacts
) -> None:
    """Add the rows that WAL did not contain to mirrors that have followed the backup's WAL: they are exact then."""

    def updater(multixact: Xid) -> Xid:
        xid = multixacts.updater(multixact)
        if xid is None:
            raise BackupUnusable(f"multixact {multixact} of a catalog row is not in pg_multixact")
        return xid

    for store in {id(store): store for mirror in mirrors for store in (mirror.store, mirror.shared.store)}.values():
        for heap in store.heaps.values():
            if heap.seeding:
                add_pages(store, heap, images.over(heap.file, pages), log, updater)
        store.end_seed(log.status)


def add_pages(
    store: CatalogStore,
    heap: CatalogHeap,
    pages: Iterator[tuple[BlockNumber, bytes]],
    log: CommitLog,
    updater: Callable[[Xid], Xid],
) -> None:
    """Add the rows on the pages of one catalog that WAL did not contain."""
    for block, page in pages:
        try:
            store.add_page(heap, block, page, log.status, updater)
        except BadRecord as error:
            name, file = heap.layout.catalog.name, heap.file.rel
            raise BackupUnusable(f"page {block} of {name} (file {file}) cannot be read: {error}") from error


def files_of(mirror: CatalogMirror, mapped: Mapping[Oid, Oid]) -> dict[Oid, Oid]:
    """Return the files of a database's catalogs: from its relation map, or else from pg_class."""
    classes = mirror.store.heaps[PG_CLASS.oid]
    reader = classes.layout.projection("oid", "relfilenode")
    found = {}
    for catalog, heap in mirror.store.heaps.items():
        found[catalog] = mapped.get(catalog, INVALID_OID)
        for packed in classes.find_committed("oid", catalog) if not heap.layout.catalog.mapped else ():
            _oid, found[catalog] = reader.unpack_from(packed, data_at(packed))
    return found
