"""The rows of the table in hand, on disk between COPY and the consumer: below STATE/copy, without a name.

A COPY keeps a lock, a snapshot and a transaction open at the node, and whoever reads what we give out may be slow, or
away for days. So the rows go to disk as fast as the server sends them; giving them out goes on behind, at its own pace,
and holds nobody up.

    u32 length, u32 rows, the lines      of each block

The file is unlinked as soon as it is made: a kill at any moment leaves nothing behind, and nobody else can open it.
"""

import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Self

from tidemark.io.copy_stream import CopyBlock
from tidemark.io.disk import write_whole, writing
from tidemark.model.errors import ConfigError

HEADER = Struct("<II")
_MODE = 0o600


class TableTooLarge(ConfigError):
    """A table whose rows are more than may wait on disk."""

    hint = "raise copy.spool_bytes if the disk under the state folder has room, or exclude the table"


class CopySpool:
    """Lines of COPY's text format: filled once by one thread, and read once by another, meanwhile or later."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.byte_count = 0  # of lines
        self._bytes_max = bytes_max
        self._path = folder / f"table-{uuid.uuid4().hex}"
        self._written = 0  # bytes of whole blocks
        self._is_whole: bool | None = None  # False: it was broken off
        self._came = threading.Condition()
        with writing(self._path):
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
            self._path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._descriptor)

    def fill(self, blocks: Iterable[CopyBlock], table: str) -> None:
        """Take all lines; raise `TableTooLarge` where they are over the bound."""
        is_whole = False
        try:
            for block in blocks:
                self.byte_count += len(block.lines)
                if self.byte_count > self._bytes_max:
                    raise TableTooLarge(f"the rows of {table} have over {self._bytes_max} bytes (copy.spool_bytes)")
                if block.rows:
                    self._put(block)
            is_whole = True
        finally:
            with self._came:
                self._is_whole = is_whole
                self._came.notify_all()

    def _put(self, block: CopyBlock) -> None:
        with writing(self._path):
            write_whole(self._descriptor, HEADER.pack(len(block.lines), block.rows))
            write_whole(self._descriptor, block.lines)
        with self._came:
            self._written += HEADER.size + len(block.lines)
            self._came.notify_all()

    def blocks(self) -> Iterator[CopyBlock]:
        """Give the blocks as they were put in, each as soon as it is there; none any more once filling broke off."""
        at = 0
        while self._comes_to(at):
            length, rows = HEADER.unpack(os.pread(self._descriptor, HEADER.size, at))
            at += HEADER.size
            yield CopyBlock(os.pread(self._descriptor, length, at), rows)
            at += length

    def _comes_to(self, at: int) -> bool:
        """Wait until there are more than `at` bytes; tell if it is worth while to take them."""
        with self._came:
            self._came.wait_for(lambda: self._written > at or self._is_whole is not None)
            return self._written > at and self._is_whole is not False
