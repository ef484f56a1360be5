"""Where `cdcctl reader` finds the readers of an outbox: in a state folder, or at the outbox server of another host."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from tidemark.io.host.clock import SystemClock
from tidemark.io.readers.reader_register import StateReaders
from tidemark.io.state.locking.write_guard import reporting_stuck_writers
from tidemark.io.state.opened_state import OpenedState
from tidemark.io.state.outbox_table import UnknownReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError
from tidemark.wire.state.known_readers import KnownReaders
from tidemark.wire.state.readers import Reader
from tidemark_ctl.loading import loading
from tidemark_ctl.options import state_or_server
from tidemark_ctl.terminal_log import TerminalLog


class NoSuchReader(ConfigError):
    """No reader is registered by a name."""

    hint = "`cdcctl reader list` shows the readers"


class ReaderRegister(Protocol):
    """The readers of one outbox."""

    def known(self, now_us: int) -> KnownReaders:
        """Return all readers with their lag; a server uses its own clock."""

    def drop(self, name: str) -> None:
        """Remove a reader."""

    def resume(self, name: str) -> Reader:
        """Make a lapsed reader continue with the oldest value of the outbox."""


@dataclass(frozen=True, slots=True)
class ReaderPlace:
    """A state folder, or the address of a server with the files that its client needs."""

    state: Path | None
    server: str | None
    token_file: Path | None
    tls_roots: Path | None

    @contextmanager
    def opened(self, *, read_only: bool = False) -> Iterator[ReaderRegister]:
        """Open it; raise `ConfigError` unless there is either a folder or a server."""
        state = state_or_server(self.state, self.server)
        if state is None:
            with self._served() as served:
                yield served
            return
        guarded = nullcontext if read_only else reporting_stuck_writers(TerminalLog())
        with OpenedState.open(StateFolder(state), read_only=read_only, guarded=guarded) as opened:
            yield StateReaders(opened)

    @contextmanager
    def _served(self) -> Iterator[ReaderRegister]:
        with loading():  # of Arrow, which a state folder does not need
            connect = import_module("tidemark.io.flight.server_readers").connected_readers
        with connect(self.server, self.token_file, self.tls_roots) as served:
            yield served


@contextmanager
def naming_readers() -> Iterator[None]:
    """Raise `NoSuchReader` if the operator has named a reader that is not registered."""
    try:
        yield
    except UnknownReader as error:
        raise NoSuchReader(str(error)) from error


def now_us() -> int:
    """Return the wall clock of this host."""
    return SystemClock().wall_us()
