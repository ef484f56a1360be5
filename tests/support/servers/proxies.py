"""Proxies between us and a node that imitate the effects of networks, proxies and other majors on a connection."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.servers.postgres import free_port

Change = Callable[[bytes], bytes]
CHUNK_BYTES = 1 << 16


@contextmanager
def proxy(port: int, change: Change) -> Iterator[int]:
    """Yield a port that leads to `port`; `change` edits what the server sends."""
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        threading.Thread(target=_accept, args=(listener, port, change), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def cable(port: int) -> Iterator["Cable"]:
    """Yield a proxy of `port` that can be disconnected."""
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        made = Cable(listener, port)
        yield made
        made.unplug()
        listener.shutdown(socket.SHUT_RDWR)


class Cable:
    """A proxy of a port: its connections can be cut, or refused for a while."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self.port: int = listener.getsockname()[1]
        self._target = port
        self._is_plugged = True
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> int:
        """Break all connections, as a reset does; return their number."""
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        return len(ends) // 2

    def unplug(self) -> None:
        """Break all connections, and refuse new ones."""
        self._is_plugged = False
        self.cut()

    def plug(self) -> None:
        """Accept connections again."""
        self._is_plugged = True

    def lead_to(self, port: int) -> None:
        """Lead later connections to another server, as a name does that moves to a new primary."""
        self._target = port

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    if not self._is_plugged:
                        raise ConnectionRefusedError
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # the server is down
                    client.close()
                    continue
                with self._lock:
                    self._ends = [end for end in self._ends if end.fileno() >= 0] + [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=(source, target, bytes), daemon=True).start()


@contextmanager
def silence() -> Iterator[int]:
    """Yield a port that accepts connections and never sends a byte."""
    with socket.create_server(("127.0.0.1", free_port()), backlog=16) as listener:
        yield listener.getsockname()[1]


def as_major(shown: int, real: int) -> Change:
    """Let a server of major `real` report that it is of major `shown`; both have two digits."""
    reported = b"server_version\0"
    return lambda said: said.replace(reported + str(real).encode(), reported + str(shown).encode())


def _accept(listener: socket.socket, port: int, change: Change) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=_pump, args=(client, server, bytes), daemon=True).start()
            threading.Thread(target=_pump, args=(server, client, change), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, change: Change) -> None:
    with suppress(OSError), source:
        while said := source.recv(CHUNK_BYTES):
            target.sendall(change(said))
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
