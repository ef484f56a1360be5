"""The control socket: STATE/<role>.sock, one JSON line each way, each with a deadline (`tidemark.wire.control`).

A client must be root or the user that the process runs as: the kernel reports its user. One thread reads all
connections at once, so that a client that sends nothing delays no other; a few other threads run commands and send the
responses. A command's handler must be short.
"""

import errno
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Full, Queue

from tidemark.io.host.unix_sockets import socket_address
from tidemark.model.errors import ConfigError, Fenced, InternalError, NodeUnreachable, TidemarkError
from tidemark.wire.control import LINE_BYTES_MAX, BadRequest, Json, decode_line, encode_line, refusal

DEADLINE_S = 5.0
CONNECTIONS_MAX = 64  # at once; if all are in use, the oldest without a complete line is closed
HANDLERS_MAX = 4  # commands that run at once, each for at most DEADLINE_S
EXHAUSTED_PAUSE_S = 1.0  # before the next attempt if the process has no descriptor left for a client
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_BACKLOG = 256  # the kernel rejects further connections
_CHECK_S = 0.5  # how often deadlines are checked, while there are any
_RECEIVED_BYTES_MAX = 1 << 16
_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid
CommandHandler = Callable[[dict[str, Json]], Mapping[str, Json]]


class DaemonUnreachable(NodeUnreachable):
    """No process answers at the control socket."""

    hint = "the process does not run: see `cdcctl status`"


@dataclass(slots=True, eq=False)
class _Connection:
    """A client, and the bytes that it has sent."""

    socket: socket.socket
    deadline_s: float
    line: bytearray = field(default_factory=bytearray)

    def receive(self) -> bool:
        """Receive the available bytes; return whether the request is complete."""
        received = self.socket.recv(_RECEIVED_BYTES_MAX)
        self.line += received
        return not received or self.line.endswith(b"\n") or len(self.line) > LINE_BYTES_MAX


class ControlServer:
    """Serves commands until it is closed."""

    def __init__(
        self,
        path: Path,
        handlers: Mapping[str, CommandHandler],
        file_mode: int = 0o600,
        clock: Callable[[], float] = time.monotonic,
        make_selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector,
    ) -> None:
        self._path = path
        self._handlers = handlers
        self._clock = clock
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._stopping = threading.Event()
        self._reading: dict[socket.socket, _Connection] = {}  # in the order of their acceptance
        self._commands: Queue[tuple[socket.socket, bytes] | None] = Queue(CONNECTIONS_MAX)
        # We hold the role's lock, so an existing socket belongs to a dead process.
        if path.exists() and not path.is_socket():
            raise ConfigError(f"{path} exists and is not a socket", hint="is this a state folder?")
        path.unlink(missing_ok=True)
        before = os.umask(0o777 & ~file_mode)
        try:
            with socket_address(path) as address:
                self._socket.bind(address)
        finally:
            os.umask(before)
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        self._selector = make_selector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._paused_until_s: float | None = None  # no descriptor was left: accept no connection until then
        targets = [self._serve, *[self._run_commands] * HANDLERS_MAX]
        self._threads = [threading.Thread(target=target, name="control", daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._stopping.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        for thread in self._threads:
            thread.join(DEADLINE_S + _CHECK_S)
        self._selector.close()
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            has_deadline = bool(self._reading) or self._paused_until_s is not None
            for key, _ in self._selector.select(_CHECK_S if has_deadline else None):
                if key.fileobj is self._socket:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._reading:
                    self._read(self._reading[key.fileobj])
            now_s = self._clock()
            self._resume(now_s)
            for late in [one for one in self._reading.values() if one.deadline_s <= now_s]:
                self._forget(late).close()
        for left in list(self._reading.values()):
            self._forget(left).close()
        with suppress(Empty):
            while (waiting := self._commands.get_nowait()) is not None:
                waiting[0].close()
        for _ in range(HANDLERS_MAX):
            self._commands.put(None)

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._pause()
            return  # otherwise the client has disconnected
        if len(self._reading) >= CONNECTIONS_MAX:
            self._forget(self._oldest()).close()
        try:
            accepted.setblocking(False)
            self._selector.register(accepted, selectors.EVENT_READ)
        except OSError:  # the kernel can watch no more descriptors: the client tries again
            accepted.close()
            return
        self._reading[accepted] = _Connection(accepted, self._clock() + DEADLINE_S)

    def _pause(self) -> None:
        """Close a connection if descriptors are exhausted; if none can be closed, stop accepting for a while.

        Otherwise the waiting connection would make each `select` return at once.
        """
        if self._reading:
            self._forget(self._oldest()).close()
            return
        self._selector.unregister(self._socket)
        self._paused_until_s = self._clock() + EXHAUSTED_PAUSE_S

    def _resume(self, now_s: float) -> None:
        if self._paused_until_s is not None and now_s >= self._paused_until_s:
            try:
                self._selector.register(self._socket, selectors.EVENT_READ)
            except OSError:  # the kernel has no space for it either: tried again after the next pause
                self._paused_until_s = now_s + EXHAUSTED_PAUSE_S
                return
            self._paused_until_s = None

    def _oldest(self) -> _Connection:
        return next(iter(self._reading.values()))

    def _read(self, connection: _Connection) -> None:
        try:
            is_complete = connection.receive()
        except BlockingIOError:
            return
        except OSError:  # the client disconnected
            self._forget(connection).close()
            return
        if not is_complete:
            return
        client = self._forget(connection)
        try:
            self._commands.put_nowait((client, bytes(connection.line)))
        except Full:
            client.close()

    def _forget(self, connection: _Connection) -> socket.socket:
        """Stop reading from a connection; return its socket."""
        del self._reading[connection.socket]
        self._selector.unregister(connection.socket)
        return connection.socket

    def _run_commands(self) -> None:
        while (command := self._commands.get()) is not None:
            client, line = command
            with client, suppress(OSError):  # the client disconnected
                client.settimeout(DEADLINE_S)
                client.sendall(encode_line(self._answer(client, line)))

    def _answer(self, client: socket.socket, line: bytes) -> Mapping[str, Json]:
        try:
            return {"ok": True, **self._run(client, line)}
        except TidemarkError as error:
            return refusal(error)
        except Exception as error:  # noqa: BLE001 - a bug in one command must not end the others
            return refusal(InternalError(f"the command failed with {type(error).__name__}"))

    def _run(self, client: socket.socket, line: bytes) -> Mapping[str, Json]:
        _, uid, _ = _PEER.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid not in (0, os.geteuid()):
            raise Fenced(
                f"user {uid} may not control this process", hint="run this as root, or as the user of the process"
            )
        request = decode_line(line)
        command = request.get("command")
        handler = self._handlers.get(command) if isinstance(command, str) else None
        if handler is None:
            raise BadRequest(f"unknown command: {command!r}")
        return handler(request)


def request(path: Path, content: Mapping[str, Json], deadline_s: float = DEADLINE_S) -> dict[str, Json]:
    """Send one command to the process at `path`; return its response, `ok` or not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(deadline_s)
        try:
            with socket_address(path) as address:
                connection.connect(address)
            connection.sendall(encode_line(content))
            return decode_line(_receive_line(connection))
        except OSError as error:
            raise DaemonUnreachable(f"no process answers at {path}: {error.strerror or error}") from error


def _receive_line(connection: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) <= LINE_BYTES_MAX:
        received = connection.recv(1 << 16)
        if not received:
            break
        line += received
    return bytes(line)
