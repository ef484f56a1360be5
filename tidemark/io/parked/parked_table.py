"""The table of parked changes inside a transaction of the state, in the order of the stream.

A change that is delivered again after a crash replaces its entry: the key is position, relation and database. This is
an OID, since another database may have the name later. Rows of one position that a transform multiplied have numbers in
the key; only a later epoch can bring the same row again.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.errors import ConfigError, ConsumerFailed
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import Epoch, Position
from tidemark.model.relation import KnownDatabase
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.parked import ParkedChange, ParkedLedger, SkipLog, SkippedChange, decode_parked, encode_parked
from tidemark.wire.state.key import DamagePolicy
from tidemark.wire.state.state_keys import PARKED, SKIPPED

TABLE = "parked"
_PLACE = struct.Struct(">IQQII")  # timeline, commit LSN, ordinal, relation, database
_COPY = struct.Struct(">H")
COPIED_OP = "c"  # of `Op`, whose module loads Arrow: not for `cdcctl`
COPIES_MAX = 0xFFFF  # rows of one position and relation


class ParkedFull(ConsumerFailed):
    """There is no space for another parked change: the consumer fails, as without parking."""

    hint = (
        "correct the consumer, then `cdcctl parked retry --all`, or drop what is not needed with `cdcctl parked drop`; "
        "or raise poison.parked_bytes_max"
    )


class UnknownParked(ConfigError):
    """A number that no parked change has."""

    hint = "`cdcctl parked list` shows the numbers"


class ParkedTable:
    """The parked changes, and the record of skipped ones, in one transaction."""

    def __init__(self, transaction: StateTransaction) -> None:
        self._transaction = transaction

    def ledger(self) -> ParkedLedger:
        """Return the extent of the table; damaged: counted again."""
        try:
            return self._transaction.get(PARKED) or ParkedLedger()
        except DamagedValue:
            assert PARKED.policy is DamagePolicy.DERIVE
            return self._measured()

    def changes(self) -> Iterator[ParkedChange]:
        """Yield the parked changes in the order of the stream."""
        return (change for _, change, _ in self._entries())

    def damaged(self) -> list[str]:
        """Return the places of the changes that cannot be read: only `drop` without numbers deletes them."""
        return [_described(key) for key, _, change, _ in self._stored() if change is None]

    def requested(self) -> Iterator[tuple[ParkedChange, bytes]]:
        """Yield the changes that are to be delivered again, each with its row."""
        return ((change, row) for _, change, row in self._entries() if change.is_requested)

    def park(self, change: ParkedChange, row: bytes, bytes_max: int) -> ParkedChange:
        """Store a change and return it with its number; raise `ParkedFull` if that would exceed `bytes_max`."""
        ledger = self.ledger()
        key, replaced = self._place(change)
        if replaced is None:
            parked = replace(change, number=ledger.last_number + 1)
            byte_count, count, requested = ledger.byte_count, ledger.count + 1, ledger.requested
        else:
            known, known_bytes = replaced
            parked = replace(change, number=known.number, failures=known.failures + change.failures)
            byte_count, count = ledger.byte_count - known_bytes, ledger.count
            requested = ledger.requested - known.is_requested
        stored = encode_parked(parked, row)
        byte_count += len(stored)
        if byte_count > bytes_max:
            raise ParkedFull(
                f"{change.table} at {change.position} cannot be parked: {ledger.count} parked changes have "
                f"{ledger.byte_count} bytes, it has {len(stored)}, and poison.parked_bytes_max is {bytes_max}"
            )
        self._transaction.store(TABLE, key, stored)
        last_number = max(parked.number, ledger.last_number)
        self._transaction.put(PARKED, ParkedLedger(last_number, count, byte_count, requested))
        return parked

    def record_failure(self, number: int, reason: str) -> None:
        """Record that a change was delivered again and failed again; it is no longer requested."""
        self._rewrite(
            [number], lambda each: replace(each, failures=each.failures + 1, reason=reason, is_requested=False)
        )

    def request(self, numbers: Collection[int] | None) -> int:
        """Request that changes are delivered again, None: all; return how many. Raise `UnknownParked`."""
        self.check(numbers)
        return self._rewrite(numbers, lambda each: replace(each, is_requested=True))

    def drop(self, numbers: Collection[int] | None) -> int:
        """Delete changes, None: all, the damaged ones too; return how many. Raise `UnknownParked`."""
        self.check(numbers)
        if numbers is not None:
            return self.discard(numbers)
        keys = [key for key, _ in self._transaction.stored(TABLE)]
        for key in keys:
            self._transaction.store(TABLE, key, None)
        self._transaction.put(PARKED, ParkedLedger(self.ledger().last_number))
        return len(keys)

    def discard(self, numbers: Collection[int] | None) -> int:
        """Delete those of the changes that are still there; return how many."""
        return self._rewrite(numbers, lambda _: None)

    def drop_of(self, database: Oid, relation: Oid, upto: Position) -> int:
        """Delete the copied rows of a table, and its changes up to a position: a copy has their rows; return how many.

        Otherwise a retry puts an older row over that of the copy.
        """
        found = [each for each in self.changes() if (each.database_oid, each.relation.oid) == (database, relation)]
        return self.discard([each.number for each in found if each.op == COPIED_OP or each.position <= upto])

    def rename_databases(self, known: Mapping[Oid, KnownDatabase]) -> None:
        """Give changes the present names of their databases: a retry hands them over with these."""
        names = {oid: database.name for oid, database in known.items()}
        if names and self.ledger().count:
            self._rewrite_found(
                lambda each: names.get(each.database_oid, each.database) != each.database,
                lambda each: replace(each, database=names[each.database_oid]),
            )

    def drop_dead(self, first: Position, timeline: TimelineId) -> int:
        """Delete the changes of a dead branch, copied rows too: [first, ...] of its timeline; return how many."""
        found = [each for each in self.changes() if each.position.timeline == timeline and each.position >= first]
        return self.discard([each.number for each in found]) if found else 0

    def latest_after(self, confirmed: Position | None, epoch: Epoch) -> Position | None:
        """Return the last position of the stream's changes that were parked before `epoch` and not confirmed."""
        found = [each.position for each in self.changes() if _is_before(each, epoch)]
        return max((at for at in found if confirmed is None or at > confirmed), default=None)

    def drop_between(self, after: Position | None, upto: Position, epoch: Epoch) -> int:
        """Delete the stream's changes in a range that were parked before `epoch`, not in it; return how many.

        They were delivered again and handled. Rows of a copy are delivered only with the whole copy: see `drop_of`.
        """
        found = [each for each in self.changes() if _is_before(each, epoch) and each.position <= upto]
        return self.discard([each.number for each in found if after is None or each.position > after])

    def skips(self) -> SkipLog:
        """Return the latest skipped changes; damaged: none."""
        try:
            return self._transaction.get(SKIPPED) or SkipLog()
        except DamagedValue:
            assert SKIPPED.policy is DamagePolicy.FORGET
            return SkipLog()

    def skip(self, skipped: SkippedChange) -> None:
        """Record a change that is left out."""
        self._transaction.put(SKIPPED, self.skips().with_one_more(skipped))

    def _entries(self) -> Iterator[tuple[bytes, ParkedChange, bytes]]:
        return ((key, change, row) for key, _, change, row in self._stored() if change is not None)

    def _stored(self) -> Iterator[tuple[bytes, int, ParkedChange | None, bytes]]:
        """Yield keys, sizes, and the changes with their rows; None: the value is damaged."""
        for key, stored in self._transaction.stored(TABLE):
            change, row = _readable(stored)
            yield key, len(stored), change, row

    def _measured(self) -> ParkedLedger:
        number = count = byte_count = requested = 0
        for _, size, change, _ in self._stored():
            count, byte_count = count + 1, byte_count + size
            if change is not None:
                number, requested = max(number, change.number), requested + change.is_requested
        return ParkedLedger(number, count, byte_count, requested)

    def _place(self, change: ParkedChange) -> tuple[bytes, tuple[ParkedChange, int] | None]:
        """Return the key of a change, and the same change of an earlier epoch, with its bytes, if it is there."""
        for key, stored in self._keys(change):
            if stored is None:
                return key, None
            known, _ = _readable(stored)
            if known is None:  # it stays, and so does the change beside it
                continue
            if known.epoch < change.epoch:
                return key, (known, len(stored))
        raise ParkedFull(f"{COPIES_MAX} rows of {change.table} at {change.position} are parked")

    def _keys(self, change: ParkedChange) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the keys of a change's place, each with what is stored there."""
        at = change.position
        place = _PLACE.pack(at.timeline, at.commit_lsn, at.ordinal, change.relation.oid, change.database_oid)
        there = dict(self._transaction.stored(TABLE, place))
        for copy in range(COPIES_MAX):
            key = place + _COPY.pack(copy)
            yield key, there.get(key)

    def _rewrite(self, numbers: Collection[int] | None, changed: Callable[[ParkedChange], ParkedChange | None]) -> int:
        """Store what `changed` returns, or delete, for each of the changes, None: all; return how many."""
        return self._rewrite_found(lambda each: numbers is None or each.number in numbers, changed)

    def _rewrite_found(
        self, is_one: Callable[[ParkedChange], bool], changed: Callable[[ParkedChange], ParkedChange | None]
    ) -> int:
        last_number = self.ledger().last_number
        found = [entry for entry in self._entries() if is_one(entry[1])]
        for key, change, row in found:
            new = changed(change)
            self._transaction.store(TABLE, key, None if new is None else encode_parked(new, row))
        self._transaction.put(PARKED, replace(self._measured(), last_number=last_number))
        return len(found)

    def check(self, numbers: Collection[int] | None) -> None:
        """Raise `UnknownParked` unless each number is that of a parked change."""
        unknown = sorted({*(numbers or ())} - {change.number for change in self.changes()})
        if unknown:
            raise UnknownParked(f"no parked change has the number {unknown[0]}")


def _readable(stored: bytes) -> tuple[ParkedChange | None, bytes]:
    try:
        return decode_parked(stored)
    except DamagedValue:
        return None, b""


def _described(key: bytes) -> str:
    """Return the place of a change for people, from its key: its value is damaged."""
    timeline, commit_lsn, ordinal, relation, database = _PLACE.unpack_from(key)
    at = Position(TimelineId(timeline), Lsn(commit_lsn), ordinal)
    return f"relation {relation} of database {database} at {at}"


def _is_before(change: ParkedChange, epoch: Epoch) -> bool:
    return change.op != COPIED_OP and change.epoch < epoch


def parked_ledger(store: StateStore) -> ParkedLedger:
    """Return the extent of the table in a state."""
    with store.reading() as transaction:
        return ParkedTable(transaction).ledger()
