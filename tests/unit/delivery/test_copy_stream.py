"""A COPY's rows from the socket: whole lines in order within their limits, whatever the boundaries of messages."""

import ctypes
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from tests.support.oracles.twins import interpreted
from tests.support.processes.waiting import wait_until
from tidemark.io.node.copy_messages import CopyMessages
from tidemark.io.node.copy_stream import RECEIVED_BYTES, BlockBounds, CopyBlock, blocks_off_socket
from tidemark.wal.kernel import COMPILED

SHORT = [b"%d\t%s\n" % (number, b"x" * (number * 37 % 400)) for number in range(2000)]
LONG = b"y" * (2 * RECEIVED_BYTES) + b"\n"  # longer than one read
LINES = [*SHORT, LONG, b"\n", LONG, *SHORT]
COMPLETE = b"COPY 4003\0"
KINDS = {
    "compiled": CopyMessages,
    "interpreted": interpreted("tidemark.io.node.copy_messages").CopyMessages,
}


def message(kind: bytes, held: bytes) -> bytes:
    return kind + struct.pack(">I", 4 + len(held)) + held


BEGIN = message(b"H", struct.pack(">bhh", 0, 1, 0))
BEHIND = message(b"C", COMPLETE) + message(b"Z", b"T")


def sent(lines: list[bytes]) -> bytes:
    notice = message(b"N", b"SWARNING\0\0")
    rows = b"".join(message(b"d", line) for line in lines)
    return BEGIN + notice + rows + message(b"c", b"") + BEHIND


def received(kind: str, data: bytes, bounds: BlockBounds, pieces: list[int]) -> tuple[list[CopyBlock], bytes]:
    """Send `data` in pieces of these sizes, repeatedly; return the blocks, and the rest on the socket."""
    ours, servers = socket.socketpair()

    def send() -> None:
        at, index = 0, 0
        while at < len(data):
            size = pieces[index % len(pieces)]
            servers.sendall(data[at : at + size])
            at, index = at + size, index + 1
        servers.close()

    with ours, ThreadPoolExecutor(1) as pool:
        ours.setblocking(False)
        sending = pool.submit(send)
        blocks = [block for block in blocks_off_socket(KINDS[kind](ours), bounds) if block.rows]
        ours.settimeout(60)
        left = b""
        while more := ours.recv(RECEIVED_BYTES):
            left += more
        sending.result()
    return blocks, left


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bounds", [BlockBounds(1 << 20, 1 << 30), BlockBounds(7, 1 << 30), BlockBounds(1 << 20, 1000)])
@pytest.mark.parametrize("pieces", [[8192], [1, 2, 3, 5, 100_000], [300_000]])
def test_blocks_are_complete_lines_and_other_bytes_stay_on_the_socket(
    kind: str, bounds: BlockBounds, pieces: list[int]
) -> None:
    blocks, left = received(kind, sent(LINES), bounds, pieces)
    assert b"".join(block.lines for block in blocks) == b"".join(LINES)
    assert left == BEHIND
    for block in blocks:
        assert block.lines.endswith(b"\n")
        assert block.lines.count(b"\n") == block.rows <= bounds.rows_max
        assert len(block.lines) - len(block.lines.splitlines(keepends=True)[-1]) < bounds.bytes_max


def test_pieces_of_any_size_yield_the_same_blocks() -> None:
    chance = random.Random(6)
    pieces = [chance.randint(1, 40) for _ in range(500)]
    blocks, left = received("compiled", sent(SHORT), BlockBounds(100, 5000), pieces)
    assert b"".join(block.lines for block in blocks) == b"".join(SHORT)
    assert left == BEHIND


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [0, 3, len(BEGIN), len(BEGIN) + 2, len(sent(SHORT[:5])) - 40])
def test_a_connection_that_ends_returns_no_partial_row(kind: str, cut: int) -> None:
    blocks, left = received(kind, sent(SHORT[:5])[:cut], BlockBounds(2, 1000), [8192])
    assert [block.lines for block in blocks] in ([], [SHORT[0] + SHORT[1], SHORT[2] + SHORT[3]])
    assert left == b""


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_arrive_slowly_do_not_delay_a_stop(kind: str) -> None:
    ours, servers = socket.socketpair()
    is_reported = threading.Event()

    def dribble() -> None:
        servers.sendall(BEGIN)
        for line in SHORT:
            if is_reported.wait(0.01):
                break
            servers.sendall(message(b"d", line))
        servers.close()

    with ours, ThreadPoolExecutor(1) as pool:
        ours.setblocking(False)
        dribbling = pool.submit(dribble)
        blocks = blocks_off_socket(KINDS[kind](ours), BlockBounds(1 << 20, 1 << 30))
        first = next(blocks)
        is_reported.set()
        dribbling.result()
    assert not first.rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_length_that_none_has_is_an_error(kind: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="has an impossible length"):
        received(kind, BEGIN + b"d\0\0\0\3xx", BlockBounds(1, 1000), [8192])


@contextmanager
def interpreter_kept() -> Iterator[ctypes.PyDLL]:
    """Keep the interpreter lock in this thread; calls of the given C library do not release it either."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        yield ctypes.PyDLL(None)
    finally:
        sys.setswitchinterval(interval_s)


def sent_while_kept(servers: socket.socket, rows: bytes) -> int:
    """Return how much of `rows` is sent within a second in which no other thread has the interpreter lock."""
    content = ctypes.create_string_buffer(rows, len(rows))
    at = 0
    with interpreter_kept() as library:
        until_s = time.monotonic() + 1
        while at < len(rows) and time.monotonic() < until_s:
            at += max(0, library.send(servers.fileno(), ctypes.byref(content, at), len(rows) - at, socket.MSG_DONTWAIT))
    return at


def has_kept(messages: CopyMessages) -> bool:
    return bool(messages.kept)


@pytest.mark.skipif(not COMPILED, reason="interpreted, each look at the socket is a call")
def test_rows_are_received_while_another_thread_has_the_interpreter() -> None:
    row = message(b"d", b"x" * 1000 + b"\n")
    rows = row * (RECEIVED_BYTES // 2 // len(row))  # ten times a socket's buffer
    data = bytearray(RECEIVED_BYTES)
    for _ in range(20):  # NB: the thread may return from its call right before we take the interpreter lock
        ours, servers = socket.socketpair()
        with ours, servers, ThreadPoolExecutor(1) as pool:
            ours.setblocking(False)
            messages = CopyMessages(ours)
            receiving = pool.submit(messages.receive, data, 1 << 20, 1 << 30)
            servers.sendall(row)
            wait_until(partial(has_kept, messages))
            sent_bytes = sent_while_kept(servers, rows)
            receiving.result()
        if sent_bytes == len(rows):
            break
    assert sent_bytes == len(rows)
