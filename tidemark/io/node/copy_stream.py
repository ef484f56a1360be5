"""COPY TO STDOUT in blocks of whole lines.

libpq makes the connection, sends the statement and receives its result. But it returns one line for each call, which
costs as much as the server's work to write it. So on an unencrypted connection the rows are read from the socket: only
their bytes are consumed, and libpq then finds the messages of a statement without rows. On an encrypted connection
(TLS, GSSAPI) libpq returns the lines one by one.

Nothing here waits while it holds the interpreter lock. If a block takes long, an empty one is returned first, so
that the caller can be stopped.
"""

import os
import select
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from typing import NamedTuple

import psycopg
from psycopg import pq, sql
from psycopg.rows import TupleRow

from tidemark.io.node.copy_messages import CopyMessages

RECEIVED_BYTES = 4 << 20  # in one buffer: most blocks fit
QUIET_S = 0.2
CANCEL_S = 10.0
END = -1  # result of PQgetCopyData
SEALED = b"\0"  # the first byte (of the length) of a packet encrypted by GSSAPI; no message of the server has this type


class CopyBlock(NamedTuple):
    """Lines of COPY's text format, and their number."""

    lines: bytes | bytearray
    rows: int


class BlockBounds(NamedTuple):
    """The bounds of a block; its last row may exceed `bytes_max`."""

    rows_max: int
    bytes_max: int


BLOCK = BlockBounds(65_536, 16 << 20)
NONE_YET = CopyBlock(b"", 0)


def copied_blocks(
    session: psycopg.Connection[TupleRow], statement: sql.Composed, bounds: BlockBounds
) -> Generator[CopyBlock]:
    """Yield all lines of a COPY in text format, in blocks. Closing the generator early cancels the COPY."""
    connection = session.pgconn
    connection.send_query(statement.as_bytes(session))
    while connection.flush():
        _is_ready(connection.socket, select.POLLOUT)
    # NB: a socket object with a duplicated descriptor: closing it does not close libpq's.
    with closing(socket.socket(fileno=os.dup(connection.socket))) as plain:
        plain.setblocking(False)
        messages: CopyMessages | None = None
        given = 0
        try:
            while not _is_ready(connection.socket, select.POLLIN):
                yield NONE_YET
            messages = None if connection.ssl_in_use or _is_sealed(plain) else CopyMessages(plain)
            for block in _blocks(connection, messages, bounds):
                given += block.rows
                yield block
        except BaseException:
            with suppress(psycopg.Error):
                session.cancel_safe(timeout=CANCEL_S)
                _drain(session, _blocks(connection, messages, bounds))
            raise
    sent = _end(connection)
    if sent != given:
        raise psycopg.OperationalError(f"the server reports a COPY of {sent} rows, but {given} were received")


def _drain(session: psycopg.Connection[TupleRow], blocks: Iterator[CopyBlock]) -> None:
    """Discard the remaining rows of a cancelled COPY; close the connection if this takes too long."""
    until_s = time.monotonic() + CANCEL_S
    for _ in blocks:
        if time.monotonic() > until_s:
            session.close()
            return
    _end(session.pgconn)


def _blocks(connection: pq.abc.PGconn, messages: CopyMessages | None, bounds: BlockBounds) -> Iterator[CopyBlock]:
    """Return the remaining blocks, parsed by `messages`; None: by libpq."""
    if messages is None:
        return _by_libpq(connection, bounds)
    return blocks_off_socket(messages, bounds)


def _is_sealed(plain: socket.socket) -> bool:
    try:
        return plain.recv(1, socket.MSG_PEEK) == SEALED
    except OSError:
        return False  # libpq reports the error


def blocks_off_socket(messages: CopyMessages, bounds: BlockBounds) -> Iterator[CopyBlock]:
    """Yield rows from the socket up to the first message for libpq, which also handles a closed connection."""
    data = bytearray(RECEIVED_BYTES)
    view = memoryview(data)
    lines = bytearray()
    while not messages.is_over:
        if not messages.receive(data, bounds.rows_max, bounds.bytes_max - len(lines)):
            return
        lines += view[: messages.kept]
        if messages.is_full:
            whole, lines, rows = lines, bytearray(), messages.rows
            messages.rows = 0
            yield CopyBlock(whole, rows)
        elif not messages.is_over:
            if not messages.kept:
                _is_ready(messages.descriptor, select.POLLIN)
            yield NONE_YET
    if messages.is_broken:
        raise psycopg.OperationalError("a message of a COPY has an impossible length")
    if messages.rows:
        rows, messages.rows = messages.rows, 0
        yield CopyBlock(lines, rows)


def _by_libpq(connection: pq.abc.PGconn, bounds: BlockBounds) -> Iterator[CopyBlock]:
    """Yield blocks of the rows that libpq returns one by one."""
    while connection.is_busy():
        _receive(connection)
        yield NONE_YET
    result = connection.get_result()
    if result is None or result.status != pq.ExecStatus.COPY_OUT:
        _end(connection, result)
        return
    lines: list[bytes] = []
    size = 0
    reported_s = time.monotonic()
    while (found := connection.get_copy_data(1))[0] != END:
        length, line = found
        if length == 0:
            _receive(connection)
            if time.monotonic() - reported_s >= QUIET_S:  # rows arrive one packet at a time
                yield NONE_YET
                reported_s = time.monotonic()
            continue
        lines.append(bytes(line))
        size += length
        if len(lines) == bounds.rows_max or size >= bounds.bytes_max:
            yield CopyBlock(b"".join(lines), len(lines))
            lines, size, reported_s = [], 0, time.monotonic()
    if lines:
        yield CopyBlock(b"".join(lines), len(lines))


def _is_ready(descriptor: int, event: int) -> bool:
    """Wait up to QUIET_S for the server; return whether the descriptor is ready."""
    ready = select.poll()
    ready.register(descriptor, event)
    return bool(ready.poll(QUIET_S * 1000))


def _receive(connection: pq.abc.PGconn) -> None:
    """Wait up to QUIET_S for more bytes from the server, and let libpq read them."""
    if _is_ready(connection.socket, select.POLLIN):
        connection.consume_input()


def _end(connection: pq.abc.PGconn, result: pq.abc.PGresult | None = None) -> int:
    """Consume the statement's results, beginning with `result` if given; raise the server's error.

    Returns the number of rows that the server reports as sent.
    """
    error: psycopg.Error | None = None
    sent = 0
    while True:
        if result is not None and result.status == pq.ExecStatus.COMMAND_OK:
            sent = result.command_tuples or 0
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            error = psycopg.errors.error_from_result(result)
        while connection.is_busy():
            _receive(connection)
        result = connection.get_result()
        if result is None:
            break
    if error is not None:
        raise error
    return sent
