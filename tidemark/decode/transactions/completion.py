"""Completes transactions: adds what a commit implies, and decides what an error in one of them means.

Transactions that commit before `from_lsn` are left out later: one that began before the first record read and ends
before `from_lsn` need not be readable. With `to_lsn`, the same applies to every transaction that does not commit in
[`from_lsn`, `to_lsn`): an error is raised at the commit, where this is known.
"""

from collections.abc import Callable
from functools import partial

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.transactions.heap_changes import emit_schema
from tidemark.decode.transactions.ports import Databases, DatabaseSelectionChange, DroppedTable
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction, Ended
from tidemark.decode.transactions.reorder_buffer.open_transaction import OpenTransaction
from tidemark.decode.transactions.reorder_buffer.transactions import TransactionTable
from tidemark.decode.transactions.schema_changes import (
    NO_POSITION_YET,
    UncapturedDrop,
    database_event,
    is_captured,
    is_unlogged,
)
from tidemark.model.change import TransactionEnd
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.wal.record import BadRecord


class Completion:
    """Adds changes to open transactions, and returns the committed ones that have content."""

    def __init__(
        self, transactions: TransactionTable, databases: Databases, *, from_lsn: Lsn, to_lsn: Lsn | None
    ) -> None:
        self._transactions = transactions
        self._databases = databases
        self._from_lsn = from_lsn
        self._to_lsn = to_lsn

    def add(self, lsn: Lsn, transaction: OpenTransaction, add: Callable[[], None]) -> None:
        """Call `add` to add the changes of the record at `lsn` to its transaction, if the transaction is kept."""
        if not transaction.is_kept:
            return
        try:
            add()
        except CorruptWal as error:
            # NB: a BadDatum does not contain the LSN of its record.
            fault = BadRecord(lsn, str(error)) if isinstance(error, BadDatum) else error
            if lsn < self._from_lsn or self._to_lsn is not None:
                transaction.give_up(fault, self._transactions.port)
            elif fault is error:
                raise
            else:
                raise fault from error

    def commit(self, ended: Ended, transaction: OpenTransaction, timeline: TimelineId) -> CommittedTransaction | None:
        """Add what the commit of a transaction implies, and complete it."""
        lsn = ended.commit_lsn
        self.add(lsn, transaction, partial(_end_schema, transaction, lsn))
        for database_change in self._databases.selection_changes(ended.xid):
            self.add(lsn, transaction, partial(_emit_database, transaction, lsn, database_change))
        for dropped in self._databases.dropped_in_left(ended.xid):
            self.add(lsn, transaction, partial(_emit_dropped, transaction, lsn, dropped))
        return self.complete(ended, transaction, timeline)

    def complete(self, ended: Ended, transaction: OpenTransaction, timeline: TimelineId) -> CommittedTransaction | None:
        """Return a committed transaction if it has content; raise its fault if it is requested."""
        if transaction.is_kept and not transaction.is_empty:
            return self._committed(ended, transaction, timeline)
        transaction.release(self._transactions.port)
        if transaction.fault is not None and not transaction.partial and self._is_requested(ended.commit_lsn):
            raise transaction.fault
        return None

    def _is_requested(self, commit_lsn: Lsn) -> bool:
        return commit_lsn >= self._from_lsn and (self._to_lsn is None or commit_lsn < self._to_lsn)

    def _committed(self, ended: Ended, transaction: OpenTransaction, timeline: TimelineId) -> CommittedTransaction:
        end = TransactionEnd(
            xid=ended.xid,
            full_xid=self._transactions.full_xid(ended.xid),
            timeline=timeline,
            first_lsn=transaction.first_lsn,
            commit_lsn=ended.commit_lsn,
            end_lsn=ended.end_lsn,
            commit_time_us=ended.time_us,
            database=ended.database,
            item_count=transaction.rows.surviving_count + len(transaction.between),
            origin=ended.origin,
            gid=ended.gid,
        )
        restart_lsn = self._transactions.restart_lsn(ended.end_lsn)
        inner = min(transaction.first_lsn, restart_lsn)
        port = self._transactions.port
        rows, between, names = transaction.rows, transaction.between, transaction.names
        return CommittedTransaction(end, restart_lsn, inner, rows, between, port, names)


def _end_schema(transaction: OpenTransaction, commit_lsn: Lsn) -> None:
    """Append the pending schema changes when a transaction commits."""
    if transaction.schema is not None:
        emit_schema(transaction)
        for tagged in transaction.schema.end_rewrites(commit_lsn):
            transaction.add_item(tagged.xid, tagged.item)


def _emit_database(transaction: OpenTransaction, lsn: Lsn, database_change: DatabaseSelectionChange) -> None:
    """Emit events for the tables of a created or dropped database: a partitioned table before its partitions."""
    for relation in sorted(database_change.relations, key=lambda relation: len(relation.ancestors)):
        if is_captured(relation):
            transaction.add_item(transaction.xid, database_event(database_change, relation, transaction.xid, lsn))
        elif database_change.is_dropped and is_unlogged(relation):
            _emit_dropped(transaction, lsn, DroppedTable(database_change.catalog.database, relation.oid))


def _emit_dropped(transaction: OpenTransaction, lsn: Lsn, dropped: DroppedTable) -> None:
    """Emit the DROP of a table that is unlogged, or in a database that is not captured any more."""
    xid = transaction.xid
    transaction.add_item(xid, UncapturedDrop(NO_POSITION_YET, lsn, dropped.database, xid, dropped.relation))
