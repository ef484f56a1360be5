"""Names and dialects of the captured databases, read from the state; for a new database the state is read again."""

from collections.abc import Iterator, Mapping

from tidemark.decode.types.codec import Dialect
from tidemark.model.lsn import Oid
from tidemark.model.mapping import DEFAULT_MAPPING, TypeMapping
from tidemark.pipeline.source.outbox_port import OutboxPort


class CapturedDatabases(Mapping[Oid, str]):
    """The names by OID. A database is recorded in the state before any of its changes is in the outbox."""

    def __init__(self, outbox: OutboxPort) -> None:
        self._outbox = outbox
        self._names: Mapping[Oid, str] = {}
        self.dialects: dict[Oid, Dialect] = {}
        self.types: TypeMapping = DEFAULT_MAPPING
        self._read()

    def __getitem__(self, database: Oid) -> str:
        if database not in self._names:
            self._read()
        return self._names[database]

    def __iter__(self) -> Iterator[Oid]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _read(self) -> None:
        identity, beginning = self._outbox.identity, self._outbox.beginning()
        if beginning is not None:
            self._names, self.types = beginning.databases, beginning.types
            for database, encoding in beginning.encodings.items():
                self.dialects.setdefault(database, Dialect.of(encoding, identity.server_major, self.types))
