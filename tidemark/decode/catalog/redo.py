"""Turns a heap record on a catalog into changes of rows: `heap_redo` for single tuples instead of a page.

Locks, visibility maps, freezing and pruning change no row that is kept; of those records only the page images matter.
If a record has an image that applies, it lacks the tuple's bytes: they are read from the image.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tidemark.decode.catalog.heap import ELIDED, CatalogHeap, format_tid, make_tid
from tidemark.decode.catalog.layout import is_made_by_seed
from tidemark.decode.catalog.packed_rows import Tid
from tidemark.model.errors import CorruptWal, Disposition, TidemarkError
from tidemark.model.lsn import format_lsn
from tidemark.wal.record import MAIN_FORK, BlockRef, Record
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, heap, heap2


class CatalogDiverged(CorruptWal):
    """A record that does not fit the mirror: the mirror is not of this WAL, or WAL between them is missing."""

    hint = "create the seed again (cdcctl init); if the error recurs, please report it with the record"


class SeedOvertaken(TidemarkError):
    """A catalog was rewritten during its seed."""

    disposition = Disposition.RETRY
    hint = "the seed is repeated; if the error recurs, run CHECKPOINT, and no VACUUM FULL of system catalogs meanwhile"


class RowInserted(NamedTuple):
    """A row was inserted."""

    tid: Tid
    packed: bytes


class RowDeleted(NamedTuple):
    """A row was deleted by the record's transaction."""

    tid: Tid


class RowOverwritten(NamedTuple):
    """A row was overwritten in place, visible to all transactions at once."""

    tid: Tid
    packed: bytes


RowChange = RowInserted | RowDeleted | RowOverwritten


def row_changes(target: CatalogHeap, record: Record) -> Iterator[RowChange]:
    """Yield the changes by `record`, whose block 0 is in `target`, to its rows, in order."""
    operation = record.info & heap.OPCODE_MASK
    if record.rmgr == RM_HEAP2:
        if operation == heap2.MULTI_INSERT:
            yield from _multi_insert(target, record)
    elif record.rmgr == RM_HEAP:
        if operation == heap.INSERT:
            insert = heap.parse_insert(record)
            yield _inserted(target, record, insert.block, insert.offset, insert.tuple)
        elif operation in (heap.UPDATE, heap.HOT_UPDATE):
            yield from _update(target, record)
        elif operation == heap.DELETE:
            delete = heap.parse_delete(record)
            yield RowDeleted(_known(target, record, make_tid(delete.block.block, delete.offset)))
        elif operation == heap.INPLACE:
            yield from _inplace(target, record)


def refresh(target: CatalogHeap, record: Record) -> bool:
    """Update rows from the page images of `record`; return whether there were any."""
    found = False
    for block in record.blocks:
        if block.image_applies and block.fork == MAIN_FORK and block.locator == target.file:
            found = True
            for offset, packed, _xmin, _xmax in heap.page_tuples(block.restore_page()):
                tid = make_tid(block.block, offset)
                if tid in target.rows:
                    target.replace(tid, _fitting(target, record, tid, packed))
                elif target.seeding:
                    target.seeding.images[tid] = _fitting(target, record, tid, packed)
    return found


def _multi_insert(target: CatalogHeap, record: Record) -> Iterator[RowChange]:
    insert = heap2.parse_multi_insert(record)
    packed_tuples = insert.tuples if insert.tuples is not None else (None,) * len(insert.offsets)
    for offset, packed in zip(insert.offsets, packed_tuples, strict=True):
        yield _inserted(target, record, insert.block, offset, packed)


def _update(target: CatalogHeap, record: Record) -> Iterator[RowChange]:
    update = heap.parse_update(record)
    old_tid = _known(target, record, make_tid(update.old_block.block, update.old_offset))
    new_tid = make_tid(update.block.block, update.new_offset)
    yield RowDeleted(old_tid)
    whole = update.tuple
    if whole is not None or update.changed is None:
        yield _inserted(target, record, update.block, update.new_offset, whole)
        return
    if target.known_bytes(old_tid) == ELIDED:  # GRANT on a system column
        yield RowInserted(new_tid, ELIDED)
        return
    old = _server_bytes(target, record, old_tid)
    yield RowInserted(new_tid, _fitting(target, record, new_tid, heap.apply_update(old, update)))


def _inplace(target: CatalogHeap, record: Record) -> Iterator[RowChange]:
    inplace = heap.parse(record)
    assert isinstance(inplace, heap.HeapInplace), record.info
    tid = _known(target, record, make_tid(inplace.block.block, inplace.offset))
    if inplace.block.image_applies:
        return
    yield RowOverwritten(tid, heap.apply_inplace(_server_bytes(target, record, tid), inplace))


def _inserted(target: CatalogHeap, record: Record, block: BlockRef, offset: int, packed: bytes | None) -> RowInserted:
    """Return the new row: from the record, or from the page image that replaces it."""
    tid = make_tid(block.block, offset)
    if packed is None and block.image_applies:
        found = heap.page_tuple(block.restore_page(), offset)
        packed = found[0] if found is not None else None
    if packed is None:
        raise _diverged(target, record, tid, "neither the record nor its page image has the new row")
    return RowInserted(tid, _fitting(target, record, tid, packed))


def _server_bytes(target: CatalogHeap, record: Record, tid: Tid) -> bytes:
    """Return the row at `tid` in the server's bytes; a seed's row gets them from an earlier page image."""
    packed = target.known_bytes(tid)
    if packed is None or is_made_by_seed(packed):
        raise _diverged(target, record, tid, "no page image has provided its bytes (was full_page_writes off?)")
    return packed


def _known(target: CatalogHeap, record: Record, tid: Tid) -> Tid:
    """Return `tid` if its row is known, or need not be known yet."""
    if tid not in target.rows and not target.seeding:
        raise _diverged(target, record, tid, "the mirror has no row there")
    return tid


def _fitting(target: CatalogHeap, record: Record, tid: Tid, packed: bytes) -> bytes:
    if not target.layout.fits(packed):
        raise _diverged(target, record, tid, f"{len(packed)} bytes are not a row of it")
    return packed


def _diverged(target: CatalogHeap, record: Record, tid: Tid, what: str) -> TidemarkError:
    text = f"{target.layout.catalog.name} at {format_lsn(record.lsn)}, row {format_tid(tid)}: {what}"
    return SeedOvertaken(text) if target.seeding else CatalogDiverged(text)
