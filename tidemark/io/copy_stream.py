"""COPY TO STDOUT in blocks of whole lines: libpq gives a line at a time, and psycopg would wait for each of them anew.

Nothing here waits while it holds the interpreter: what is there is taken, and the socket polled for more.
"""

import select
from collections.abc import Generator

import psycopg
from psycopg import pq, sql
from psycopg.rows import TupleRow

BLOCK_LINES = 8192
END = -1  # of PQgetCopyData


def copied_blocks(session: psycopg.Connection[TupleRow], statement: sql.Composed) -> Generator[bytes]:
    """Yield all lines of a COPY in text format, many together. Closed before its end, it ends the COPY."""
    with session.cursor().copy(statement):  # begins it, and cancels it where this is broken off
        connection = session.pgconn
        lines: list[bytes] = []
        while (found := connection.get_copy_data(1))[0] != END:
            length, line = found
            if length == 0:
                _wait(connection)
                continue
            lines.append(bytes(line))
            if len(lines) == BLOCK_LINES:
                yield b"".join(lines)
                lines.clear()
        if lines:
            yield b"".join(lines)
        _end(connection)


def _wait(connection: pq.abc.PGconn) -> None:
    """Wait for more of the server's."""
    ready = select.poll()
    ready.register(connection.socket, select.POLLIN)
    ready.poll()
    connection.consume_input()


def _end(connection: pq.abc.PGconn) -> None:
    """Take the COPY's result, or raise the server's error."""
    error: psycopg.Error | None = None
    while True:
        while connection.is_busy():
            _wait(connection)
        result = connection.get_result()
        if result is None:
            break
        if result.status == pq.ExecStatus.FATAL_ERROR:
            error = psycopg.errors.error_from_result(result)
    if error is not None:
        raise error
