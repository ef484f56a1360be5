"""Applies a backup's WAL, up to any later LSN, to the pages of some tables, and records how transactions ended.

    redo LSN ──────── end of the backup ──────── LSN
       │  images of all pages that are changed, then the records that change them

At the LSN each page is as on a server that recovered to there: from the files of the backup if no record changed it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from tidemark.decode.catalog.seeding.commit_log import CommitLog, Multixacts
from tidemark.decode.pages.page_redo import PageRedo
from tidemark.decode.pages.visible_rows import VisibleRows
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.backup.backup import BackupFolder
from tidemark.io.backup.changed_pages import PageCache, PagesOfFile
from tidemark.model.change import NO_COMMIT_TIME
from tidemark.model.lsn import XID_MASK, BlockNumber, Lsn, Xid
from tidemark.model.relation import RelFileLocator
from tidemark.runtime.backup_rows.recovery_target import Progressed, do_nothing
from tidemark.runtime.replay.archive_blocks import archived_blocks, of_rmgr
from tidemark.runtime.replay.end_marks import ends_in
from tidemark.wal.data_directory import BackupUnusable
from tidemark.wal.page import RecordBlock
from tidemark.wal.record import LOCATOR
from tidemark.wal.rmgr import RM_MULTIXACT, RM_STANDBY, multixact, standby, xact
from tidemark.wal.rmgr.xlog import Checkpoint

FILES_SOUGHT_MAX = 16  # by their whole locators; more are sought by their databases, which finds others too
_DATABASE_BYTES = 8  # of a locator: tablespace and database


class PageReplay:
    """The pages of some files at an LSN, and which transactions had ended there."""

    def __init__(
        self,
        backup: BackupFolder,
        checkpoint: Checkpoint,
        locators: Sequence[RelFileLocator],
        cache: PageCache,
        progress: Progressed = do_nothing,
    ) -> None:
        self._backup = backup
        self._progress = progress
        self._files: Mapping[RelFileLocator, PagesOfFile] = {locator: cache.new_file() for locator in locators}
        self._redo = PageRedo(backup.format, self._files)
        self._log = CommitLog(partial(backup.slru_page, "pg_xact"), Xid(checkpoint.next_xid & XID_MASK))
        self._multixacts = Multixacts(
            partial(backup.slru_page, "pg_multixact/offsets"),
            partial(backup.slru_page, "pg_multixact/members"),
            checkpoint.next_multixact,
            checkpoint.next_member,
        )
        self.latest_time_us = NO_COMMIT_TIME  # of all transactions that ended since the redo LSN
        self.visibility = VisibleRows(self._log, self._multixacts)
        names = [LOCATOR.pack(*locator) for locator in self._files]
        self._names = frozenset(names)
        is_few = len(names) <= FILES_SOUGHT_MAX
        self._sought = names if is_few else list({name[:_DATABASE_BYTES] for name in names})

    def run(self, archive: ArchiveFolder, lsn: Lsn) -> None:
        """Apply the records from the redo LSN on that begin before `lsn`; check that the backup has the files."""
        self._apply(archive, lsn)
        self._check()

    def _apply(self, archive: ArchiveFolder, lsn: Lsn) -> None:
        for block in archived_blocks(archive, self._backup.label.start_lsn):
            self._progress()
            stop = bisect_left(block.lsns, lsn, 0, len(block))
            self._record_ends(block, stop)
            for index in self._records_of_files(block, stop):
                self._redo.apply(block.record(index))
            if stop < len(block):
                return

    def _check(self) -> None:
        """Raise `BackupUnusable` if the backup lacks a file."""
        self._backup.prefetch(self._files)
        for locator, pages in self._files.items():
            if not self._backup.expect(locator) and not pages.is_created:
                raise BackupUnusable(f"{self._backup.folder} lacks file {locator.rel} of database {locator.db}")

    def pages(self, locator: RelFileLocator) -> Iterator[tuple[BlockNumber, bytes | bytearray]]:
        """Yield the pages of a file in order."""
        for block, page in self._files[locator].over(self._backup.pages(locator)):
            self._progress()
            yield block, page

    def page(self, locator: RelFileLocator, block: BlockNumber) -> bytes | bytearray | None:
        """Return one page of a file; None if it does not exist."""
        pages = self._files[locator]
        changed = pages.get(block)
        if changed is not None:
            return changed
        return self._backup.page(locator, block) if pages.keeps(block) else None

    def _record_ends(self, block: RecordBlock, stop: int) -> None:
        for index in of_rmgr(block, stop, RM_MULTIXACT):
            created = multixact.parse(block.record(index))
            if created is not None:
                self._multixacts.record(created)
        for index in of_rmgr(block, stop, RM_STANDBY):
            running = standby.parse(block.record(index))
            if running is not None:
                self._log.record_running(running.oldest_running_xid)
        for index in ends_in(block):
            if index >= stop:
                return
            ended = xact.parse(block.record(index), block.format)
            assert isinstance(ended, xact.Commit | xact.Abort), index
            self._log.record((ended.xid, *ended.subxids), committed=isinstance(ended, xact.Commit))
            self.latest_time_us = max(self.latest_time_us, ended.time_us)

    def _records_of_files(self, block: RecordBlock, stop: int) -> Sequence[int]:
        """Return the records that may be about the files: those that contain the locator of one, at any place."""
        if not stop:
            return ()
        linear, offsets = block.linear, block.offsets
        begin, end = offsets[0], offsets[stop - 1] + block.lengths[stop - 1]
        found: set[int] = set()
        for sought in self._sought:
            at = linear.find(sought, begin, end)
            while at >= 0:
                index = bisect_right(offsets, at, 0, stop) - 1
                if bytes(linear[at : at + LOCATOR.size]) in self._names:
                    found.add(index)
                    at = offsets[index] + block.lengths[index]
                else:
                    at += 1
                at = linear.find(sought, at, end)
        return sorted(found)
