"""Applies WAL to the pages of some tables' files, as recovery does (`heap_redo`), without a buffer pool.

Only pages that WAL changes are here. WAL from the redo LSN of a checkpoint on has, for each page, first an image or the
whole page, because of full_page_writes; so the page before it is not needed. Each later record is applied in order.

A file that is created is empty, and what the backup has under its number is of an earlier file. Pages that are
truncated are removed, here and from the backup's.
"""

from collections.abc import Mapping
from typing import Protocol

from tidemark.model.lsn import BlockNumber, format_lsn
from tidemark.model.relation import RelFileLocator
from tidemark.wal.data_directory import BackupUnusable
from tidemark.wal.heap_page import HeapPage, new_page
from tidemark.wal.record import MAIN_FORK, BadRecord, BlockRef, Record
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, RM_SMGR, heap, heap2, heap_cleanup, smgr
from tidemark.wal.versions import WalFormat


class ChangedPages(Protocol):
    """The changed pages of one file, within bounded memory."""

    def get(self, block: BlockNumber) -> bytearray | None:
        """Return a page, to be changed before any other is requested; None: it was not changed."""
        ...

    def put(self, block: BlockNumber, page: bytearray) -> None:
        """Store a page."""
        ...

    def truncate(self, blocks: int) -> None:
        """Remove the pages from number `blocks` on, and those of the backup."""
        ...

    def create(self) -> None:
        """Remove all pages, and those of the backup."""
        ...


class PageRedo:
    """The pages of the needed files."""

    def __init__(self, fmt: WalFormat, files: Mapping[RelFileLocator, ChangedPages]) -> None:
        self._format = fmt
        self._files = files

    def apply(self, record: Record) -> None:
        """Apply the next record."""
        if record.rmgr == RM_SMGR:
            self._apply_to_file(record)
            return
        for block in record.blocks:
            pages = self._files_of(block)
            if pages is not None and block.image_applies:
                pages.put(block.block, bytearray(block.restore_page()))
        if record.rmgr == RM_HEAP:
            self._heap(record)
        elif record.rmgr == RM_HEAP2:
            self._heap2(record)

    def _files_of(self, block: BlockRef) -> ChangedPages | None:
        return self._files.get(block.locator) if block.fork == MAIN_FORK else None

    def _apply_to_file(self, record: Record) -> None:
        changed = smgr.parse(record)
        pages = self._files.get(changed.locator) if changed is not None else None
        if pages is None:
            return
        if isinstance(changed, smgr.FileTruncated):
            pages.truncate(changed.blocks)
        elif isinstance(changed, smgr.FileCreated) and changed.fork == MAIN_FORK:
            pages.create()

    def _page(self, record: Record, block: BlockRef) -> HeapPage | None:
        """Return the page to which a record has to be applied; None: its image is the result, or it is of no table."""
        pages = self._files_of(block)
        if pages is None or block.image_applies:
            return None
        if block.will_init:
            page = new_page()
            pages.put(block.block, page)
        else:
            known = pages.get(block.block)
            if known is None:
                what = f"changes page {block.block} of file {block.locator.rel} without an image of it before"
                raise BackupUnusable(
                    f"the WAL since the start of the backup {what}, at {format_lsn(record.lsn)}",
                    hint="full_page_writes was off after the backup: set it to on, and take another backup",
                )
            page = known
        return HeapPage(page, record.lsn)

    def _heap(self, record: Record) -> None:
        operation = record.info & heap.OPCODE_MASK
        if operation == heap.INSERT:
            insert = heap.parse_insert(record)
            if (page := self._page(record, insert.block)) is not None and insert.tuple is not None:
                page.insert(insert.offset, insert.tuple, record.xid)
        elif operation in (heap.UPDATE, heap.HOT_UPDATE):
            self._update(record, heap.parse_update(record))
        elif operation == heap.DELETE:
            delete = heap.parse_delete(record)
            if (page := self._page(record, delete.block)) is None:
                return
            if delete.flags & heap.DELETE_IS_SUPER:
                page.undo_insert(delete.offset)
            else:
                page.set_xmax(delete.offset, delete.xmax, delete.infobits)
        elif operation == heap.LOCK:
            self._lock(record)

    def _lock(self, record: Record) -> None:
        lock = heap.parse_lock(record)
        if (page := self._page(record, lock.block)) is not None:
            page.set_xmax(lock.offset, lock.xmax, lock.infobits)

    def _update(self, record: Record, update: heap.HeapUpdate) -> None:
        old_row: bytes | None = None
        # NB: the old row's page first: a new page has the same number only if it is the same page.
        if (old := self._page(record, update.old_block)) is not None:
            old_row = old.packed(update.old_offset) if update.tuple is None else None
            old.set_xmax(update.old_offset, update.old_xmax, update.old_infobits)
        if (new := self._page(record, update.block)) is None or update.changed is None:
            return
        if update.tuple is not None:
            packed = update.tuple
        elif old_row is not None:
            packed = heap.apply_update(old_row, update)
        else:
            raise BadRecord(record.lsn, "the new row lacks what it shares with the old one")
        new.insert(update.new_offset, packed, record.xid, update.new_xmax)

    def _heap2(self, record: Record) -> None:
        operation = record.info & heap.OPCODE_MASK
        if operation == heap2.MULTI_INSERT:
            inserts = heap2.parse_multi_insert(record)
            page = self._page(record, inserts.block)
            if page is not None and inserts.tuples is not None:
                for offset, packed in zip(inserts.offsets, inserts.tuples, strict=True):
                    page.insert(offset, packed, record.xid)
        elif operation == heap2.LOCK_UPDATED:
            self._lock(record)
        elif operation in heap_cleanup.OPCODES:
            block = record.need_block(0)
            if (page := self._page(record, block)) is not None:
                page.clean(heap_cleanup.parse(record, self._format))
