"""Receives the rows of COPY TO STDOUT from the socket, by parsing the messages of protocol 3 itself.

    u8 type, u32 length with itself (big-endian), contents      d CopyData, H CopyOutResponse, c CopyDone, N notice

One CopyData is one row. Any other message ends the copy and stays in the socket for libpq, which sent the query. So the
bytes are first peeked at (MSG_PEEK), and only the bytes of the copy are consumed. A message may be split anywhere.

The module is compiled if a compiler is available (its `.pxd` has the types) and is interpreted otherwise; the behaviour
is the same. The compiled code receives without the interpreter lock: otherwise the server would fill the socket and
wait while another thread has the lock.
"""

from __future__ import annotations

import socket
import time

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython

if cython.compiled:
    from cython.cimports.libc.errno import EAGAIN, EINTR, errno
    from cython.cimports.libc.string import memmove
    from cython.cimports.posix.unistd import usleep
    from cython.cimports.tidemark.io.node.sockets import MSG_DONTWAIT, MSG_PEEK, recv

LENGTH_BYTES = 4
LOOKED_AT_BYTES = 1 << 18  # peeked at in one call
FEW_BYTES = 1 << 16  # the server sends 8 kB at a time: one wakeup for each costs both sides more than its contents
PAUSE_US = 500
PAUSES_MAX = 100  # of one `receive`, then the caller runs

# The same values as C integers, which the loops read without the interpreter lock.
ROW = ord("d")
BEGIN = ord("H")
END = ord("c")
NOTICE = ord("N")
LENGTH = int(LENGTH_BYTES)
LOOKED_AT = int(LOOKED_AT_BYTES)
FEW = int(FEW_BYTES)
PAUSE = int(PAUSE_US)
PAUSES = int(PAUSES_MAX)
NOTHING = -1  # no byte is available yet
BROKEN_OFF = 0  # the connection was closed or failed


class CopyMessages:
    """Parses the messages of one COPY."""

    def __init__(self, plain: socket.socket) -> None:
        """`plain` is non-blocking; nothing else receives from it before the COPY has ended."""
        self.plain = plain
        self.descriptor = plain.fileno()
        self.spare = bytearray(LOOKED_AT_BYTES)  # receives bytes that were peeked at, to consume them
        self.rows = 0  # complete rows; the caller resets the count
        self.kept = 0  # bytes of rows at the start of the buffer of `receive`
        self.is_full = False  # `receive` stopped at a bound, after a complete row
        self.is_over = False
        self.is_broken = False
        self.kind = 0  # of the current message
        self.length = 0  # of the current message, as far as it is parsed
        self.length_left = 0  # bytes of the length still to come
        self.left = 0  # bytes of the contents still to come

    def receive(self, data: bytearray, rows_max: int, bytes_max: int) -> int:
        """Fill `data` from its start with rows, as long as they arrive without a long wait; 0 if the connection ended.

        It stops after `rows_max` rows, after the row that reaches `bytes_max` bytes, or when `data` has less than
        FEW_BYTES free: a smaller read would look like a slow server.
        """
        self.kept = 0
        self.is_full = False
        pauses = 0
        with cython.nogil:
            while pauses < PAUSES and len(data) - self.kept >= FEW and not self.is_over and not self.is_full:
                count = self.peek(data)
                if count == BROKEN_OFF:
                    return 0
                if count > 0 and not self.consume(self.append_rows(data, count, rows_max, bytes_max)):
                    return 0
                if count < FEW and not self.is_over and not self.is_full:
                    self.pause()
                    pauses += 1
        return 1

    def peek(self, data: bytearray) -> int:
        """Copy available bytes behind the kept ones, unconsumed; return their number, NOTHING or BROKEN_OFF."""
        size = min(LOOKED_AT, len(data) - self.kept)
        if cython.compiled:
            came: int = recv(self.descriptor, cython.address(data[self.kept]), size, MSG_PEEK | MSG_DONTWAIT)
            if came < 0:
                return NOTHING if errno in {EAGAIN, EINTR} else BROKEN_OFF
            return came
        try:
            return self.plain.recv_into(memoryview(data)[self.kept :], size, socket.MSG_PEEK)
        except BlockingIOError:
            return NOTHING
        except OSError:
            return BROKEN_OFF

    def consume(self, size: int) -> int:
        """Consume `size` peeked bytes from the socket; return 0 if the connection failed."""
        while size > 0:
            if cython.compiled:
                came = recv(self.descriptor, cython.address(self.spare[0]), size, MSG_DONTWAIT)
                if came < 0 and errno == EINTR:
                    continue
            else:
                try:
                    came = self.plain.recv_into(self.spare, size)
                except OSError:
                    return 0
            if came <= 0:
                return 0
            size -= came
        return 1

    def pause(self) -> int:
        """Wait for more bytes."""
        if cython.compiled:
            usleep(PAUSE)
        else:
            time.sleep(PAUSE_US / 1e6)
        return 0

    def append_rows(self, data: bytearray, count: int, rows_max: int, bytes_max: int) -> int:
        """Append the row bytes of `count` received bytes to the kept ones; return how many belong to the copy."""
        begin = self.kept
        at = begin
        end = begin + count
        while at < end and not self.is_over and not self.is_full:
            if self.left > 0:
                size = min(self.left, end - at)
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
        return at - begin

    def keep(self, data: bytearray, at: int, size: int) -> int:
        """Append bytes of a row to the kept ones."""
        kept = self.kept
        if cython.compiled:
            last = data[at + size - 1]
            memmove(cython.address(data[kept]), cython.address(data[at]), size)
            data[kept + size - 1] = last  # NB: all four ends are bounds-checked, which covers the bytes between
        else:
            data[kept : kept + size] = data[at : at + size]
        self.kept = kept + size
        return 0
