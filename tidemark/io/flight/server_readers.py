"""The register of readers at an outbox server, with the methods of `StateReaders`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.io.flight.flight_outbox import FlightOutbox
from tidemark.io.flight.server_address import ServerAddress
from tidemark.wire.state.known_readers import KnownReaders
from tidemark.wire.state.readers import Reader


class ServerReaders:
    """The register of readers of the outbox at one server."""

    def __init__(self, outbox: FlightOutbox) -> None:
        self._outbox = outbox

    def known(self, now_us: int) -> KnownReaders:
        """Return all readers with their lag by the server's clock."""
        del now_us
        return self._outbox.known_readers()

    def drop(self, name: str) -> None:
        """Remove a reader; raise `UnknownReader`."""
        self._outbox.drop_reader(name)

    def resume(self, name: str) -> Reader:
        """Let a lapsed reader continue with the oldest value; raise `UnknownReader`, or `StateError` if it has not."""
        return self._outbox.resume_reader(name)


@contextmanager
def connected_readers(url: str, token_file: Path | None, tls_roots: Path | None) -> Iterator[ServerReaders]:
    """Connect to a server."""
    outbox = FlightOutbox(ServerAddress.parse(url, token_file, tls_roots))
    try:
        yield ServerReaders(outbox)
    finally:
        outbox.close()
