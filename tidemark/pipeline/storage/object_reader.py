"""A file that is read from an object store in ranges: for PyArrow, which reads of a Parquet file what it needs."""

import os
from collections.abc import Callable

Range = Callable[[int, int], bytes]
"""Reads bytes of an object: where they begin, and how many."""


class ObjectReader:
    """An object of `size` bytes; `read_range` is called within it, for each read."""

    def __init__(self, size: int, read_range: Range) -> None:
        self._size = size
        self._read_range = read_range
        self._at = 0
        self.closed = False

    def read(self, length: int = -1) -> bytes:
        """Read at most `length` bytes, or all that follow."""
        rest = max(0, self._size - self._at)
        wanted = rest if length < 0 else min(length, rest)
        found = self._read_range(self._at, wanted) if wanted else b""
        self._at += len(found)
        return found

    def seek(self, to: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the object; return it."""
        self._at = to + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        """Return the place in the object."""
        return self._at

    def close(self) -> None:
        """End: there is nothing to release."""
        self.closed = True
