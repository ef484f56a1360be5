"""The output of a range: files while earlier ranges are printed, then the output of the command itself.

The command prints and removes each file while the next one is written. A process may be ahead of the command by
`chunks_max` files, and waits there: the disk space is bounded, and a process whose output is printed now never waits
for long. As soon as everything before a range is printed, its process writes the rest itself, which no one copies.
"""

import io
import os
from collections.abc import Callable
from pathlib import Path

from tidemark.io.host.disk import write_all, writing

CHUNK_BYTES = 8 << 20


class ChunkedOutput(io.RawIOBase):
    """A binary stream that fills one file after another, and then writes to a descriptor."""

    def __init__(
        self,
        path_of: Callable[[int], Path],
        begin: Callable[[], int | None],
        end: Callable[[Path], None],
    ) -> None:
        """`begin` waits until another chunk may exist, or returns the output; `end` receives each complete chunk.

        `begin` is called before each write to the output, too: it ends the process if the command has ended.
        """
        self._path_of = path_of
        self._begin = begin
        self._end = end
        self._number = 0
        self._descriptor = -1
        self._size = 0

    def writable(self) -> bool:
        """Return that it can be written."""
        return True

    def write(self, content: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override] # what we write
        """Write all of `content`; raise `OutputClosed` if the reader of the output has ended."""
        size = memoryview(content).nbytes
        if self._descriptor < 0:
            output = self._begin()
            if output is not None:
                _write_output(output, content)
                return size
            path = self._path_of(self._number)
            with writing(path):
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with writing(self._path_of(self._number)):
            write_all(self._descriptor, content)
        self._size += size
        if self._size >= CHUNK_BYTES:
            self.end_chunk()
        return size

    def end_chunk(self) -> None:
        """Complete the current file, if there is one."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self._size = -1, 0
            self._end(self._path_of(self._number))
            self._number += 1


class OutputClosed(Exception):
    """The reader of the output has ended; not an error of the range."""


def _write_output(descriptor: int, content: "bytes | bytearray | memoryview") -> None:
    try:
        write_all(descriptor, content)
    except BrokenPipeError as error:
        raise OutputClosed from error
