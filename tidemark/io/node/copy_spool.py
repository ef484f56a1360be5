"""The rows of the current table, on disk between COPY and the consumer: below STATE/copy, without a name.

A COPY keeps a lock, a snapshot and a transaction open at the node, and a reader of the outbox may be slow, or absent
for days. So the rows are received as fast as the server sends them; their delivery follows at its own speed and delays
nothing. While it keeps pace, a block or two are passed in memory; the other blocks go to disk.

    u32 length, u32 rows, the lines      of each block

The file is unlinked as soon as it is created: a kill at any moment leaves nothing behind, and no process can open it.
"""

import os
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Self

from tidemark.io.host.disk import write_all, writing
from tidemark.io.node.copy_stream import CopyBlock
from tidemark.model.errors import ConfigError

HEADER = Struct("<II")
AHEAD_BLOCKS = 2  # in memory
_MODE = 0o600


class TableTooLarge(ConfigError):
    """A table with more rows than may wait on disk."""

    hint = "raise copy.spool_bytes if the disk under the state folder has space, or exclude the table"


class CopySpool:
    """Lines of COPY's text format: written once by one thread, read once by another, at the same time or later."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.byte_count = 0  # of lines
        self._bytes_max = bytes_max
        self._path = folder / f"table-{uuid.uuid4().hex}"
        self.stored_bytes = 0  # complete blocks on disk
        self._read_bytes = 0  # read so far, of these
        self._ahead: deque[CopyBlock] = deque()  # unread, older than the blocks on disk
        self._is_complete: bool | None = None  # False: filling failed
        self._came = threading.Condition()
        with writing(self._path):
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
            self._path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._descriptor)

    def fill(self, blocks: Iterable[CopyBlock], table: str) -> None:
        """Store all lines; raise `TableTooLarge` if they exceed the bound."""
        is_complete = False
        try:
            for block in blocks:
                self.byte_count += len(block.lines)
                if self.byte_count > self._bytes_max:
                    raise TableTooLarge(f"the rows of {table} have over {self._bytes_max} bytes (copy.spool_bytes)")
                if block.rows:
                    self._put(block)
            is_complete = True
        finally:
            with self._came:
                self._is_complete = is_complete
                self._came.notify_all()

    def _put(self, block: CopyBlock) -> None:
        with self._came:
            if self._read_bytes == self.stored_bytes and len(self._ahead) < AHEAD_BLOCKS:
                self._ahead.append(block)
                self._came.notify_all()
                return
        with writing(self._path):
            write_all(self._descriptor, HEADER.pack(len(block.lines), block.rows))
            write_all(self._descriptor, block.lines)
        with self._came:
            self.stored_bytes += HEADER.size + len(block.lines)
            self._came.notify_all()

    def blocks(self) -> Iterator[CopyBlock]:
        """Yield the blocks in order, each as soon as it is available; stop once filling has failed."""
        while self._wait_for_block():
            yield self._ahead.popleft() if self._ahead else self._stored()

    def _stored(self) -> CopyBlock:
        length, rows = HEADER.unpack(os.pread(self._descriptor, HEADER.size, self._read_bytes))
        block = CopyBlock(os.pread(self._descriptor, length, self._read_bytes + HEADER.size), rows)
        self._read_bytes += HEADER.size + length
        return block

    def _wait_for_block(self) -> bool:
        """Wait until there is an unread block or no more will come; return whether one is to be read."""
        with self._came:
            self._came.wait_for(
                lambda: self._ahead or self.stored_bytes > self._read_bytes or self._is_complete is not None
            )
            return bool(self._ahead or self.stored_bytes > self._read_bytes) and self._is_complete is not False
