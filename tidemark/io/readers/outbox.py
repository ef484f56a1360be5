"""The outbox for its readers: short transactions only, each of which copies its results.

An open read transaction prevents LMDB from reusing pages. Ranges are written (after, upto]: both are sequences
at group ends, 0 is before all. `outbox_table` changes the outbox, inside the state's transactions.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Self

import pyarrow as pa

from tidemark.io.host.clock import SystemClock
from tidemark.io.readers.reader_use import check_name, check_newest_run, used
from tidemark.io.state.environment import Environment, LmdbTransaction, LmdbViews
from tidemark.io.state.opened_state import OpenedState
from tidemark.io.state.outbox_table import OutboxTable, UnknownReader
from tidemark.io.state.schema_values import ReadVersions
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.errors import StateError
from tidemark.model.lsn import format_lsn
from tidemark.model.position import Sequence
from tidemark.model.relation import Relation
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import Scope, named, numbered, parse_number, slot
from tidemark.wire.outbox import OutboxValue, join
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.readers import Reader, ReaderKind
from tidemark.wire.state.state_keys import IDENTITY, LEDGER, READER
from tidemark.wire.state.values import Identity
from tidemark.wire.values import HEADER_BYTES, ValueHeader, decode_header, header_bytes

READERS_REGISTERED_MAX = 64
COPIED_CHUNKS_MAX = 1_000  # in one transaction, for small values: 10 ms


class OutboxTrimmed(StateError):
    """A range that begins before the oldest value of the outbox."""

    hint = (
        "the positions are of another host, or the reader was dropped: start it again from the positions of its tables"
    )


class ReaderLapsed(StateError):
    """A reader that held more of the outbox than it may, so that values that it needs are gone."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredChunks:
    """Stored chunks of values, copied into one buffer: number i is `content[ends[i]:ends[i + 1]]`."""

    sequences: list[Sequence]  # of the value of each chunk
    ends: list[int]  # 0, then the end of each chunk
    content: pa.Buffer

    @classmethod
    def copied(cls, sequences: list[Sequence], chunks: list[memoryview]) -> Self:
        """Copy chunks."""
        ends = list(accumulate(map(len, chunks), initial=0))
        content = pa.allocate_buffer(ends[-1])
        with memoryview(content).cast("B") as target:
            for chunk, (start, end) in zip(chunks, pairwise(ends), strict=True):
                target[start:end] = chunk
        return cls(sequences, ends, content)


class _DueChunks:
    """The next chunk of ranges (after, upto]: `sequence` is None after the last one."""

    def __init__(self, ranges: Iterable[tuple[Sequence, Sequence]]) -> None:
        self._sequences = (Sequence(number) for after, upto in ranges for number in range(after + 1, upto + 1))
        self.sequence = next(self._sequences, None)
        self.number, self._count = 0, 0

    def step(self, chunk: memoryview) -> None:
        """Continue after the chunk that was due; the first one of a value has the header."""
        assert self.sequence is not None
        if self.number == 0:
            self._count = decode_header(header_bytes(chunk), self.sequence).chunk_count
        self.number += 1
        if self.number >= self._count:
            self.sequence, self.number = next(self._sequences, None), 0


class OutboxReader(OpenedState):
    """A reader's access to the outbox. Any number of processes may use it; their writes wait for each other."""

    def __init__(self, environment: Environment, scope: Scope, identity: Identity) -> None:
        super().__init__(environment, scope, identity)
        self._clock = SystemClock()
        self._relations = ReadVersions()

    @property
    def outbox_id(self) -> str:
        """The current name of this outbox: sequences of another one are not valid here. It changes at a promotion."""
        return self.current_identity().outbox_id

    @property
    def place(self) -> str:
        """Where the outbox is, for messages."""
        return f"the state folder {self.folder.root}"

    def current_identity(self) -> Identity:
        """Return the identity with the current name of the outbox."""
        with self.environment.read() as transaction:
            return self._identity(transaction)

    @property
    def outbox_bytes_max(self) -> int:
        """The bound of the outbox; a batch is at most half of it."""
        return self.identity.outbox_bytes_max

    def ledger(self) -> OutboxLedger:
        """Return the contents of the outbox: sequences trimmed+1..head."""
        with self.environment.read() as transaction:
            return self._ledger(transaction)

    def head(self) -> Sequence:
        """Return the sequence of the newest value: always a group's end. One LMDB get."""
        return self.ledger().head

    def plan(self, after: Sequence, bytes_max: int) -> Sequence:
        """Return a group end after `after`: at least one group, then as many as fit into `bytes_max`."""
        with self.environment.read() as transaction:
            ledger = self._ledger(transaction)
            self._check_start(ledger, after)
            table = OutboxTable(transaction, self.environment, self.scope)
            end, byte_count = after, 0
            while end < ledger.head:
                group_end, group_bytes = self._measure_group(table, Sequence(end + 1))
                byte_count += group_bytes
                if end > after and byte_count > bytes_max:
                    break
                end = group_end
            return end

    def headers(self, after: Sequence, upto: Sequence) -> list[ValueHeader]:
        """Return the headers of a range, for cutting it into partitions."""
        with self.environment.read() as transaction:
            self._check_start(self._ledger(transaction), after)
            table = OutboxTable(transaction, self.environment, self.scope)
            return [self._header(table, Sequence(sequence)) for sequence in range(after + 1, upto + 1)]

    def group_ends(self, after: Sequence) -> Iterator[ValueHeader]:
        """Yield the header of the last value of each group after `after`, a group end."""
        at, head = after, self.head()
        while at < head:
            with self.environment.read() as transaction:
                self._check_start(self._ledger(transaction), at)
                table = OutboxTable(transaction, self.environment, self.scope)
                header = self._header(table, self._header(table, Sequence(at + 1)).group_last)
            yield header
            at = header.sequence

    def read(
        self, after: Sequence, upto: Sequence, wanted: Callable[[ValueHeader], bool] | None = None
    ) -> Iterator[OutboxValue]:
        """Yield the values of (after, upto], each copied in a separate transaction; with `wanted` those it accepts."""
        for sequence in range(after + 1, upto + 1):
            with self.environment.read_views() as transaction, ExitStack() as views:
                self._check_start(self._ledger(transaction), Sequence(sequence - 1))
                value = self._value(transaction, views, Sequence(sequence), wanted)
            if value is not None:
                yield value

    def _value(
        self,
        transaction: LmdbViews,
        views: ExitStack,
        sequence: Sequence,
        wanted: Callable[[ValueHeader], bool] | None,
    ) -> OutboxValue | None:
        """Copy a value, once; None if it is not wanted."""
        database = self.environment.database("outbox")
        chunks: list[memoryview] = []
        while (chunk := transaction.get(slot(self.scope, sequence, len(chunks)), db=database)) is not None:
            chunks.append(views.enter_context(chunk))
            if len(chunks) == 1 and wanted is not None and not wanted(decode_header(header_bytes(chunk), sequence)):
                return None
        return join(sequence, chunks)

    def stored_chunks(self, ranges: Iterable[tuple[Sequence, Sequence]], bytes_max: int) -> Iterator[StoredChunks]:
        """Yield the stored chunks of ranges (after, upto]: some in each transaction, in one copy.

        They have at most `bytes_max` bytes, or are one chunk; and they are at most `COPIED_CHUNKS_MAX`.
        """
        due = _DueChunks(ranges)
        while due.sequence is not None:
            with self.environment.read_views() as transaction, ExitStack() as views:
                copied = self._copy(transaction, views, due, bytes_max)
            yield copied

    def _copy(self, transaction: LmdbViews, views: ExitStack, due: _DueChunks, bytes_max: int) -> StoredChunks:
        """Copy the chunks that are due and fit."""
        database = self.environment.database("outbox")
        ledger = self._ledger(transaction)
        sequences, chunks, byte_count = list[Sequence](), list[memoryview](), 0
        while (sequence := due.sequence) is not None and len(chunks) < COPIED_CHUNKS_MAX:
            self._check_start(ledger, Sequence(sequence - 1))
            chunk = transaction.get(slot(self.scope, sequence, due.number), db=database)
            if chunk is None:
                self._check_start(ledger, sequence)  # the range may end behind the outbox
                raise DamagedValue(f"outbox value {sequence}", f"its chunk {due.number} is not there")
            views.enter_context(chunk)
            byte_count += len(chunk)
            if chunks and byte_count > bytes_max:
                break
            sequences.append(sequence)
            chunks.append(chunk)
            due.step(chunk)
        return StoredChunks.copied(sequences, chunks)

    def relation(self, version: SchemaVersion) -> Relation:
        """Return the relation version with this number in headers."""
        return self._relations.relation(version, lambda: self.stored_schema(version))

    def stored_schema(self, version: SchemaVersion) -> bytes:
        """Return a schema version as it is stored; raise `OutboxTrimmed` if no value names it any more."""
        key, database = numbered(self.scope, version), self.environment.database("schemas")
        with self.environment.read() as transaction, transaction.cursor(database) as cursor:
            found = cursor.set_range(key)
            if found and cursor.key() == key:
                return cursor.value()
            has_later = found and parse_number(self.scope, cursor.key()) is not None
        if has_later:
            raise OutboxTrimmed(
                f"schema version {version} is not in the outbox of {self.folder.root} any more: the values with it "
                "were trimmed"
            )
        raise DamagedValue(f"schema version {version}", "it is not there")

    def registered(self, reader: str) -> Reader | None:
        """Return what a reader has confirmed; None if it is not registered."""
        with self.environment.read() as transaction:
            stored = transaction.get(named(self.scope, reader), db=self.environment.database("readers"))
        return None if stored is None else READER.decode(stored)

    def register(self, reader: str, *, is_required: bool = True, kind: ReaderKind = ReaderKind.UNSTATED) -> Reader:
        """Register a reader, or return the earlier confirmation; a new one counts as having all trimmed values.

        For a query, this begins a run, and ends the confirmations of earlier runs. Raises `OtherReaderKind`.
        """
        check_name(reader)
        key, database = named(self.scope, reader), self.environment.database("readers")
        with self.environment.write() as transaction:
            stored = transaction.get(key, db=database)
            if stored is not None:
                before = READER.decode(stored)
                registered = used(reader, before, kind, self._clock.wall_us())
                if registered != before:
                    transaction.put(key, READER.encode_over(stored, registered), db=database)
                return registered
            if transaction.stat(database)["entries"] >= READERS_REGISTERED_MAX:
                raise StateError(f"{READERS_REGISTERED_MAX} readers are registered", hint="`cdcctl reader drop` one")
            if is_required:
                StateTransaction(self.environment, transaction, self.scope, self.identity).keep_confirmed()
            trimmed = self._ledger(transaction).trimmed
            now_us = self._clock.wall_us()
            registered = used(
                reader, Reader(trimmed, trimmed, now_us, is_required, registered_after=trimmed), kind, now_us
            )
            transaction.put(key, READER.encode(registered), db=database)
            return registered

    def confirm(self, reader: str, applied: Sequence, replayable: Sequence, *, run: int = 0) -> Reader:
        """Record that the tables contain all up to `applied`, and that nothing up to `replayable` is requested again.

        Neither moves back: a late write of a fenced process has no effect. Raises `ReaderLapsed`, and `ReaderTakenOver`
        if `run` is given and not the newest run of the query.
        """
        key, database = named(self.scope, reader), self.environment.database("readers")
        with self.environment.write() as transaction:
            stored = transaction.get(key, db=database)
            if stored is None:
                raise UnknownReader(f"reader {reader!r} is not registered in {self.environment.folder.root}")
            ledger = self._ledger(transaction)
            before = READER.decode(stored)
            self._check_active(transaction, reader, before)
            check_newest_run(reader, before, run)
            if max(applied, replayable) > ledger.head:
                raise StateError(
                    f"reader {reader!r} confirms {max(applied, replayable)}, but the outbox ends at {ledger.head}"
                )
            confirmed = replace(
                before,
                applied=max(applied, before.applied),
                replayable=max(replayable, before.replayable),
                confirmed_at_us=self._clock.wall_us(),
            )
            transaction.put(key, READER.encode_over(stored, confirmed), db=database)
            return confirmed

    def check_active(self, reader: str) -> None:
        """Raise `ReaderLapsed` if a reader has lapsed."""
        with self.environment.read() as transaction:
            stored = transaction.get(named(self.scope, reader), db=self.environment.database("readers"))
            if stored is not None:
                self._check_active(transaction, reader, READER.decode(stored))

    def check_newest_run(self, reader: str, run: int) -> None:
        """Raise `ReaderTakenOver` if `run` is given and not the newest run of the query."""
        found = self.registered(reader)
        if found is not None:
            check_newest_run(reader, found, run)

    def _check_active(self, transaction: LmdbTransaction, name: str, reader: Reader) -> None:
        if not reader.is_lapsed:
            return
        trimmed = self._ledger(transaction).trimmed
        gone = f"values {reader.trimmable + 1} to {trimmed} of the outbox were trimmed"
        raise ReaderLapsed(
            f"reader {name!r} lapsed, because it held more than reader.hold_bytes: {gone}, commits from "
            f"{format_lsn(reader.lapsed_lsn)} on",
            hint=f"`cdcctl reader resume {name}` continues without them, `cdcctl reader drop {name}` removes the "
            f"reader; an archive still has them (`cdcctl decode --from {format_lsn(reader.lapsed_lsn)}`)",
        )

    def _identity(self, transaction: LmdbTransaction) -> Identity:
        stored = transaction.get(named(self.scope, IDENTITY.name), db=self.environment.database("state"))
        assert stored is not None, "the state was opened by it"
        return IDENTITY.decode(stored)

    def _ledger(self, transaction: "LmdbTransaction | LmdbViews") -> OutboxLedger:
        stored = transaction.get(named(self.scope, LEDGER.name), db=self.environment.database("state"))
        return OutboxLedger() if stored is None else LEDGER.decode(bytes(stored))

    def _check_start(self, ledger: OutboxLedger, after: Sequence) -> None:
        if after < ledger.trimmed:
            contents = f"contains {ledger.trimmed + 1} to {ledger.head}"
            if ledger.trimmed == ledger.head:
                contents = f"is empty after value {ledger.head}"
            raise OutboxTrimmed(f"the outbox of {self.folder.root} {contents}; values after {after} were requested")
        if after > ledger.head:
            raise StateError(
                f"the outbox of {self.folder.root} ends at {ledger.head}; values after {after} were requested"
            )

    def _measure_group(self, table: OutboxTable, first: Sequence) -> tuple[Sequence, int]:
        header = self._header(table, first)
        if header.group_first != first:
            raise StateError(
                f"sequence {first - 1} is not the end of a group ({header.group_first} to {header.group_last})"
            )
        byte_count = header.payload_length + HEADER_BYTES
        for sequence in range(first + 1, header.group_last + 1):
            byte_count += self._header(table, Sequence(sequence)).payload_length + HEADER_BYTES
        return header.group_last, byte_count

    @staticmethod
    def _header(table: OutboxTable, sequence: Sequence) -> ValueHeader:
        header = table.header(sequence)
        if header is None:
            raise DamagedValue(f"outbox value {sequence}", "it is not there")
        return header
