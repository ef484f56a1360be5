"""Rows out of the messages in which the server sends them (protocol 3, COPY TO STDOUT): one CopyData is one row.

    u8 type, u32 length with itself (big-endian), what it holds      d CopyData, H CopyOutResponse, c CopyDone, N notice

What else comes ends the copy and is not taken: it is for whoever sent the query. A message may be cut anywhere.

The module is compiled where a compiler is there (its `.pxd` has the types) and runs interpreted otherwise; both do the
same.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if cython.compiled:
    from cython.cimports.libc.string import memmove

LENGTH_BYTES = 4

# The same as C integers, which the loop can read without the interpreter.
ROW = ord("d")
BEGIN = ord("H")
END = ord("c")
NOTICE = ord("N")
LENGTH = int(LENGTH_BYTES)


class CopyMessages:
    """Follows the messages of one COPY."""

    def __init__(self) -> None:
        self.rows = 0  # that are whole; set back by the caller
        self.kept = 0  # bytes of rows that `take` moved to the front
        self.is_full = False  # `take` stopped at its bounds, behind a whole row
        self.is_over = False
        self.is_broken = False
        self.kind = 0  # of the message at hand
        self.length = 0  # that it tells
        self.length_left = 0  # bytes of it to come
        self.left = 0  # bytes to come behind it

    def take(self, data: bytearray, count: int, rows_max: int, bytes_max: int) -> int:
        """Move what `count` bytes hold of rows to the front; return how many bytes were looked at.

        It stops behind `rows_max` rows, or behind the row that brings `bytes_max` bytes.
        """
        at = 0
        self.kept = 0
        self.is_full = False
        with cython.nogil:
            while at < count and not self.is_over and not self.is_full:
                if self.left > 0:
                    size = min(self.left, count - at)
                    if self.kind == ROW:
                        self.keep(data, at, size)
                    at += size
                    self.left -= size
                    if self.left == 0 and self.kind == ROW:
                        self.rows += 1
                        self.is_full = self.rows >= rows_max or self.kept >= bytes_max
                elif self.length_left > 0:
                    byte = data[at]
                    at += 1
                    self.length = self.length << 8 | byte
                    self.length_left -= 1
                    if self.length_left == 0:
                        self.left = self.length - LENGTH
                        if self.left < 0:
                            self.is_broken = True
                            self.is_over = True
                else:
                    byte = data[at]
                    if byte in {ROW, BEGIN, END, NOTICE}:
                        at += 1
                        self.kind = byte
                        self.length = 0
                        self.length_left = LENGTH
                    else:
                        self.is_over = True
        return at

    def keep(self, data: bytearray, at: int, size: int) -> int:
        """Move bytes of a row to those before."""
        kept = self.kept
        if cython.compiled:
            last = data[at + size - 1]
            memmove(cython.address(data[kept]), cython.address(data[at]), size)
            data[kept + size - 1] = last  # NB: all four ends are checked; what lies between them needs no check
        else:
            data[kept : kept + size] = data[at : at + size]
        self.kept = kept + size
        return 0
