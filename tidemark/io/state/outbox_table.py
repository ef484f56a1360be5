"""The outbox inside an LMDB transaction that the caller opened: values in order of their sequence, and their bytes.

Values are bytes here, and only their headers are read: `cdcctl status` imports this without Arrow.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidemark.io.state.environment import Environment, LmdbTransaction
from tidemark.model.errors import StateError
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.model.relation import Relation
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import CHUNK_MAX, Scope, parse_slot, slot
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.outbox_ledger import ByteMark, OutboxLedger
from tidemark.wire.values import EncodedGroup, ValueHeader, chunks, decode_header


class UnknownReader(StateError):
    """A reader that is not registered."""

    hint = "it was dropped by `cdcctl reader drop`, or never registered"


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """The outbox inside one transaction."""

    transaction: LmdbTransaction
    environment: Environment
    scope: Scope

    def append(
        self,
        ledger: OutboxLedger,
        group: EncodedGroup,
        version_of: Callable[[Oid, Relation], SchemaVersion],
        *,
        mark_bytes: int,
    ) -> OutboxLedger:
        """Write a group's values after the head; return the new ledger, with a mark each `mark_bytes`."""
        database = self.environment.database("outbox")
        head, byte_count = ledger.head, ledger.byte_count
        # Appending fills pages; it is possible only if no other scope has later keys.
        with self.transaction.cursor(database) as cursor:
            at_end = not cursor.last() or cursor.key() < slot(self.scope, Sequence(head + 1), 0)
        for header, payload in group.numbered(head, version_of):
            for number, chunk in enumerate(chunks(header, payload)):
                key = slot(self.scope, header.sequence, number)
                if not self.transaction.put(key, chunk, db=database, append=at_end, overwrite=False):
                    raise StateError(f"outbox value {header.sequence} already exists")
                byte_count += len(key) + len(chunk)
            head = header.sequence
        written, marks = ledger.written_bytes + byte_count - ledger.byte_count, ledger.marks
        if not marks or written - marks[-1].written_bytes >= mark_bytes:
            marks = (*marks, ByteMark(head, written))
        return replace(ledger, head=head, byte_count=byte_count, written_bytes=written, marks=marks)

    def trim(self, ledger: OutboxLedger, upto: Sequence) -> OutboxLedger:
        """Delete the values up to and including `upto`; return the new ledger."""
        if upto <= ledger.trimmed:
            return ledger
        byte_count, trimmed = ledger.byte_count, min(upto, ledger.head)
        lsn, time_us = self._end_of(trimmed)
        with self.transaction.cursor(self.environment.database("outbox")) as cursor:
            found = cursor.set_range(slot(self.scope, Sequence(ledger.trimmed + 1), 0))
            while found:
                key_slot = parse_slot(self.scope, cursor.key())
                if key_slot is None or key_slot[0] > upto:
                    break
                byte_count -= len(cursor.key()) + len(cursor.value())
                found = cursor.delete()  # and moves to the next value
        marks = tuple(mark for mark in ledger.marks if mark.sequence > upto)
        return replace(
            ledger, trimmed=trimmed, byte_count=byte_count, marks=marks, trimmed_lsn=lsn, trimmed_time_us=time_us
        )

    def _end_of(self, sequence: Sequence) -> tuple[Lsn, int]:
        """Return the LSN and the commit time of a value; of a damaged one, which is deleted too, they are unknown."""
        try:
            header = self.header(sequence)
        except DamagedValue:
            header = None
        return (INVALID_LSN, 0) if header is None else (header.pointer.position.commit_lsn, header.commit_time_us)

    def header(self, sequence: Sequence) -> ValueHeader | None:
        """Return the header of one value, None if it does not exist."""
        chunk = self.chunk(sequence, 0)
        return None if chunk is None else decode_header(chunk, sequence)

    def chunk(self, sequence: Sequence, number: int) -> bytes | None:
        """Return one stored chunk of a value, None if it does not exist."""
        return self.transaction.get(slot(self.scope, sequence, number), db=self.environment.database("outbox"))

    def waiting_since_us(self, ledger: OutboxLedger, after: Sequence) -> int | None:
        """Return the latest commit time of the first group after `after` with a commit; None: there is none."""
        at = max(after, ledger.trimmed)
        while at < ledger.head:
            header = self.header(Sequence(at + 1))
            if header is None or header.commit_time_us:
                return header.commit_time_us if header is not None else None
            at = header.group_last
        return None

    def measured(self) -> OutboxLedger | None:
        """Return a new ledger, counted from the stored values; None if the outbox is empty."""
        prefix_end = slot(self.scope, Sequence((1 << 64) - 1), CHUNK_MAX)
        byte_count, first, last = 0, NO_SEQUENCE, NO_SEQUENCE
        with self.transaction.cursor(self.environment.database("outbox")) as cursor:
            found = cursor.set_range(slot(self.scope, NO_SEQUENCE, 0))
            while found and cursor.key() <= prefix_end:
                key_slot = parse_slot(self.scope, cursor.key())
                if key_slot is None:
                    break
                first, last = first or key_slot[0], key_slot[0]
                byte_count += len(cursor.key()) + len(cursor.value())
                found = cursor.next()
        return OutboxLedger(last, Sequence(first - 1), byte_count, byte_count) if last else None
