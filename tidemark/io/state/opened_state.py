"""The opened state of one capture: the environment, and its partition."""

from contextlib import nullcontext
from types import TracebackType
from typing import Self

from tidemark.io.state.environment import Environment, Guarded, StateMissing
from tidemark.io.state.outbox_table import OutboxTable
from tidemark.io.state.schema_values import decode_schema
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Oid
from tidemark.model.position import Partition, Sequence
from tidemark.model.relation import Relation
from tidemark.wire.keys import Scope, named, parse_number
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.state_keys import BEGINNING, IDENTITY, LEDGER
from tidemark.wire.state.values import Beginning, Identity


class OpenedState:
    """The common part of the state's writers and readers."""

    def __init__(self, environment: Environment, scope: Scope, identity: Identity) -> None:
        self.environment = environment
        self.scope = scope  # of the keys of the whole capture
        self.identity = identity

    @classmethod
    def open(cls, folder: StateFolder, *, read_only: bool = False, guarded: Guarded = nullcontext) -> Self:
        """Open an existing state; see `Environment.open` for `read_only` and `guarded`."""
        environment = Environment.open(folder, read_only=read_only, guarded=guarded)
        try:
            scope, identity = capture_scope(environment)
        except BaseException:
            environment.close()
            raise
        return cls(environment, scope, identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the environment."""
        self.environment.close()

    @property
    def folder(self) -> StateFolder:
        """The state folder."""
        return self.environment.folder

    def beginning(self) -> Beginning | None:
        """Return where the capture begins, with its databases and types."""
        with self.environment.read() as transaction:
            stored = transaction.get(named(self.scope, BEGINNING.name), db=self.environment.database("state"))
        return None if stored is None else BEGINNING.decode(stored)

    def waiting_since_us(self, after: Sequence) -> int | None:
        """Return the commit time of the first transaction in the outbox after a group end; None if there is none."""
        with self.environment.read() as transaction:
            stored = transaction.get(named(self.scope, LEDGER.name), db=self.environment.database("state"))
            ledger = OutboxLedger() if stored is None else LEDGER.decode(stored)
            return OutboxTable(transaction, self.environment, self.scope).waiting_since_us(ledger, after)

    def relations(self) -> dict[SchemaVersion, tuple[Oid, Relation]]:
        """Return every schema version with its database."""
        return {version: decode_schema(version, stored) for version, stored in self.stored_schemas()}

    def latest_versions(self) -> dict[tuple[Oid, Oid], Relation]:
        """Return the tables of which something was delivered, by database and OID, as they were delivered last."""
        return {(database, relation.oid): relation for database, relation in self.relations().values()}

    def stored_schemas(self) -> list[tuple[SchemaVersion, bytes]]:
        """Return every schema version as it is stored."""
        found: list[tuple[SchemaVersion, bytes]] = []
        database = self.environment.database("schemas")
        with self.environment.read() as transaction, transaction.cursor(database) as cursor:
            more = cursor.set_range(self.scope.prefix)
            while more and (number := parse_number(self.scope, cursor.key())) is not None:
                found.append((SchemaVersion(number), cursor.value()))
                more = cursor.next()
        return found


def capture_scope(environment: Environment) -> tuple[Scope, Identity]:
    """Return the scope and the identity of the state's capture."""
    with environment.read() as transaction, transaction.cursor(environment.database("state")) as cursor:
        found = cursor.first()
        while found:
            scope, name = Scope.parse(cursor.key())
            if name == IDENTITY.name.encode():
                return scope, IDENTITY.decode(cursor.value())
            found = cursor.next()
    raise StateMissing(f"the state contains no capture: {environment.folder.root}")


def scope_of(identity: Identity) -> Scope:
    """Return the scope of the keys of the whole capture."""
    return Scope(identity.capture, Partition(identity.system_identifier))
