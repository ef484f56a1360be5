"""The outbox and its readers inside one LMDB transaction, with the positions that depend on them."""

from collections.abc import Mapping
from dataclasses import replace

from tidemark.io.host.clock import SystemClock
from tidemark.io.host.disk import StateFull
from tidemark.io.state.environment import Environment, LmdbTransaction
from tidemark.io.state.outbox_table import OutboxTable, UnknownReader
from tidemark.io.state.reader_holds import (
    active_readers,
    applied_by_awaited,
    confirmable,
    hold_bytes_max,
    lapsing,
    mark_bytes,
    required_readers,
)
from tidemark.io.state.schema_numbers import PresentVersions, SchemaNumbers
from tidemark.io.state.schema_values import encode_schema
from tidemark.io.state.stored_values import StoredValues
from tidemark.model.errors import StateError
from tidemark.model.lsn import INVALID_LSN, Oid
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.model.relation import Relation
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import LAST_NUMBER, Scope, named, numbered, parse_number
from tidemark.wire.recopies import TableKey
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.key import DamagePolicy, Key
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.readers import Reader
from tidemark.wire.state.state_keys import (
    CONFIRMED,
    DELIVERED,
    LEDGER,
    READER,
)
from tidemark.wire.state.values import Identity, Watermark
from tidemark.wire.values import NO_SCHEMA_VERSION, EncodedGroup

FREE_BYTES_MIN = 64 << 20  # of the file system: reserved so that a full outbox never prevents a confirmation


class OutboxTransaction(StoredValues):
    """Groups are appended, confirmations applied, values trimmed; delivered and confirmed move with them."""

    def __init__(
        self,
        environment: Environment,
        transaction: LmdbTransaction,
        scope: Scope,
        identity: Identity,
        numbers: SchemaNumbers | None = None,
    ) -> None:
        """`numbers`: of the schema versions; None: the transaction delivers nothing."""
        super().__init__(environment, transaction, scope, identity)
        self._numbers = SchemaNumbers() if numbers is None else numbers
        self._readers: tuple[Mapping[str, Reader], frozenset[str]] | None = None  # once read, until one changes
        self._head: int = NO_SEQUENCE  # after what this transaction delivers
        self._new_versions: dict[SchemaVersion, tuple[Oid, Relation]] = {}
        self._new_present = PresentVersions()  # of them
        self._deleted_versions: set[SchemaVersion] = set()
        self._has_searched = False
        self._dropped_tables = list[TableKey]()
        self.lapsed: dict[str, Reader] = {}  # by this transaction

    @property
    def outbox(self) -> OutboxTable:
        """The outbox in this transaction."""
        return OutboxTable(self._transaction, self._environment, self._scope)

    def deliver(self, group: EncodedGroup) -> Watermark:
        """Store a group and move delivered to its end; without space, raise `StateFull` and write nothing."""
        before, ledger = self.delivered(), self.ledger()
        if not group.moves_delivered:
            assert before is not None, "a first copy comes after the base"
            group = replace(group, last=before.pointer)
        self._head = ledger.head + len(group.values)
        if group.values:
            self._check_space(group, ledger)
            ledger = self.outbox.append(ledger, group, self._version_of, mark_bytes=mark_bytes(self.identity))
            self.put(LEDGER, ledger)
        latest = group.commit_time_us or (before.commit_time_us if before else 0)
        delivered = Watermark(group.last, ledger.head, latest)
        self.put(DELIVERED, delivered)
        if not group.values and self._is_read_to(ledger.head):
            self.put(CONFIRMED, delivered)  # a group without values is confirmed with the preceding ones
        return delivered

    def apply_confirmations(self, hold_bytes: int = 0, wanted_bytes: int = 0) -> OutboxLedger:
        """Apply the readers' confirmations: move confirmed, trim values that no reader needs.

        Readers that hold more than `hold_bytes` (0: the default share of the outbox) lapse first; if no reader is
        required, only if the outbox has no space for `wanted_bytes`.
        """
        ledger, readers = self.ledger(), dict(self.readers()[0])
        is_full = ledger.byte_count + wanted_bytes > self.identity.outbox_bytes_max
        for name in lapsing(readers, ledger, hold_bytes_max(self.identity, hold_bytes), is_full=is_full):
            readers[name] = self._lapse(name, readers[name])
        active = active_readers(readers)
        if not active:
            return ledger
        self._move_confirmed(confirmable(readers, ledger, self.confirmed()))
        trimmed = self.outbox.trim(ledger, min(reader.trimmable for reader in active.values()))
        if trimmed != ledger:
            self.put(LEDGER, trimmed)
        if self._numbers.needs_search:
            self._delete_versions(trimmed)
        return trimmed

    def keep_confirmed(self) -> None:
        """Before a required reader is added: if none is there, store what counts as confirmed until then.

        Other hosts may know it, and the WAL before it may be gone: the horizon does not move back to the new reader.
        """
        delivered, confirmed = self.delivered(), self.confirmed()
        if delivered is None or required_readers(self.readers()[0]):
            return
        if confirmed is None or confirmed.pointer.position <= delivered.pointer.position:
            self.put(CONFIRMED, delivered)

    def delivered(self) -> Watermark | None:
        """Return the delivered watermark; damaged: derived from the outbox's last value."""
        return self._derived(DELIVERED)

    def confirmed(self) -> Watermark | None:
        """Return what all required readers have confirmed; damaged: derived from them, or delivered without any."""
        try:
            return self.get(CONFIRMED)
        except DamagedValue:
            readers, damaged = self.readers()
            required = required_readers(readers).values()
            if not required:
                return self.delivered()
            applied = min(reader.applied for reader in required)
            header = self.outbox.header(applied)
            if damaged or header is None:
                raise
            return Watermark(header.pointer, applied, header.commit_time_us)

    def counted(self) -> Watermark | None:
        """Return the confirmed watermark; without required readers, the delivered one."""
        return self.confirmed() if required_readers(self.readers()[0]) else self.delivered()

    def kept_version(self, database: Oid, relation: Relation) -> SchemaVersion:
        """Return the number of a schema version that a copy names; store a new one, also in a state without an outbox.

        The newest version of a table stays, except for those of dropped tables (`SchemaNumbers`).
        """
        if self._numbers.needs_search:
            self._delete_versions(self.ledger())
        return self._number(database, relation) or self._store_version(database, relation)

    def drop_versions(self, database: Oid, relation: Oid) -> None:
        """Record that a table is dropped: its schema versions are not needed for long."""
        self._dropped_tables.append((database, relation))

    def record_versions(self) -> None:
        """Let the numbers of the schema versions follow what this transaction changed of them, after its commit."""
        if self._has_searched:
            self._numbers.searched(self._deleted_versions)
        if self._new_versions:
            self._numbers.add(self._new_versions, self._head)
        if self._dropped_tables:
            self._numbers.drop(self._dropped_tables, self._head)

    def ledger(self) -> OutboxLedger:
        """Return the ledger of the outbox; damaged: counted again."""
        try:
            return self.get(LEDGER) or OutboxLedger()
        except DamagedValue:
            measured = self.outbox.measured()
            if measured is None:
                raise
            return measured

    def readers(self) -> tuple[Mapping[str, Reader], frozenset[str]]:
        """Return the registered readers, and which of them are damaged: for these nothing is trimmed."""
        if self._readers is None:
            self._readers = self._stored_readers()
        return self._readers

    def put_reader(self, name: str, reader: Reader) -> None:
        """Store a reader's position on behalf of that reader."""
        self.replace_value(self._environment.database("readers"), name, READER, reader)
        self._readers = None

    def resume_reader(self, name: str) -> Reader:
        """Let a lapsed reader continue with the oldest value of the outbox, without the values that are gone."""
        readers, _ = self.readers()
        if name not in readers:
            raise UnknownReader(f"reader {name!r} is not registered")
        reader, trimmed = readers[name], self.ledger().trimmed
        if not reader.is_lapsed:
            raise StateError(f"reader {name!r} has not lapsed", hint="see `cdcctl reader list`")
        has_moved = reader.trimmable > reader.skipped_to  # since it was resumed before
        gone_from = reader.trimmable if has_moved else reader.skipped_from
        resumed = replace(
            reader,
            applied=max(reader.applied, trimmed),
            replayable=max(reader.replayable, trimmed),
            lapsed_at_us=0,
            lapsed_lsn=INVALID_LSN,
            skipped_from=gone_from,
            skipped_to=trimmed,
        )
        self.put_reader(name, resumed)
        return resumed

    def drop_reader(self, name: str) -> None:
        """Remove a reader: no values are kept for it any more."""
        if not self._transaction.delete(named(self._scope, name), db=self._environment.database("readers")):
            raise UnknownReader(f"reader {name!r} is not registered")
        self._readers = None

    def _move_confirmed(self, applied: Sequence | None) -> None:
        if applied is not None:
            header = self.outbox.header(applied)
            if header is None or not header.ends_group:
                raise StateError(f"readers confirmed {applied}, which is not the end of a group in the outbox")
            self.put(CONFIRMED, Watermark(header.pointer, applied, header.commit_time_us))

    def _stored_readers(self) -> tuple[Mapping[str, Reader], frozenset[str]]:
        found: dict[str, Reader] = {}
        damaged: set[str] = set()
        for name, stored in self.named_values("readers"):
            try:
                found[name] = READER.decode(stored)
            except DamagedValue:
                assert READER.policy is DamagePolicy.HOLD
                found[name] = Reader(NO_SEQUENCE, NO_SEQUENCE, 0)
                damaged.add(name)
        return found, frozenset(damaged)

    def _is_read_to(self, head: Sequence) -> bool:
        readers, damaged = self.readers()
        counted = required_readers(readers).values()
        return bool(counted) and not damaged and min(reader.applied for reader in counted) >= head

    def _lapse(self, name: str, reader: Reader) -> Reader:
        """Store that the outbox keeps no more values for a reader."""
        header = self.outbox.header(Sequence(max(reader.applied, self.ledger().trimmed) + 1))
        lsn = header.first.commit_lsn if header is not None else INVALID_LSN
        lapsed = replace(reader, lapsed_at_us=SystemClock().wall_us(), lapsed_lsn=lsn)
        self.put_reader(name, lapsed)
        self.lapsed[name] = lapsed
        return lapsed

    def _derived(self, key: Key[Watermark]) -> Watermark | None:
        try:
            return self.get(key)
        except DamagedValue:
            measured = self.outbox.measured()
            header = self.outbox.header(measured.head) if measured else None
            if header is None:
                raise
            return Watermark(header.pointer, header.sequence, header.commit_time_us)

    def _check_space(self, group: EncodedGroup, ledger: OutboxLedger) -> None:
        bound, wanted = self.identity.outbox_bytes_max, group.byte_count
        applied = applied_by_awaited(self.readers()[0], ledger)
        # NB: if readers have stored everything (up to the head), a wait would never end: Spark confirms a range
        # only when it plans the next one. Then a group of any size is accepted. A reader that may lapse does not
        # prevent this: with the group it holds more than half of the outbox, and lapses.
        if ledger.byte_count + wanted > bound and applied < ledger.head:
            raise StateFull(
                f"the outbox is full: {ledger.byte_count} of {bound} bytes, {wanted} more are needed, readers "
                f"have applied {applied} of {ledger.trimmed + 1} to {ledger.head}"
            )
        free = self._environment.free_bytes()
        if free < wanted + FREE_BYTES_MIN:
            raise StateFull(
                f"{free} bytes are free under {self._environment.folder.root}, {wanted} are needed and "
                f"{FREE_BYTES_MIN} are reserved"
            )

    def _version_of(self, database: Oid, relation: Relation) -> SchemaVersion:
        known = self._numbers.present.by_table.get((database, relation.oid))
        if known is not None and not self._new_versions and not self._deleted_versions:  # mostly, and without calls
            number = known.get(relation)
        else:
            number = self._number(database, relation)
        if number is None:
            return self._store_version(database, relation)
        if number not in self._new_versions:
            self._numbers.named[number] = self._head  # also if this transaction fails: the version then stays longer
        return number

    def _number(self, database: Oid, relation: Relation) -> SchemaVersion | None:
        """Return the number of a version that is stored under the latest name, columns and keys of its table."""
        if self._new_versions:
            if (number := self._new_present.number(database, relation)) is not None:
                return number
            if self._new_present.looks_different(database, relation):
                return None
        number = self._numbers.present.number(database, relation)
        return None if number in self._deleted_versions else number

    def _store_version(self, database: Oid, relation: Relation) -> SchemaVersion:
        """Store a version under the number after the greatest."""
        handle = self._environment.database("schemas")
        number = SchemaVersion(self._last_version() + 1)
        self._transaction.put(numbered(self._scope, number), encode_schema(database, relation), db=handle)
        self._new_versions[number] = database, relation
        self._new_present.add(database, relation, number)
        return number

    def _last_version(self) -> SchemaVersion:
        with self._transaction.cursor(self._environment.database("schemas")) as cursor:
            has_later = cursor.set_range(numbered(self._scope, LAST_NUMBER))
            found = cursor.prev() if has_later else cursor.last()
            number = parse_number(self._scope, cursor.key()) if found else None
        return NO_SCHEMA_VERSION if number is None else SchemaVersion(number)

    def _delete_versions(self, ledger: OutboxLedger) -> None:
        """Delete the schema versions that no value of the outbox names, if it is time to search for them."""
        unneeded = self._numbers.unneeded(ledger.trimmed)
        if unneeded is None:
            return
        handle = self._environment.database("schemas")
        for number in unneeded:
            self._transaction.delete(numbered(self._scope, number), db=handle)
        self._deleted_versions.update(unneeded)
        self._has_searched = True
