"""Receives rows from the socket, out of the messages in which the server sends them (protocol 3, COPY TO STDOUT).

    u8 type, u32 length with itself (big-endian), contents      d CopyData, H CopyOutResponse, c CopyDone, N notice

One CopyData is one row. Any other message ends the copy and stays on the socket, for the sender of the query. So the
received bytes are peeked at first, and only the copy's part is consumed. A message may be cut anywhere.

The module is compiled if a compiler is available (its `.pxd` has the types) and runs interpreted otherwise; both do the
same. Compiled, it receives without the interpreter lock: otherwise the server writes to a full socket and waits while
another thread has the lock.
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
LOOKED_AT_BYTES = 1 << 18  # at once
FEW_BYTES = 1 << 16  # the server sends 8 kB at a time: to wake up for each costs both sides more than what is in it
PAUSE_US = 500
PAUSES_MAX = 100  # before the caller may look at something else

# The same as C integers, which the loops can read without the interpreter.
ROW = ord("d")
BEGIN = ord("H")
END = ord("c")
NOTICE = ord("N")
LENGTH = int(LENGTH_BYTES)
LOOKED_AT = int(LOOKED_AT_BYTES)
FEW = int(FEW_BYTES)
PAUSE = int(PAUSE_US)
PAUSES = int(PAUSES_MAX)
NOTHING = -1  # has come
BROKEN_OFF = 0  # no byte, or an error


class CopyMessages:
    """Follows the messages of one COPY."""

    def __init__(self, plain: socket.socket) -> None:
        """`plain` does not block; nobody else receives from it before the COPY is over."""
        self.plain = plain
        self.descriptor = plain.fileno()
        self.spare = bytearray(LOOKED_AT_BYTES)  # for what was looked at, and is taken off
        self.rows = 0  # that are whole; set back by the caller
        self.kept = 0  # bytes of rows at the front of what `receive` filled
        self.is_full = False  # it stopped at its bounds, behind a whole row
        self.is_over = False
        self.is_broken = False
        self.kind = 0  # of the message at hand
        self.length = 0  # that it tells
        self.length_left = 0  # bytes of it to come
        self.left = 0  # bytes to come behind it

    def receive(self, data: bytearray, rows_max: int, bytes_max: int) -> int:
        """Fill `data` from the front with rows, as far as they come without a long wait; 0 if the connection ended.

        It stops behind `rows_max` rows, or behind the row that brings `bytes_max` bytes, or where `data` has room for
        so few bytes only that it would take them for few that came.
        """
        self.kept = 0
        self.is_full = False
        pauses = 0
        with cython.nogil:
            while pauses < PAUSES and len(data) - self.kept >= FEW and not self.is_over and not self.is_full:
                count = self.look(data)
                if count == BROKEN_OFF:
                    return 0
                if count > 0 and not self.take_off(self.take(data, count, rows_max, bytes_max)):
                    return 0
                if count < FEW and not self.is_over and not self.is_full:
                    self.pause()
                    pauses += 1
        return 1

    def look(self, data: bytearray) -> int:
        """Copy what is there behind what is kept; return how much it is, or NOTHING, or BROKEN_OFF."""
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

    def take_off(self, size: int) -> int:
        """Take off the socket what was looked at; 0 if the connection broke."""
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
        """Let more come."""
        if cython.compiled:
            usleep(PAUSE)
        else:
            time.sleep(PAUSE_US / 1e6)
        return 0

    def take(self, data: bytearray, count: int, rows_max: int, bytes_max: int) -> int:
        """Move what `count` bytes hold of rows to those before; return how many bytes are the copy's."""
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
