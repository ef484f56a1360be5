"""The register of readers in an opened state: list, drop and resume. `OutboxReader` is a reader's own access."""

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.io.state.environment import LmdbTransaction
from tidemark.io.state.opened_state import OpenedState
from tidemark.io.state.outbox_table import OutboxTable
from tidemark.io.state.reader_holds import held_bytes
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.wire.state.known_readers import KnownReader, KnownReaders
from tidemark.wire.state.readers import Reader


class StateReaders:
    """The register of readers of one state."""

    def __init__(self, opened: OpenedState) -> None:
        self._opened = opened

    def known(self, now_us: int) -> KnownReaders:
        """Return all readers, of one transaction; `now_us`: wall clock of the state's host."""
        with self._opened.environment.read() as transaction:
            inside = self._inside(transaction)
            (readers, damaged), ledger = inside.readers(), inside.ledger()
            table = OutboxTable(transaction, self._opened.environment, self._opened.scope)
            held = held_bytes(readers, ledger)
            found = {
                name: KnownReader(
                    reader, _lag_us(now_us, table.waiting_since_us(ledger, reader.applied)), held.get(name)
                )
                for name, reader in readers.items()
            }
        return KnownReaders(ledger.head, found, tuple(sorted(damaged)))

    def drop(self, name: str) -> None:
        """Remove a reader; raise `UnknownReader`."""
        with self._changing() as transaction:
            transaction.drop_reader(name)

    def resume(self, name: str) -> Reader:
        """Let a lapsed reader continue with the oldest value; raise `UnknownReader`, or `StateError` if it has not."""
        with self._changing() as transaction:
            return transaction.resume_reader(name)

    @contextmanager
    def _changing(self) -> Iterator[StateTransaction]:
        with self._opened.environment.write() as transaction:
            yield self._inside(transaction)

    def _inside(self, transaction: LmdbTransaction) -> StateTransaction:
        return StateTransaction(self._opened.environment, transaction, self._opened.scope, self._opened.identity)


def _lag_us(now_us: int, since_us: int | None) -> int:
    return 0 if since_us is None else max(now_us - since_us, 0)
