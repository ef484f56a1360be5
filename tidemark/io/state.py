"""The state of a capture: what is durable, and the transactions that move it.

Everything that says who delivers and how far moves in one LMDB transaction, which checks the epoch first: the loser of
a switch fails in it, with nothing written. Positions never move back on a timeline. Damage is met by each key's policy
(`tidemark.wire.state`), never by a silent start from the oldest.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeVar

from tidemark.io.disk import StateFull
from tidemark.io.environment import Environment, StateMissing, Transaction, map_bytes_for
from tidemark.io.outbox import SCHEMA_FORMAT_VERSION, OutboxTable, UnknownReader, capture_scope, scope_of
from tidemark.io.state_folder import StateFolder
from tidemark.model.errors import Fenced, InternalError, StateError
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.mode import MODE_WHEN_MISSING, Mode
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer, Sequence
from tidemark.model.relation import Relation
from tidemark.wire.envelope import DamagedValue, seal, unseal
from tidemark.wire.items import SchemaVersion, decode_relation, encode_relation
from tidemark.wire.keys import Scope, named, numbered
from tidemark.wire.outbox import EncodedGroup
from tidemark.wire.state import (
    BEGINNING,
    CONFIRMED,
    COPY,
    DELIVERED,
    FINGERPRINT,
    HISTORY,
    IDENTITY,
    JOURNAL,
    LEDGER,
    MODE,
    READER,
    TERM,
    Beginning,
    CopyProgress,
    DamagePolicy,
    Fingerprint,
    HistoryIndex,
    Identity,
    JournalMark,
    Key,
    OutboxLedger,
    Owner,
    Reader,
    Term,
    Watermark,
)

FREE_BYTES_MIN = 64 << 20  # of the file system: kept back so that a full outbox never stops a confirmation
_OID_BYTES = 4
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class StateMarks:
    """How far everything is, read in one transaction: what is looked at all the time."""

    delivered: Watermark | None
    confirmed: Watermark | None
    ledger: OutboxLedger
    readers: dict[str, Reader]
    damaged_readers: frozenset[str]

    @property
    def start(self) -> Pointer | None:
        """Where a restart goes on: the delivered pointer."""
        return self.delivered.pointer if self.delivered else None

    @property
    def horizon(self) -> Watermark | None:
        """What is confirmed; nothing confirmed yet: confirmed follows delivered (DESIGN, section 8)."""
        return self.confirmed if self.readers else self.delivered


@dataclass(frozen=True, slots=True)
class StateView(StateMarks):
    """The whole of the small values, read in one transaction; they grow with the tables."""

    identity: Identity
    beginning: Beginning | None
    mode: Mode
    term: Term | None
    history: HistoryIndex
    journal: JournalMark
    copies: dict[tuple[Oid, Oid], CopyProgress]
    fingerprint: Fingerprint | None


class StateStore:
    """The open state of one capture."""

    def __init__(self, environment: Environment, scope: Scope, identity: Identity) -> None:
        self.environment = environment
        self.identity = identity
        self._scope = scope
        self._versions: dict[tuple[Oid, Relation], SchemaVersion] = {}

    @classmethod
    def create(cls, folder: StateFolder, identity: Identity, *, numbers_after: Sequence = NO_SEQUENCE) -> Self:
        """Make the state of a capture, or open the one that is there if it is the same capture of the same cluster.

        `numbers_after`: the greatest sequence that the target's tables know already, when an outbox was lost.
        """
        folder.make()
        environment = Environment.open(folder, map_bytes=map_bytes_for(identity.outbox_bytes_max), create=True)
        try:
            try:
                scope, found = capture_scope(environment)
            except StateMissing:
                scope, found = scope_of(identity), identity
                ledger = OutboxLedger(numbers_after, numbers_after)
                with environment.write() as transaction:
                    database = environment.database("state")
                    transaction.put(named(scope, IDENTITY.name), IDENTITY.encode(identity), db=database)
                    transaction.put(named(scope, LEDGER.name), LEDGER.encode(ledger), db=database)
            _check_same(folder, found, identity)
        except BaseException:
            environment.close()
            raise
        return cls(environment, scope, found)

    @classmethod
    def open(cls, folder: StateFolder) -> Self:
        """Open the state that is there."""
        environment = Environment.open(folder)
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
        """Give the environment back."""
        self.environment.close()

    @property
    def folder(self) -> StateFolder:
        """The state folder."""
        return self.environment.folder

    def view(self) -> StateView:
        """Read all the small values at once."""
        with self.environment.read() as transaction:
            return StateTransaction(self, transaction).view()

    def marks(self) -> StateMarks:
        """Read how far everything is."""
        with self.environment.read() as transaction:
            return StateTransaction(self, transaction).marks()

    def copy(self, database: Oid, relation: Oid) -> CopyProgress | None:
        """Read how far the first copy of one table is."""
        with self.environment.read() as transaction:
            return StateTransaction(self, transaction).copy(database, relation)

    def relations(self) -> dict[SchemaVersion, tuple[Oid, Relation]]:
        """Return every schema version with its database."""
        found: dict[SchemaVersion, tuple[Oid, Relation]] = {}
        prefix = self._scope.prefix()
        database = self.environment.database("schemas")
        with self.environment.read() as transaction, transaction.cursor(database) as cursor:
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                version = SchemaVersion(int.from_bytes(cursor.key()[len(prefix) :]))
                payload = unseal(f"schema version {version}", cursor.value(), SCHEMA_FORMAT_VERSION)
                oid = Oid(int.from_bytes(payload[:_OID_BYTES]))
                found[version] = (oid, decode_relation(payload[_OID_BYTES:]))
                more = cursor.next()
        return found

    @contextmanager
    def transaction(self, epoch: Epoch | None) -> Iterator["StateTransaction"]:
        """Run one durable transaction as the owner of `epoch`; None: for what every process may write."""
        with self.environment.write() as transaction:
            moving = StateTransaction(self, transaction)
            moving.check_epoch(epoch)
            yield moving
        self._versions.update(moving.new_versions)

    def take_epoch(self, timeline: TimelineId, owner: Owner) -> Epoch:
        """Begin a new epoch on `timeline`: whoever owned the last one fails in its next transaction."""
        with self.transaction(None) as moving:
            term = moving.get(TERM)
            epoch = term.epoch.successor(timeline) if term else Epoch(timeline, 1)
            moving.put(TERM, Term(epoch, owner))
        self._versions = {(oid, relation): version for version, (oid, relation) in self.relations().items()}
        return epoch

    def known_version(self, database: Oid, relation: Relation) -> SchemaVersion | None:
        """Return the number of a relation version, None where it has none yet."""
        return self._versions.get((database, relation))

    @property
    def scope(self) -> Scope:
        """The scope of what is the whole capture's."""
        return self._scope


def _check_same(folder: StateFolder, found: Identity, wanted: Identity) -> None:
    if (found.capture, found.system_identifier) != (wanted.capture, wanted.system_identifier):
        raise StateError(
            f"{folder.root} is the state of capture {found.capture!r} of system {found.system_identifier}, "
            f"not of {wanted.capture!r} of system {wanted.system_identifier}",
            hint="choose another state folder, or the DSN that this one was made for",
        )


class StateTransaction:
    """The state inside one LMDB transaction."""

    def __init__(self, store: StateStore, transaction: Transaction) -> None:
        self._store = store
        self._transaction = transaction
        self._environment = store.environment
        self._scope = store.scope
        self.new_versions: dict[tuple[Oid, Relation], SchemaVersion] = {}

    def check_epoch(self, epoch: Epoch | None) -> None:
        """Raise `Fenced` unless `epoch` is the current one."""
        term = self.get(TERM) if epoch is not None else None
        if epoch is not None and (term is None or term.epoch != epoch):
            now = f"{term.epoch} owned by {term.owner}" if term else "none"
            raise Fenced(f"epoch {epoch} is over, the current one is {now}", hint="another process delivers now")

    def get(self, key: Key[ValueT]) -> ValueT | None:
        """Return a named value, None where there is none."""
        stored = self._transaction.get(named(self._scope, key.name), db=self._environment.database("state"))
        return None if stored is None else key.decode(stored)

    def put(self, key: Key[ValueT], value: ValueT) -> None:
        """Store a named value."""
        self._transaction.put(named(self._scope, key.name), key.encode(value), db=self._environment.database("state"))

    @property
    def outbox(self) -> OutboxTable:
        """The outbox in this transaction."""
        return OutboxTable(self._transaction, self._environment, self._scope)

    def deliver(self, group: EncodedGroup) -> Watermark:
        """Store a group and move delivered to its end; raise `StateFull`, with nothing written, for want of room."""
        before, ledger = self.delivered(), self.ledger()
        if not group.moves_delivered:
            assert before is not None, "a first copy comes after the base"
            group = replace(group, last=before.pointer)
        if before is not None and group.last.position < before.pointer.position:
            raise InternalError(f"delivery would move back from {before.pointer.position} to {group.last.position}")
        if group.values:
            self._check_room(group, ledger)
            ledger = self.outbox.append(ledger, group, self._version_of)
            self.put(LEDGER, ledger)
        latest = max(group.commit_time_us, before.commit_time_us if before else 0)
        delivered = Watermark(group.last, ledger.head, latest)
        self.put(DELIVERED, delivered)
        return delivered

    def settle(self) -> OutboxLedger:
        """Take the readers' word: move confirmed, trim what no reader needs."""
        ledger, readers = self.ledger(), self.readers()[0]
        if not readers:
            return ledger
        held = min(reader.held for reader in readers.values())
        confirmed = self.confirmed()
        if held > (confirmed.sequence if confirmed else ledger.trimmed):
            header = self.outbox.header(held)
            if header is None or not header.ends_group:
                raise StateError(f"readers confirmed {held}, which is no end of a group in the outbox")
            self.put(CONFIRMED, Watermark(header.pointer, held, header.commit_time_us))
        trimmed = self.outbox.trim(ledger, min(reader.trimmable for reader in readers.values()))
        if trimmed != ledger:
            self.put(LEDGER, trimmed)
        return trimmed

    def delivered(self) -> Watermark | None:
        """Return how far delivery is; damaged: derived from the outbox's last value."""
        return self._derived(DELIVERED)

    def confirmed(self) -> Watermark | None:
        """Return what all readers confirmed; damaged: derived, as what they hold is confirmed anew."""
        try:
            return self.get(CONFIRMED)
        except DamagedValue:
            readers, damaged = self.readers()
            held = min((reader.held for reader in readers.values()), default=NO_SEQUENCE)
            header = self.outbox.header(held)
            if damaged or header is None:
                raise
            return Watermark(header.pointer, held, header.commit_time_us)

    def ledger(self) -> OutboxLedger:
        """Return what the outbox holds; damaged: counted anew."""
        try:
            return self.get(LEDGER) or OutboxLedger()
        except DamagedValue:
            measured = self.outbox.measured()
            if measured is None:
                raise
            return measured

    def readers(self) -> tuple[dict[str, Reader], frozenset[str]]:
        """Return the registered readers, and which of them are damaged: these hold everything."""
        found: dict[str, Reader] = {}
        damaged: set[str] = set()
        for name, stored in self._named("readers"):
            try:
                found[name] = READER.decode(stored)
            except DamagedValue:
                assert READER.policy is DamagePolicy.HOLD
                found[name] = Reader(NO_SEQUENCE, NO_SEQUENCE, 0)
                damaged.add(name)
        return found, frozenset(damaged)

    def drop_reader(self, name: str) -> None:
        """Forget a reader: it holds nothing any more."""
        if not self._transaction.delete(named(self._scope, name), db=self._environment.database("readers")):
            raise UnknownReader(f"reader {name!r} is not registered")

    def history(self) -> HistoryIndex:
        """Return the index of the catalog history."""
        return self.get(HISTORY) or HistoryIndex()

    def journal(self) -> JournalMark:
        """Return how far the journal of the catalog history is known to be durable."""
        return self.get(JOURNAL) or JournalMark()

    def rely_on_journal(self, end_lsn: Lsn) -> None:
        """Note that what this transaction delivers stands on the journal up to `end_lsn`, which is durable."""
        if end_lsn > self.journal().end_lsn:
            self.put(JOURNAL, JournalMark(end_lsn))

    def copies(self) -> dict[tuple[Oid, Oid], CopyProgress]:
        """Return the first copies by database and relation."""
        found: dict[tuple[Oid, Oid], CopyProgress] = {}
        for name, stored in self._named("copies"):
            database, relation = name.split("/")
            found[Oid(int(database)), Oid(int(relation))] = COPY.decode(stored)
        return found

    def copy(self, database: Oid, relation: Oid) -> CopyProgress | None:
        """Return the first copy of one table, None where there is none."""
        key = named(self._scope, f"{database}/{relation}")
        stored = self._transaction.get(key, db=self._environment.database("copies"))
        return None if stored is None else COPY.decode(stored)

    def put_copy(self, database: Oid, relation: Oid, progress: CopyProgress) -> None:
        """Store how far the first copy of a table is."""
        key = named(self._scope, f"{database}/{relation}")
        self._transaction.put(key, COPY.encode(progress), db=self._environment.database("copies"))

    def drop_copy(self, database: Oid, relation: Oid) -> None:
        """Forget the first copy of a table that is gone."""
        key = named(self._scope, f"{database}/{relation}")
        self._transaction.delete(key, db=self._environment.database("copies"))

    def marks(self) -> StateMarks:
        """Return how far everything is."""
        readers, damaged = self.readers()
        return StateMarks(self.delivered(), self.confirmed(), self.ledger(), readers, damaged)

    def view(self) -> StateView:
        """Return all the small values."""
        marks = self.marks()
        return StateView(
            delivered=marks.delivered,
            confirmed=marks.confirmed,
            ledger=marks.ledger,
            readers=marks.readers,
            damaged_readers=marks.damaged_readers,
            identity=self._store.identity,
            beginning=self.get(BEGINNING),
            mode=self.get(MODE) or MODE_WHEN_MISSING,
            term=self.get(TERM),
            history=self.history(),
            journal=self.journal(),
            copies=self.copies(),
            fingerprint=self.get(FINGERPRINT),
        )

    def _derived(self, key: Key[Watermark]) -> Watermark | None:
        try:
            return self.get(key)
        except DamagedValue:
            measured = self.outbox.measured()
            header = self.outbox.header(measured.head) if measured else None
            if header is None:
                raise
            return Watermark(header.pointer, header.sequence, header.commit_time_us)

    def _check_room(self, group: EncodedGroup, ledger: OutboxLedger) -> None:
        bound, wanted = self._store.identity.outbox_bytes_max, group.byte_count
        readers = self.readers()[0]
        held = min((reader.held for reader in readers.values()), default=ledger.trimmed)
        # NB: where the tables hold everything, waiting frees nothing: Spark lets a range go only when it plans the
        # next one. Then a group of any size goes in.
        if ledger.byte_count + wanted > bound and held < ledger.head:
            raise StateFull(
                f"the outbox is full: {ledger.byte_count} of {bound} bytes, {wanted} more wanted, "
                f"readers hold {held} of {ledger.trimmed + 1} to {ledger.head}"
            )
        free = self._environment.free_bytes()
        if free < wanted + FREE_BYTES_MIN:
            raise StateFull(
                f"{free} bytes are free under {self._environment.folder.root}, {wanted} are wanted "
                f"and {FREE_BYTES_MIN} kept back"
            )

    def _version_of(self, database: Oid, relation: Relation) -> SchemaVersion:
        known = self._store.known_version(database, relation) or self.new_versions.get((database, relation))
        if known is not None:
            return known
        handle = self._environment.database("schemas")
        version = SchemaVersion(self._transaction.stat(handle)["entries"] + 1)
        payload = database.to_bytes(_OID_BYTES) + encode_relation(relation)
        self._transaction.put(numbered(self._scope, version), seal(payload, SCHEMA_FORMAT_VERSION), db=handle)
        self.new_versions[database, relation] = version
        return version

    def _named(self, database: str) -> Iterator[tuple[str, bytes]]:
        prefix = self._scope.prefix()
        with self._transaction.cursor(self._environment.database(database)) as cursor:
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                yield cursor.key()[len(prefix) :].decode(), cursor.value()
                more = cursor.next()
