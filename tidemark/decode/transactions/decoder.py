"""Assembles whole transactions from WAL records, as the server's decode.c and reorderbuffer.c do.

A row is resolved against the catalog when its record is read, not at commit: its relation version, type names and enum
labels are those of that moment, as in a historic snapshot. The rules for keeping and skipping follow the server
(`ReorderBufferProcessTXN`, PG 16), with two differences: rows of a transient heap that rewrites an ordinary table are
kept as op `r` of that table, and rows of materialized views are kept here and left out later.

Reading can begin before the requested position and then meets transactions whose beginning is not read (see
`transactions`). An error in one of them is stored as its fault; it is raised only if the transaction is requested.

Small transactions are returned in runs if records come in blocks. Pure: records in, completed transactions out.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tidemark.decode.transactions.completion import Completion
from tidemark.decode.transactions.heap_changes import HeapChanges, SelectsRelation, emit_schema
from tidemark.decode.transactions.object_names import NameKeeper
from tidemark.decode.transactions.ports import (
    Catalog,
    CatalogRow,
    Databases,
    SpillPort,
)
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun, singly
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction, Ended
from tidemark.decode.transactions.reorder_buffer.itemlog import ITEM_OVERHEAD_BYTES
from tidemark.decode.transactions.reorder_buffer.open_transaction import OpenTransaction
from tidemark.decode.transactions.reorder_buffer.transactions import TransactionTable
from tidemark.decode.transactions.schema_changes import (
    NO_POSITION_YET,
    SchemaTracker,
)
from tidemark.decode.transactions.skim import Skimmer
from tidemark.model.change import LogicalMessage
from tidemark.model.errors import NodeUnfit
from tidemark.model.lsn import INVALID_LSN, INVALID_OID, INVALID_XID, FullXid, Lsn, TimelineId, Xid, format_lsn
from tidemark.model.message_prefix import MARKER_PREFIX
from tidemark.model.position import Position
from tidemark.wal.page import RecordBlock
from tidemark.wal.record import RawRecord, Record
from tidemark.wal.rmgr import (
    RM_DBASE,
    RM_HEAP,
    RM_HEAP2,
    RM_LOGICALMSG,
    RM_RELMAP,
    RM_STANDBY,
    RM_XACT,
    RM_XLOG,
    message,
    standby,
    xact,
    xlog,
)
from tidemark.wal.versions import RMGRS, WalFormat

Decoded = CommittedTransaction | LogicalMessage
DecodedRun = Decoded | CommittedRun
WriteJournal = Callable[[Record | RawRecord], None]
OnMarker = Callable[[Lsn, bytes], bool]  # called for each message with our prefix; true halts decoding after it
_WITH_ROWS = frozenset({RM_HEAP, RM_HEAP2})


class WalLevelLowered(NodeUnfit):
    """From here on WAL lacks information that decoding needs."""

    hint = (
        "set wal_level = logical and full_page_writes = on, then create a new state with cdcctl init, which copies all "
        "rows again: changes in between are not in WAL"
    )


class Decoder:
    """The decoder of a capture: several databases, one stream of records."""

    def __init__(
        self,
        fmt: WalFormat,
        timeline: TimelineId,
        databases: Databases,
        *,
        next_xid: FullXid,
        memory_bytes: int,
        spill: SpillPort | None = None,
        complete_from: FullXid | None = None,
        from_lsn: Lsn = INVALID_LSN,
        to_lsn: Lsn | None = None,
        on_marker: OnMarker | None = None,
    ) -> None:
        """`next_xid` is a 64-bit xid from near the start; transactions older than `complete_from` are not returned.

        For `from_lsn` and `to_lsn` see `completion`.
        """
        self.timeline = timeline
        self.last_lsn = INVALID_LSN  # start of the last record
        self.decoded_lsn = INVALID_LSN  # end of the last record
        self.is_halted = False  # by `on_marker`: records after the last one are not decoded
        self.catalogs_changed = False  # by the last record, which the journal must then contain
        self.transactions = TransactionTable(next_xid, memory_bytes, spill, complete_from)
        self._from_lsn = from_lsn
        self._completion = Completion(self.transactions, databases, from_lsn=from_lsn, to_lsn=to_lsn)
        self._on_marker = on_marker
        self._fmt = fmt
        self._databases = databases
        self._outdated_count = databases.outdated_count
        self._skimmer = Skimmer(fmt, self.transactions)
        self._changes = HeapChanges(self.transactions, self._skimmer)
        self._handlers: dict[int, Callable[[Record, OpenTransaction | None], Decoded | None]] = {
            RM_XLOG: self._xlog,
            RM_XACT: self._xact,
            RM_DBASE: self._catalogs_only,
            RM_RELMAP: self._catalogs_only,
            RM_STANDBY: self._standby,
            RM_HEAP: self._heap,
            RM_HEAP2: self._heap2,
            RM_LOGICALMSG: self._message,
        }

    def select_only(self, selects: SelectsRelation) -> None:
        """From the next record on, keep only tuples of rows whose relation version `selects` accepts.

        Other rows are still counted, so that positions do not change; the caller must leave them out by the same rule.
        """
        self._changes.selects = selects
        self._skimmer.forget_files()

    def keep_names(self) -> None:
        """From the next record on, store the names that `regclass` and similar types print in rows; this costs time."""
        self._changes.names = NameKeeper()
        self._skimmer.forget_files()

    @property
    def quiet(self) -> frozenset[int]:
        """The resource managers whose records matter only because they can name a subtransaction's top-level xid.

        A subtransaction's first record names it; no transaction begins with such a record.
        """
        return frozenset(range(RMGRS)) - self._handlers.keys()

    @property
    def restart_lsn(self) -> Lsn:
        """The LSN where reading must begin to get everything that commits after `decoded_lsn`."""
        return self.transactions.restart_lsn(self.decoded_lsn)

    @property
    def has_reached_from_lsn(self) -> bool:
        """Return whether all transactions open now were read from their first records on."""
        return self.last_lsn >= self._from_lsn

    def decode_block(self, block: RecordBlock, journal: WriteJournal | None = None) -> Iterator[Decoded]:
        """Decode the records of `block`; yield completed transactions and messages one by one. Exhaust the iterator.

        `journal` is called with each record that changed a catalog, after the mirrors were updated.
        """
        return singly(self.decode_runs(block, journal))

    def decode_runs(self, block: RecordBlock, journal: WriteJournal | None = None) -> Iterator[DecodedRun]:
        """Do the same, but yield small transactions in runs."""
        count, index = block.count, 0
        while index < count:
            index = self._skimmer.skim(block, index)
            run = self._skimmer.committed(self.timeline)
            if run is not None:
                self.last_lsn, self.decoded_lsn = Lsn(run.ends.commit_lsns[-1]), Lsn(run.ends.end_lsns[-1])
                yield run
            found = self._skimmer.ended(block)
            if found is not None:
                self._reach(block, index)
                committed = self._completion.complete(*found, self.timeline)
                if committed is not None:
                    yield committed
            elif index < count and not self._skimmer.is_full:
                self._process_held(block, journal)
                record = block.record(index)
                decoded = self.decode(record)
                if self.catalogs_changed and journal is not None:
                    journal(record)
                if decoded is not None:
                    yield decoded
                if self.is_halted:
                    return
                index += 1
        if not self._skimmer.carry(block):
            self._process_held(block, journal)
        self._reach(block, index)

    def _redo_held(self, block: RecordBlock, journal: WriteJournal | None) -> None:
        """Process the records on catalogs; their transactions were entered before."""
        rows = self._skimmer.take_catalog_rows(block)
        at = 0
        while at < len(rows):
            record = rows[at].record
            stop = at + self._redo_rows(block, rows, at)
            if stop == at:
                parsed = block.record(record)
                self.decode(parsed)
                if self.catalogs_changed and journal is not None:
                    journal(parsed)
                stop = next((later for later in range(at, len(rows)) if rows[later].record != record), len(rows))
            elif journal is not None:
                for record in dict.fromkeys(row.record for row in rows[at:stop]):
                    journal(block.raw(record))
            at = stop

    def _redo_rows(self, block: RecordBlock, rows: Sequence[CatalogRow], at: int) -> int:
        """Apply rows from `at` on that one part of a transaction wrote; return how many: the next needs its record."""
        xid, file = rows[at].xid, rows[at].file
        transaction = self.transactions.find(self.transactions.top(xid))
        if file is None or transaction is None or not transaction.is_kept or transaction.schema is None:
            return 0
        catalog = self._databases.captured(file.db)
        if catalog is None or transaction.schema.dirty_xid not in (INVALID_XID, xid):
            return 0
        stop = at + 1
        while stop < len(rows) and rows[stop].xid == xid and (other := rows[stop].file) and other.db == file.db:
            stop += 1
        count = catalog.redo_rows(rows[at:stop], xid, transaction.xid)
        if count:
            transaction.schema.touch(xid, Lsn(block.lsns[rows[at + count - 1].record]))
            self._skimmer.forget_own_files(transaction.xid)
            self._set_state_of(transaction, xid)
        return count

    def _process_held(self, block: RecordBlock, journal: WriteJournal | None) -> None:
        """Process records that the skimmer could put off as long as no other record needed the decoder."""
        if self._skimmer.catalog_rows.count:
            self._redo_held(block, journal)
        for record in self._skimmer.take_held(block):
            self.decode(record)

    def _reach(self, block: RecordBlock, index: int) -> None:
        """Advance the LSNs over the records of `block` before `index`; at its end, also over those left out."""
        if index == block.count > 0:
            self.last_lsn, self.decoded_lsn = block.last_lsn, block.end_lsn
        elif index > 0:
            self.last_lsn, self.decoded_lsn = Lsn(block.lsns[index - 1]), Lsn(block.ends[index - 1])

    def decode(self, record: Record) -> Decoded | None:
        """Decode the next record; return what it completes, if anything."""
        self.last_lsn, self.decoded_lsn = record.lsn, record.end_lsn
        self.catalogs_changed = False
        transaction = None
        handler = self._handlers.get(record.rmgr)
        # Other records, for example of indexes, can only name a subtransaction's top-level xid: none begins there.
        if record.xid and (handler is not None or record.top_xid):
            transaction = self.transactions.enter(record.xid, record.top_xid, record.lsn)
        decoded = handler(record, transaction) if handler is not None else None
        # NB: a subtransaction's first record may be ASSIGNMENT or invalidations; later ones name no top-level xid.
        if transaction is not None:
            self._set_state_of(transaction, record.xid)
        return decoded

    def _set_state_of(self, transaction: OpenTransaction, xid: Xid) -> None:
        """Pass the state of `xid`, a part of the transaction, and of the top-level xid to the skimmer if still open.

        NB: the top-level transaction may not have written anything yet; the skimmer would treat it as new.
        """
        for member in {xid, transaction.xid}:
            if self.transactions.is_open(member):
                self._skimmer.set_state_of(member, transaction)

    def _xlog(self, record: Record, transaction: OpenTransaction | None) -> None:
        parsed = xlog.parse(record, self._fmt)
        if isinstance(parsed, xlog.Checkpoint):
            self.transactions.observe_next_xid(parsed.next_xid)
        if isinstance(parsed, xlog.WalLevelChange) and parsed.wal_level < xlog.WAL_LEVEL_LOGICAL:
            raise WalLevelLowered(f"wal_level was lowered below logical at {format_lsn(record.lsn)}")
        if isinstance(parsed, xlog.FullPageWritesChange) and not parsed.full_page_writes:
            raise WalLevelLowered(f"full_page_writes was turned off at {format_lsn(record.lsn)}")
        self._catalogs_only(record, transaction)

    def _catalogs_only(self, record: Record, transaction: OpenTransaction | None) -> None:
        catalog = self._databases.captured(record.blocks[0].locator.db) if record.blocks else None
        if catalog is not None:
            self._redo(catalog, record, transaction)
        else:
            self._emit_pending(record, transaction)
            self.catalogs_changed |= self._databases.redo(record, _top_xid(transaction))

    def _standby(self, record: Record, transaction: OpenTransaction | None) -> None:
        del transaction
        running = standby.parse(record)
        if running is not None:
            self._skimmer.forget(self.transactions.abort_older_than(running.oldest_running_xid))
            self.catalogs_changed |= self._databases.abort_older_than(running.oldest_running_xid)

    def _xact(self, record: Record, transaction: OpenTransaction | None) -> CommittedTransaction | None:
        ended = xact.parse(record, self._fmt)
        if isinstance(ended, xact.Commit):
            return self._commit(record, ended)
        if isinstance(ended, xact.Abort):
            for member in (ended.xid, *ended.subxids):
                self._skimmer.forget_own_files(self.transactions.top(member))
            self._skimmer.forget(self.transactions.abort(ended.xid, ended.subxids))
            self.catalogs_changed |= self._databases.abort((ended.xid, *ended.subxids))
        elif isinstance(ended, xact.Prepare):
            if transaction is not None:
                transaction.gid = ended.gid
        elif isinstance(ended, xact.Assignment):
            for child in ended.subxids:
                self._set_state_of(self.transactions.enter(child, ended.top_xid, record.lsn), child)
        return None

    def _commit(self, record: Record, commit: xact.Commit) -> CommittedTransaction | None:
        family = self.transactions.family(commit.xid)
        transaction = self.transactions.leave(commit.xid, commit.subxids)
        self._skimmer.forget({*family, *commit.subxids})
        committed = None
        if transaction is not None:
            fields = (commit.time_us, commit.database, record.origin, commit.gid)
            ended = Ended(commit.xid, record.lsn, record.end_lsn, *fields)
            committed = self._completion.commit(ended, transaction, self.timeline)
        xids = (commit.xid, *commit.subxids)
        if self._databases.commit(xids, record.lsn):
            self.catalogs_changed = True
            if self._outdated_count != self._databases.outdated_count:
                self._outdated_count = self._databases.outdated_count
                self._skimmer.forget_files()
        return committed

    def _message(self, record: Record, transaction: OpenTransaction | None) -> LogicalMessage | None:
        emitted = message.parse(record)
        if emitted is not None and emitted.prefix == MARKER_PREFIX.encode():
            # NB: reported when the record is read, whether or not its transaction commits: a marker is a place in WAL.
            self.is_halted = self._on_marker is not None and self._on_marker(record.lsn, emitted.content)
            return None
        catalog = self._databases.captured(emitted.database) if emitted is not None else None
        if catalog is None or emitted is None:
            return None
        logical_message = LogicalMessage(
            position=NO_POSITION_YET if emitted.transactional else Position(self.timeline, record.lsn, 0),
            lsn=record.lsn,
            database=emitted.database,
            xid=transaction.xid if transaction is not None else INVALID_XID,
            transactional=emitted.transactional,
            prefix=catalog.dialect.decode(emitted.prefix),
            content=emitted.content,
            origin=record.origin,
        )
        if not emitted.transactional:
            return logical_message
        if transaction is not None:
            self._completion.add(
                record.lsn, transaction, partial(self._add_message, transaction, logical_message, record.xid)
            )
        return None

    def _add_message(self, transaction: OpenTransaction, logical_message: LogicalMessage, xid: Xid) -> None:
        emit_schema(transaction)
        transaction.add_item(xid, logical_message)
        self.transactions.grew(ITEM_OVERHEAD_BYTES + len(logical_message.content))

    def _heap2(self, record: Record, transaction: OpenTransaction | None) -> None:
        catalog = self._databases.captured(record.blocks[0].locator.db) if record.blocks else None
        if catalog is None:
            self._foreign(record, transaction)
        elif not self._redo(catalog, record, transaction) and transaction is not None:
            self._add_rows(record, transaction, catalog, self._changes.decode_heap2)

    def _heap(self, record: Record, transaction: OpenTransaction | None) -> None:
        if not record.blocks:
            if transaction is not None:
                add = partial(self._changes.decode_truncate, record, transaction, self._databases)
                self._completion.add(record.lsn, transaction, add)
            return
        catalog = self._databases.captured(record.blocks[0].locator.db)
        if catalog is None:
            self._foreign(record, transaction)
        elif not self._redo(catalog, record, transaction) and transaction is not None:
            self._add_rows(record, transaction, catalog, self._changes.decode_heap)

    def _add_rows(
        self,
        record: Record,
        transaction: OpenTransaction,
        catalog: Catalog,
        decode: Callable[[Record, OpenTransaction, Catalog], None],
    ) -> None:
        if transaction.passed_over:
            self._changes.pass_over(record, transaction, catalog)
        else:
            self._completion.add(record.lsn, transaction, partial(decode, record, transaction, catalog))

    def _foreign(self, record: Record, transaction: OpenTransaction | None) -> None:
        """Handle a record of the shared catalogs, or of a database that is not captured."""
        if not record.blocks:
            return
        locator = record.blocks[0].locator
        if self._databases.redo(record, _top_xid(transaction)):
            self.catalogs_changed = True
        elif locator.db != INVALID_OID:
            self._skimmer.file_is_passed_over(locator)

    def _redo(self, catalog: Catalog, record: Record, transaction: OpenTransaction | None) -> bool:
        """Update the mirror; return whether the record changed catalogs."""
        self._emit_pending(record, transaction)
        changed = catalog.redo(record, _top_xid(transaction))
        if changed and transaction is not None and transaction.is_kept:
            if transaction.schema is None:
                self._skimmer.set_aside(transaction)
                transaction.schema = SchemaTracker(catalog, transaction.xid)
            transaction.schema.touch(record.xid, record.lsn)
            self._skimmer.forget_own_files(transaction.xid)
            if record.rmgr in _WITH_ROWS:
                self._skimmer.file_is_catalog(record.blocks[0].locator)
        self.catalogs_changed |= changed
        return changed

    def _emit_pending(self, record: Record, transaction: OpenTransaction | None) -> None:
        """Emit pending catalog changes of another subtransaction before this record is processed."""
        schema = transaction.schema if transaction is not None else None
        if transaction is not None and schema is not None and schema.dirty_xid not in (INVALID_XID, record.xid):
            self._completion.add(record.lsn, transaction, partial(emit_schema, transaction))


def _top_xid(transaction: OpenTransaction | None) -> Xid:
    return INVALID_XID if transaction is None else transaction.xid
