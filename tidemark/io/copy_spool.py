"""The rows of the table in hand, on disk between COPY and the consumer: below STATE/copy, without a name.

A COPY keeps a lock, a snapshot and a transaction open at the node, and whoever reads what we give out may be slow, or
away for days. So the rows go to disk first, as fast as the server sends them; giving them out then holds nobody up.

The file is unlinked as soon as it is made: a kill at any moment leaves nothing behind, and nobody else can open it.
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from tidemark.io.disk import writing
from tidemark.model.errors import ConfigError

BUFFER_BYTES = 1 << 20
NEWLINE = 0x0A
_MODE = 0o600


class TableTooLarge(ConfigError):
    """A table whose rows are more than may wait on disk."""

    hint = "raise copy.spool_bytes if the disk under the state folder has room, or exclude the table"


class CopySpool:
    """Lines of COPY's text format: filled once, then read once."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.byte_count = 0
        self._bytes_max = bytes_max
        self._path = folder / f"table-{uuid.uuid4().hex}"
        with writing(self._path):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
            self._file = os.fdopen(descriptor, "w+b", buffering=BUFFER_BYTES)
            self._path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):  # a full disk once more, at what was buffered
            self._file.close()

    def fill(self, blocks: Iterable[bytes], table: str) -> None:
        """Take all lines, in blocks; raise `TableTooLarge` where they are over the bound."""
        write = self._file.write
        with writing(self._path):
            for block in blocks:
                self.byte_count += len(block)
                if self.byte_count > self._bytes_max:
                    raise TableTooLarge(f"the rows of {table} have over {self._bytes_max} bytes (copy.spool_bytes)")
                write(block)
            self._file.seek(0)

    def blocks(self, rows_max: int, bytes_max: int) -> Iterator[tuple[bytes, int]]:
        """Give the lines back in blocks of so many rows, or about so many bytes, with how many lines each has.

        NB: COPY writes a newline inside a value as a backslash and an n.
        """
        left = b""
        while read := self._file.read(max(bytes_max - len(left), len(left), BUFFER_BYTES)):
            left += read
            ends = np.flatnonzero(np.frombuffer(left, np.uint8) == NEWLINE)
            at = 0
            for first in range(0, len(ends), rows_max):
                lines = ends[first : first + rows_max]
                yield left[at : int(lines[-1]) + 1], len(lines)
                at = int(lines[-1]) + 1
            left = left[at:]
