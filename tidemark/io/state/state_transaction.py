"""The state inside one LMDB transaction: stage, epoch and positions, read and changed together.

Positions never move back on a timeline: `Key.encode_over` checks each value that replaces another. Each key has a
policy for damage (`tidemark.wire.state.state_keys`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from tidemark.io.host.clock import SystemClock
from tidemark.io.host.disk import StateFull
from tidemark.io.state.environment import Environment, LmdbDatabase, LmdbTransaction
from tidemark.io.state.outbox_table import OutboxTable, UnknownReader
from tidemark.io.state.overtaken import check_not_overtaken
from tidemark.io.state.reader_holds import (
    active_readers,
    applied_by_awaited,
    confirmable,
    hold_bytes_max,
    lapsing,
    mark_bytes,
    required_readers,
)
from tidemark.io.state.schema_values import encode_schema
from tidemark.io.state.state_views import StateMarks, StateView
from tidemark.model.errors import Fenced, StateError
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, TimelineId
from tidemark.model.mode import STAGE_WHEN_MISSING, Stage
from tidemark.model.position import NO_SEQUENCE, Epoch, Sequence
from tidemark.model.relation import KnownDatabase, Relation
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import Scope, named, numbered, parse_table, table_text
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Recopies
from tidemark.wire.state.event_logs import Loss, LossLog, Rewind, RewindLog, Switch, SwitchLog
from tidemark.wire.state.history_index import HistoryIndex, JournalMark
from tidemark.wire.state.key import DamagePolicy, Key
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.process_log import Owner, ProcessLog
from tidemark.wire.state.readers import Reader
from tidemark.wire.state.state_keys import (
    BEGINNING,
    CONFIRMED,
    COPY,
    DELIVERED,
    FINGERPRINT,
    FOLLOWED,
    HAND_OVER,
    HISTORY,
    JOURNAL,
    LEDGER,
    LOSSES,
    MARKER_KEYS,
    OVERTAKEN,
    PROCESSES,
    READER,
    RECOPIES,
    REWINDS,
    STAGE,
    SWITCHES,
    TERM,
)
from tidemark.wire.state.values import Followed, HandOver, Identity, MarkerKeys, Term, Watermark
from tidemark.wire.values import EncodedGroup

FREE_BYTES_MIN = 64 << 20  # of the file system: reserved so that a full outbox never prevents a confirmation
_REFUSED = f'"{CopyPhase.REFUSED.value}"'.encode()  # in the stored form of a refused copy, and of few others
ExtraWrites = Callable[["StateTransaction"], None]  # more writes of one transaction
ValueT = TypeVar("ValueT")
Versions = dict[tuple[Oid, Relation], SchemaVersion]


class StateTransaction:
    """The state inside one LMDB transaction."""

    def __init__(
        self, environment: Environment, transaction: LmdbTransaction, scope: Scope, identity: Identity, known: Versions
    ) -> None:
        """`known`: the schema versions that already have a number."""
        self._environment = environment
        self._transaction = transaction
        self._scope = scope
        self.identity = identity
        self._known = known
        self._values = environment.database("state")
        self._readers: tuple[Mapping[str, Reader], frozenset[str]] | None = None  # once read, until one changes
        self.new_versions: dict[tuple[Oid, Relation], SchemaVersion] = {}
        self.lapsed: dict[str, Reader] = {}  # by this transaction

    def check_epoch(self, epoch: Epoch | None) -> None:
        """Raise `Fenced` unless `epoch` is the current one."""
        term = self.get(TERM) if epoch is not None else None
        if epoch is not None and (term is None or term.epoch != epoch):
            now = f"{term.epoch} owned by {term.owner}" if term else "none"
            raise Fenced(f"epoch {epoch} has ended, the current one is {now}", hint="another process delivers now")

    def begin_epoch(self, owner: Owner) -> Epoch:
        """Begin the next epoch, on the latest timeline that was delivered, followed, or delivered by a leader.

        Raises `OvertakenState` if another copy of this state delivers.
        """
        check_not_overtaken(self.get(OVERTAKEN))
        delivered, term, followed = self.delivered(), self.term(), self.followed()
        known = [Epoch(TimelineId(1), 0)] if delivered is None else [Epoch(delivered.pointer.position.timeline, 0)]
        if term is not None:
            known.append(term.epoch)
        if followed is not None:
            known.append(Epoch(followed.pointer.position.timeline, 0))
            known += [followed.leader.epoch] if followed.leader is not None else []
        epoch = Epoch(max(known).timeline, max(epoch.number for epoch in known) + 1)
        self.put(TERM, Term(epoch, owner))
        return epoch

    def term(self) -> Term | None:
        """Return the current epoch and its owner."""
        return self.get(TERM)

    def switches(self) -> SwitchLog:
        """Return the latest switches; damaged: none."""
        try:
            return self.get(SWITCHES) or SwitchLog()
        except DamagedValue:
            assert SWITCHES.policy is DamagePolicy.FORGET
            return SwitchLog()

    def record_switch(self, switch: Switch) -> None:
        """Record a switch, for people."""
        self.put(SWITCHES, self.switches().with_one_more(switch))

    def losses(self) -> LossLog:
        """Return the latest losses; damaged: none, as they were delivered through the outbox, too."""
        try:
            return self.get(LOSSES) or LossLog()
        except DamagedValue:
            assert LOSSES.policy is DamagePolicy.FORGET
            return LossLog()

    def record_loss(self, loss: Loss) -> None:
        """Record the WAL that was given up."""
        self.put(LOSSES, self.losses().with_one_more(loss))

    def rewinds(self) -> RewindLog:
        """Return the latest rewinds; damaged: none, as they were delivered through the outbox, too."""
        try:
            return self.get(REWINDS) or RewindLog()
        except DamagedValue:
            assert REWINDS.policy is DamagePolicy.FORGET
            return RewindLog()

    def record_rewind(self, rewind: Rewind) -> None:
        """Record a dead branch."""
        self.put(REWINDS, self.rewinds().with_one_more(rewind))

    def stage(self) -> Stage:
        """Return the stage of the capture."""
        return self.get(STAGE) or STAGE_WHEN_MISSING

    def followed(self) -> Followed | None:
        """Return the position of this follower, also if its start is not found yet."""
        return self.get(FOLLOWED)

    def get(self, key: Key[ValueT]) -> ValueT | None:
        """Return a named value, None if there is none."""
        stored = self._transaction.get(named(self._scope, key.name), db=self._values)
        return None if stored is None else key.decode(stored)

    def put(self, key: Key[ValueT], value: ValueT) -> None:
        """Store a named value; raise `InternalError` if it is a position, an epoch or a count that would move back.

        A rewind and a promotion continue on a later timeline, whose positions are greater; `init` finds no value.
        """
        self._replace(self._values, key.name, key, value)

    def drop(self, key: Key[ValueT]) -> None:
        """Delete a named value."""
        self._transaction.delete(named(self._scope, key.name), db=self._values)

    def stored(self, name: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys without their scope, and values, of one of LMDB's databases, in order; `start`: of the keys."""
        if not self._environment.has_database(name):
            return
        scope, prefix = len(self._scope.prefix), self._scope.prefix + start
        with self._transaction.cursor(self._environment.database(name)) as cursor:
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                yield cursor.key()[scope:], cursor.value()
                more = cursor.next()

    def store(self, name: str, key: bytes, value: bytes | None) -> None:
        """Store a value in one of LMDB's databases, or delete it: for modules with their own form of values."""
        database = self._environment.database(name)
        if value is None:
            self._transaction.delete(self._scope.prefix + key, db=database)
        else:
            self._transaction.put(self._scope.prefix + key, value, db=database)

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
        return trimmed

    def _move_confirmed(self, applied: Sequence | None) -> None:
        if applied is not None:
            header = self.outbox.header(applied)
            if header is None or not header.ends_group:
                raise StateError(f"readers confirmed {applied}, which is not the end of a group in the outbox")
            self.put(CONFIRMED, Watermark(header.pointer, applied, header.commit_time_us))

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

    def _stored_readers(self) -> tuple[Mapping[str, Reader], frozenset[str]]:
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

    def put_reader(self, name: str, reader: Reader) -> None:
        """Store a reader's position on behalf of that reader."""
        self._replace(self._environment.database("readers"), name, READER, reader)
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

    def history(self) -> HistoryIndex:
        """Return the index of the catalog history."""
        return self.get(HISTORY) or HistoryIndex()

    def journal(self) -> JournalMark:
        """Return how far the journal of the catalog history is known to be durable."""
        return self.get(JOURNAL) or JournalMark()

    def put_history(self, index: HistoryIndex) -> None:
        """Store the index; if the journal was cut, lower its durable mark."""
        self.put(HISTORY, index)
        end_lsn = index.journals[-1].end_lsn if index.journals else INVALID_LSN
        is_growing = bool(index.journals) and end_lsn == INVALID_LSN
        if not is_growing and self.journal().end_lsn > end_lsn:
            self.put(JOURNAL, JournalMark(end_lsn))

    def rely_on_journal(self, end_lsn: Lsn) -> None:
        """Record that this transaction's delivery needs the journal up to `end_lsn`, which is durable."""
        if end_lsn > self.journal().end_lsn:
            self.put(JOURNAL, JournalMark(end_lsn))

    def copies(self) -> dict[tuple[Oid, Oid], CopyProgress]:
        """Return the first copies by database and relation."""
        return {parse_table(name): COPY.decode(stored) for name, stored in self._named("copies")}

    def refused_copies(self) -> dict[tuple[Oid, Oid], CopyProgress]:
        """Return the refused copies; other values are not parsed, since each scrape of the metrics reads this."""
        found = {parse_table(name): COPY.decode(stored) for name, stored in self._named("copies") if _REFUSED in stored}
        return {key: copy for key, copy in found.items() if copy.phase is CopyPhase.REFUSED}

    def copy(self, database: Oid, relation: Oid) -> CopyProgress | None:
        """Return the first copy of one table, None if there is none."""
        key = named(self._scope, table_text(database, relation))
        stored = self._transaction.get(key, db=self._environment.database("copies"))
        return None if stored is None else COPY.decode(stored)

    def put_copy(self, database: Oid, relation: Oid, progress: CopyProgress) -> None:
        """Store the progress of a table's first copy."""
        self._replace(self._environment.database("copies"), table_text(database, relation), COPY, progress)

    def drop_copy(self, database: Oid, relation: Oid) -> None:
        """Remove the first copy of a table that no longer exists."""
        key = named(self._scope, table_text(database, relation))
        self._transaction.delete(key, db=self._environment.database("copies"))

    def recopies(self) -> Recopies:
        """Return the requested copies; damaged: none, and a client that waits for one finds it missing."""
        try:
            return self.get(RECOPIES) or Recopies()
        except DamagedValue:
            assert RECOPIES.policy is DamagePolicy.FORGET
            return Recopies()

    def put_recopies(self, recopies: Recopies) -> None:
        """Store the requested copies."""
        self.put(RECOPIES, recopies)

    def record_databases(self, known: Mapping[Oid, KnownDatabase]) -> None:
        """Add databases that joined the capture; the names of those that left it are still needed."""
        beginning = self.get(BEGINNING) if known else None
        if beginning is None:
            return
        names = {**beginning.databases, **{oid: database.name for oid, database in known.items()}}
        encodings = {**beginning.encodings, **{oid: database.encoding for oid, database in known.items()}}
        if (names, encodings) != (beginning.databases, beginning.encodings):
            self.put(BEGINNING, replace(beginning, databases=names, encodings=encodings))

    def marks(self) -> StateMarks:
        """Return the positions and the stage."""
        readers, damaged = self.readers()
        return StateMarks(
            self.stage(),
            self.term(),
            self.delivered(),
            self.confirmed(),
            self.ledger(),
            dict(readers),
            damaged,
            self.followed(),
            self.get(OVERTAKEN),
        )

    def view(self) -> StateView:
        """Return all small values."""
        marks = self.marks()
        return StateView(
            stage=marks.stage,
            term=marks.term,
            delivered=marks.delivered,
            confirmed=marks.confirmed,
            ledger=marks.ledger,
            readers=marks.readers,
            damaged_readers=marks.damaged_readers,
            followed=marks.followed,
            overtaken=marks.overtaken,
            identity=self.identity,
            beginning=self.get(BEGINNING),
            history=self.history(),
            journal=self.journal(),
            copies=self.copies(),
            recopies=self.recopies(),
            fingerprint=self.get(FINGERPRINT),
            hand_over=self.get(HAND_OVER) or HandOver(),
            switches=self.switches(),
            losses=self.losses(),
            rewinds=self.rewinds(),
        )

    def marker_keys(self) -> MarkerKeys:
        """Return which daemon has which marker key; damaged: unknown until the daemons are restarted."""
        try:
            return self.get(MARKER_KEYS) or MarkerKeys()
        except DamagedValue:
            assert MARKER_KEYS.policy is DamagePolicy.FORGET
            return MarkerKeys()

    def processes(self) -> ProcessLog:
        """Return the last end of each process; damaged: unknown until the processes are restarted."""
        try:
            return self.get(PROCESSES) or ProcessLog()
        except DamagedValue:
            assert PROCESSES.policy is DamagePolicy.FORGET
            return ProcessLog()

    def _replace(self, database: LmdbDatabase, name: str, key: Key[ValueT], value: ValueT) -> None:
        stored_name = named(self._scope, name)
        replaced = self._transaction.get(stored_name, db=database) if key.moves_back is not None else None
        self._transaction.put(stored_name, key.encode_over(replaced, value), db=database)

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
        known = self._known.get((database, relation)) or self.new_versions.get((database, relation))
        if known is not None:
            return known
        handle = self._environment.database("schemas")
        version = SchemaVersion(self._transaction.stat(handle)["entries"] + 1)
        self._transaction.put(numbered(self._scope, version), encode_schema(database, relation), db=handle)
        self.new_versions[database, relation] = version
        return version

    def _named(self, database: str) -> Iterator[tuple[str, bytes]]:
        return ((key.decode(), value) for key, value in self.stored(database))
