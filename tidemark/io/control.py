"""The control socket: STATE/<role>.sock, one JSON line each way, each with a deadline (`tidemark.wire.control`).

Whoever connects must be root or the user that the process runs as: the kernel says who it is. The server is one small
thread; what a command does is its handler's business, and must be short.
"""

import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tidemark.model.errors import ConfigError, Fenced, NodeUnreachable, TidemarkError
from tidemark.wire.control import LINE_BYTES_MAX, BadRequest, Json, decode_line, encode_line, refusal

DEADLINE_S = 5.0
_BACKLOG = 8
_ACCEPT_S = 0.5  # how soon a stop is noticed
_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid
Handler = Callable[[dict[str, Json]], Mapping[str, Json]]


class DaemonAway(NodeUnreachable):
    """Nobody answers at the control socket."""

    hint = "the process does not run: `cdcctl status` says more"


class ControlServer:
    """Serves commands until it is closed."""

    def __init__(self, path: Path, handlers: Mapping[str, Handler], file_mode: int = 0o600) -> None:
        self._path = path
        self._handlers = handlers
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._stopping = threading.Event()
        # The role's lock is held by now, so that a socket that is there is a dead process's.
        if path.exists() and not path.is_socket():
            raise ConfigError(f"{path} is there and is no socket", hint="is this a state folder?")
        path.unlink(missing_ok=True)
        before = os.umask(0o777 & ~file_mode)
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(before)
        self._socket.listen(_BACKLOG)
        self._socket.settimeout(_ACCEPT_S)
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._stopping.set()
        self._thread.join(DEADLINE_S + _ACCEPT_S)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            with connection, suppress(OSError):  # a client that went away is no business of ours
                connection.settimeout(DEADLINE_S)
                connection.sendall(encode_line(self._answer(connection)))

    def _answer(self, connection: socket.socket) -> Mapping[str, Json]:
        try:
            line = _receive_line(connection)  # first: who is refused while still sending would not hear why
            _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if uid not in (0, os.geteuid()):
                raise Fenced(f"user {uid} may not control this process", hint="be root, or the user that it runs as")
            request = decode_line(line)
            command = request.get("command")
            handler = self._handlers.get(command) if isinstance(command, str) else None
            if handler is None:
                raise BadRequest(f"unknown command: {command!r}")
            return {"ok": True, **handler(request)}
        except TidemarkError as error:
            return refusal(error)


def request(path: Path, content: Mapping[str, Json], deadline_s: float = DEADLINE_S) -> dict[str, Json]:
    """Send one command to the process that serves `path`; return its answer, `ok` or not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(deadline_s)
        try:
            connection.connect(str(path))
            connection.sendall(encode_line(content))
            return decode_line(_receive_line(connection))
        except OSError as error:
            raise DaemonAway(f"nobody answers at {path}: {error.strerror or error}") from error


def _receive_line(connection: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) <= LINE_BYTES_MAX:
        received = connection.recv(1 << 16)
        if not received:
            break
        line += received
    return bytes(line)
