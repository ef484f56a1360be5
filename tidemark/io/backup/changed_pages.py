"""Pages of tables that WAL has changed since a base backup, in a folder of temporary files.

Memory is bounded: the pages that were used last are cached, for all files together. A file has a sparse file for the
others, so that a page is at its place and no index is needed but a bit for each page.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from tidemark.io.host.disk import StateFull, is_full
from tidemark.model.errors import ConfigError, StateError, TidemarkError
from tidemark.model.lsn import BlockNumber
from tidemark.wal.versions import PAGE_BYTES

CACHED_PAGES = 8192  # 64 MB
CHANGED_BYTES_MAX = 16 << 40  # of all changed pages, if the caller has no other bound


class ScratchFailed(StateError):
    """Temporary files cannot be written or read."""

    hint = "check the permissions of that folder, and that no other program changes it"


class ScratchFull(StateFull):
    """There is no space for temporary files."""

    hint = "provide space there, or use a later backup: the pages that were changed since it began are stored"


class TooManyChangedPages(ConfigError):
    """More pages were changed since the start of the backup than may be stored: reading again has the same result."""

    hint = "use a later backup, or raise copy.spool_bytes"


class PageCache:
    """The pages in memory, and the folder of the others."""

    def __init__(
        self, folder: Path, pages_max: int = CACHED_PAGES, *, changed_bytes_max: int = CHANGED_BYTES_MAX
    ) -> None:
        self._folder = folder
        self._pages_max = pages_max
        self._changed_bytes_max = changed_bytes_max
        self._changed = 0  # pages of all files that are stored
        self._pages: OrderedDict[tuple[int, BlockNumber], bytearray] = OrderedDict()
        self._files = 0

    def new_file(self) -> "PagesOfFile":
        """Return a file without changed pages."""
        self._files += 1
        return PagesOfFile(self, self._files)

    def get(self, file: int, block: BlockNumber) -> bytearray:
        """Return a page that was put."""
        page = self._pages.get((file, block))
        if page is None:
            page = bytearray(self._read(file, block))
            self.put(file, block, page)
        else:
            self._pages.move_to_end((file, block))
        return page

    def put(self, file: int, block: BlockNumber, page: bytearray) -> None:
        """Keep a page; write the one that was not used for longest."""
        self._pages[file, block] = page
        self._pages.move_to_end((file, block))
        if len(self._pages) > self._pages_max:
            (of_file, of_block), oldest = self._pages.popitem(last=False)
            self._write(of_file, of_block, oldest)

    def count_changed(self, pages: int) -> None:
        """Count pages that were put for the first time or, below zero, removed.

        Raise `TooManyChangedPages` beyond the bound.
        """
        self._changed += pages
        if self._changed * PAGE_BYTES > self._changed_bytes_max:
            raise TooManyChangedPages(
                f"more than {self._changed_bytes_max} bytes of pages were changed since the backup began"
            )

    def _path(self, file: int) -> Path:
        return self._folder / f"pages-{file}"

    def _read(self, file: int, block: BlockNumber) -> bytes:
        try:
            with self._path(file).open("rb", buffering=0) as opened:
                page = os.pread(opened.fileno(), PAGE_BYTES, block * PAGE_BYTES)
        except OSError as error:
            raise self._failed(file, error) from error
        if len(page) != PAGE_BYTES:
            raise ScratchFailed(f"{self._path(file)} was changed by another program")
        return page

    def _write(self, file: int, block: BlockNumber, page: bytearray) -> None:
        # NB: opened for each page, since a partitioned table can have more files than a process may open.
        try:
            descriptor = os.open(self._path(file), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                written = os.pwrite(descriptor, page, block * PAGE_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._failed(file, error) from error
        if written != PAGE_BYTES:
            raise ScratchFull(f"no space for {self._path(file)}")

    def _failed(self, file: int, error: OSError) -> TidemarkError:
        return scratch_error(self._path(file), error)


def scratch_error(path: Path, error: OSError) -> TidemarkError:
    """Return the error for a temporary file that cannot be used."""
    if is_full(error):
        return ScratchFull(f"no space for {path}: {error.strerror}")
    return ScratchFailed(f"cannot use {path}: {error.strerror}")


class PagesOfFile:
    """The changed pages of one file."""

    def __init__(self, cache: PageCache, number: int) -> None:
        self._cache = cache
        self._number = number
        self._changed = bytearray()  # a bit for each page
        self._kept_blocks: int | None = None  # how many pages of the backup's file still exist; None: all of them

    @property
    def is_created(self) -> bool:
        """Return whether the file is empty apart from its changed pages."""
        return self._kept_blocks == 0

    def get(self, block: BlockNumber) -> bytearray | None:
        """See `ChangedPages`."""
        return self._cache.get(self._number, block) if self._has(block) else None

    def put(self, block: BlockNumber, page: bytearray) -> None:
        """See `ChangedPages`."""
        if block >> 3 >= len(self._changed):
            self._changed.extend(bytes((block >> 3) + 1 - len(self._changed)))
        if not self._has(block):
            self._cache.count_changed(1)
        self._changed[block >> 3] |= 1 << (block & 7)
        self._cache.put(self._number, block, page)

    def truncate(self, blocks: int) -> None:
        """See `ChangedPages`."""
        kept, before = blocks >> 3, self._count()
        if kept < len(self._changed):
            del self._changed[kept + 1 :]
            self._changed[kept] &= (1 << (blocks & 7)) - 1
        self._cache.count_changed(self._count() - before)
        self._kept_blocks = blocks if self._kept_blocks is None else min(blocks, self._kept_blocks)

    def create(self) -> None:
        """See `ChangedPages`."""
        self._cache.count_changed(-self._count())
        self._changed.clear()
        self._kept_blocks = 0

    def over(self, pages: Iterator[tuple[BlockNumber, bytes]]) -> Iterator[tuple[BlockNumber, bytes | bytearray]]:
        """Yield all pages in order: those of the backup's file `pages`, unless they were changed or removed."""
        following = 0
        for block, page in takewhile(lambda item: self.keeps(item[0]), pages):
            yield from self._between(following, block)
            yield block, self.get(block) or page
            following = block + 1
        yield from self._between(following, len(self._changed) << 3)

    def keeps(self, block: BlockNumber) -> bool:
        """Return whether a page of the backup's file still exists."""
        return self._kept_blocks is None or block < self._kept_blocks

    def _between(self, first: int, stop: int) -> Iterator[tuple[BlockNumber, bytearray]]:
        for number in range(first, stop):
            block = BlockNumber(number)
            if self._has(block):
                yield block, self._cache.get(self._number, block)

    def _count(self) -> int:
        return int.from_bytes(self._changed, "little").bit_count()

    def _has(self, block: BlockNumber) -> bool:
        return block >> 3 < len(self._changed) and bool(self._changed[block >> 3] >> (block & 7) & 1)
