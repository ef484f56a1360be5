"""Extracts the ordinary rows from blocks of records and adds them to their transactions (`extract` has the loop).

This module decides what is ordinary, from the decoder's information: a file's relation version until a transaction with
catalog changes commits; a transaction if it is kept and has no TOAST chunks waiting for their row. A transaction that
has changed a catalog has separate versions of files, until its next change. Without information the loop stops, and
the decoder processes the record.

Transactions with only a few rows are pending here until their commit; the others are in the `TransactionTable`.
"""

from array import array
from collections.abc import Iterable
from functools import partial

from tidemark.decode.datum.row_entries import ENTRY_BYTES
from tidemark.decode.datum.tuples import TupleLayout
from tidemark.decode.transactions.extract import RowExtractor
from tidemark.decode.transactions.file_versions import (
    FIRST_VERSION,
    HAS_CHUNKS,
    NO_ROWS,
    OWN_IS_REWRITE,
    FileVersions,
)
from tidemark.decode.transactions.pending_rows import (
    BYTE_ENDS,
    END_COLUMNS,
    LONG,
    RESTART_LSNS,
    ROW_ENDS,
    ROWS_MAX,
    RUN_COLUMNS,
    SLOT_COLUMNS,
    SLOTS_MAX,
    SMALL_BYTES,
    SMALL_ROWS,
    PendingRows,
)
from tidemark.decode.transactions.ports import CatalogRow, PendingTransaction
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun, SmallTransactions
from tidemark.decode.transactions.reorder_buffer.committed_transaction import Ended
from tidemark.decode.transactions.reorder_buffer.open_transaction import OpenTransaction
from tidemark.decode.transactions.reorder_buffer.transactions import TransactionTable
from tidemark.decode.transactions.xid_states import KNOWN, NONE, ORDINARY, PASSED_OVER, SEES_OWN, UNKNOWN
from tidemark.model.lsn import XID_MASK, Lsn, Oid, TimelineId, Xid
from tidemark.model.relation import RelFileLocator
from tidemark.wal.page import RECORDS_MAX, RecordBlock
from tidemark.wal.record import Record
from tidemark.wal.versions import WalFormat

FILES_MAX = 1 << 20  # known files; above it all are forgotten
PENDING_ROWS_MAX = 8192  # of all pending transactions: each call moves them once
PENDING_BYTES_MAX = 1 << 20
BLOCKS_MAX = 64  # whose chunks are held: with more, a value waits for long, or its row is not coming


def _columns(count: int, length: int) -> "list[array[int]]":
    return [array("q", bytes(8 * length)) for _ in range(count)]


class Skimmer:
    """The ordinary part of decoding."""

    def __init__(self, fmt: WalFormat, transactions: TransactionTable) -> None:
        self._transactions = transactions
        self._begun = False
        self._file_count = 0  # known since the last `forget_files`, at most
        self._own_files: dict[Xid, dict[RelFileLocator, int]] = {}  # their values, by top-level transaction
        self._own_file_count = 0
        self._catalog_files: dict[RelFileLocator, int] = {}  # their numbers, in order from 1 on
        self._carried: list[tuple[int, RecordBlock]] = []  # blocks with chunks that are held; numbers of their records
        self._entries, self._arranged = bytearray(ROWS_MAX * ENTRY_BYTES), bytearray(ROWS_MAX * ENTRY_BYTES)
        self._tuples, self._arranged_tuples = bytearray(), bytearray()
        self._runs, self._ends = _columns(RUN_COLUMNS, ROWS_MAX), _columns(END_COLUMNS, ROWS_MAX)
        self._slots = _columns(SLOT_COLUMNS, SLOTS_MAX)
        self._pending = PendingRows(self._entries, self._arranged, self._runs, self._ends, self._slots)
        complete_from = transactions.complete_from
        complete_from_xid = NONE if complete_from is None else complete_from & XID_MASK
        self._files = FileVersions()
        self._extractor = RowExtractor(fmt.image_compressed, complete_from_xid, self._pending, self._files)
        self.catalog_rows = self._extractor.catalog_rows
        transactions.pending_transactions = self

    @property
    def is_full(self) -> bool:
        """Return whether the last skim stopped for lack of space, not at a record for the decoder."""
        full: bool = self._extractor.is_full
        return full

    def skim(self, block: RecordBlock, start: int) -> int:
        """Process the records of `block` from `start` on; return the first one not processed, or the count.

        Rows of transactions that are not pending were added to them. Committed transactions are in `committed`,
        followed by `ended`; if `ended` has one, there is more to skim.
        """
        transactions, extractor = self._transactions, self._extractor
        if not self._begun:  # transactions from before the first record are partial
            self._begun = True
            for transaction in transactions:
                self.set_aside(transaction)
        self._make_space(len(block.linear) + self._extractor.chunks.carried_size)
        others_lsn, count = transactions.others_lsn, block.count
        extractor.next_xid = transactions.next_xid
        at: int = extractor.extract(
            block.linear,
            self._tuples,
            self._arranged_tuples,
            block.lsns,
            block.ends,
            block.xids,
            block.rmgrs,
            block.infos,
            block.offsets,
            block.lengths,
            start,
            count,
            NONE if others_lsn is None else others_lsn,
        )
        transactions.observe_next_xid(extractor.next_xid)
        if self._pending.run_count:
            self._hand_over()
        return at

    def _make_space(self, size: int) -> None:
        """Make space for a block's tuples and the pending ones; move transactions that are not small to the table."""
        pending, slots = self._pending, self._slots
        _, _, rows, sizes, *_ = slots
        too_many = pending.row_count > PENDING_ROWS_MAX or pending.tuple_count > PENDING_BYTES_MAX
        for number in self._live() if too_many or pending.needs_moves else ():
            slot = number % SLOTS_MAX
            is_small = rows[slot] <= SMALL_ROWS and sizes[slot] <= SMALL_BYTES
            if too_many or not is_small or number < pending.tail - LONG:
                self._transactions.find(Xid(slots[0][slot] & XID_MASK))
        needed = pending.tuple_count + size
        if len(self._tuples) < needed:
            kept = self._tuples[: pending.tuple_count]
            self._tuples, self._arranged_tuples = kept + bytes(needed - len(kept)), bytearray(needed)

    def _hand_over(self) -> None:
        """Add rows of transactions that are not pending to their transactions."""
        pending = self._pending
        arranged = pending.is_arranged
        entries = memoryview(self._arranged if arranged else self._entries)[pending.others_at * ENTRY_BYTES :]
        tuples = memoryview(self._arranged_tuples if arranged else self._tuples)[pending.others_byte_at :]
        xids, rows, sizes, more = self._runs
        row = byte = counted = 0
        for run in range(pending.run_count):
            stop, end = rows[run], sizes[run]
            transaction = self._transactions.of(Xid(xids[run]))
            if transaction.is_kept:
                part = entries[row * ENTRY_BYTES : stop * ENTRY_BYTES]
                transaction.rows.extend(part, tuples[byte:end], more[run] - counted)
            row, byte, counted = stop, end, more[run]
        self._transactions.grew(row * ENTRY_BYTES + byte)

    def take_held(self, block: RecordBlock) -> list[Record]:
        """Return the records up to the current block with rows that wait for a confirmation, or chunks for their row.

        The caller processes them.
        """
        chunks = self._extractor.chunks
        here: int = chunks.first_record
        rows: list[int] = self._extractor.speculative.take()
        numbers: list[int] = sorted([*chunks.take(), *(here + row for row in rows)])
        blocks = dict([*self._carried, (here, block)])
        self._carried.clear()
        return [blocks[number - number % RECORDS_MAX].record(number % RECORDS_MAX) for number in numbers]

    def take_catalog_rows(self, block: RecordBlock) -> list[CatalogRow]:
        """Return the rows of catalogs that were held, in order, without a file if the caller reads the record."""
        return list(map(CatalogRow._make, self.catalog_rows.take(block.linear, [None, *self._catalog_files])))

    def carry(self, block: RecordBlock) -> bool:
        """Hold the chunks also after this block, whose last record was read; return whether this is possible."""
        chunks = self._extractor.chunks
        if chunks.left == 0:
            self._carried.clear()
        here: int = chunks.first_record
        if self.catalog_rows.count:
            return False
        if self._extractor.speculative.count or len(self._carried) >= BLOCKS_MAX or not chunks.carry(block.linear):
            return False
        if chunks.left:
            block.is_kept = True
            oldest: int = chunks.oldest_record
            self._carried = [each for each in (*self._carried, (here, block)) if each[0] + RECORDS_MAX > oldest]
        return True

    def committed(self, timeline: TimelineId) -> CommittedRun | None:
        """Return the pending transactions that committed."""
        count = self._pending.end_count
        if not count:
            return None
        rows, sizes = self._ends[ROW_ENDS][:count], self._ends[BYTE_ENDS][:count]
        return CommittedRun(
            SmallTransactions(timeline, *[column[:count] for column in self._ends[:ROW_ENDS]]),
            self._ends[RESTART_LSNS][:count],
            rows,
            sizes,
            self._transactions.versions,
            bytes(memoryview(self._arranged)[: rows[-1] * ENTRY_BYTES]),
            bytes(memoryview(self._arranged_tuples)[: sizes[-1]]),
        )

    def ended(self, block: RecordBlock) -> tuple[Ended, OpenTransaction] | None:
        """Return the transaction of the table that committed last, after all pending ones; None if there is none."""
        extractor = self._extractor
        record = extractor.other_end
        if record == NONE:
            return None
        xid = Xid(block.xids[record])
        transaction = self._transactions.leave(xid, ())
        assert transaction is not None, "only of open ones it is known that they are ordinary"
        lsn, end_lsn = Lsn(block.lsns[record]), Lsn(block.ends[record])
        return Ended(xid, lsn, end_lsn, extractor.other_time, Oid(extractor.other_database)), transaction

    # Pending transactions

    @property
    def pending_count(self) -> int:
        """The number of pending transactions."""
        count: int = self._pending.pending_count
        return count

    @property
    def first_lsn(self) -> Lsn | None:
        """The least first LSN of pending transactions."""
        lsn: int = self._pending.first_lsn()
        return None if lsn == NONE else Lsn(lsn)

    def _live(self) -> Iterable[int]:
        xids = self._slots[0]
        return [number for number in range(self._pending.head, self._pending.tail) if xids[number % SLOTS_MAX]]

    def xids(self) -> list[Xid]:
        """Return the pending transactions."""
        return [Xid(self._slots[0][number % SLOTS_MAX] & XID_MASK) for number in self._live()]

    def remove_pending(self, xid: Xid) -> PendingTransaction | None:
        """Remove and return the pending transaction to which `xid` belongs; None if it is not pending."""
        slot: int = self._extractor.pending_slot(xid)
        if slot == NONE:
            return None
        self._pending.sort_rows()
        xids, firsts, rows, sizes, row_at, byte_at, more = self._slots
        top = Xid(xids[slot] & XID_MASK)
        row, byte = row_at[slot], byte_at[slot]
        entries = memoryview(self._entries)[row * ENTRY_BYTES : (row + rows[slot]) * ENTRY_BYTES]
        tuples = memoryview(self._tuples)[byte : byte + sizes[slot]]
        children = frozenset(map(Xid, iter(partial(self._extractor.remove_child, top), 0)))
        self._extractor.release(top)
        return PendingTransaction(top, Lsn(firsts[slot]), children, entries, tuples, more[slot])

    # Ordinary files and transactions

    def file_has_rows(self, locator: RelFileLocator, number: int, *, selected: bool) -> None:
        """Set a file's relation version `number`, for all transactions without catalog changes.

        Rows that are not `selected` are counted in their transaction, without tuples.
        """
        self._set_file(locator, FIRST_VERSION + number if selected else NONE - number)

    def file_is_passed_over(self, locator: RelFileLocator) -> None:
        """Mark a file whose rows are skipped."""
        self._set_file(locator, NO_ROWS)

    def file_has_chunks(self, locator: RelFileLocator) -> None:
        """Mark a file whose rows are chunks of other rows' values."""
        self._set_file(locator, HAS_CHUNKS)

    def set_layout(self, number: int, layout: TupleLayout) -> None:
        """Set the layout of a relation version whose rows can point to chunks."""
        self._extractor.chunks.set_layout(number, layout.lengths, layout.aligns)

    def file_can_be_passed_over(self, locator: RelFileLocator) -> None:
        """Mark a file in which rows of transactions that are passed over are skipped; others' rows are not."""
        self._files.set_passed(locator.spc, locator.db, locator.rel)

    def file_is_catalog(self, locator: RelFileLocator) -> None:
        """Mark the file of a tracked catalog: records on it are held until the decoder is needed."""
        if locator not in self._catalog_files:
            number = self._catalog_files[locator] = len(self._catalog_files) + 1
            self._files.set_catalog(locator.spc, locator.db, locator.rel, number)

    def _set_file(self, locator: RelFileLocator, value: int) -> None:
        if self._file_count >= FILES_MAX:
            self.forget_files()
        self._file_count += 1  # at most: a file can be counted twice
        self._files.set(locator.spc, locator.db, locator.rel, value)

    def own_file_has_rows(
        self, transaction: OpenTransaction, locator: RelFileLocator, number: int, *, selected: bool, rewritten: bool
    ) -> None:
        """Do the same for one transaction that changed a catalog, until it changes one again or an abort undoes that.

        `rewritten`: the file is the transient heap of a rewrite, and `number` is the version of its table.
        """
        number = number << 1 | (OWN_IS_REWRITE if rewritten else 0)
        self._set_own_file(transaction.xid, locator, FIRST_VERSION + number if selected else NONE - number)

    def own_file_has_chunks(self, transaction: OpenTransaction, locator: RelFileLocator) -> None:
        """Mark a file with chunks for one transaction that changed a catalog, until it sees other versions."""
        self._set_own_file(transaction.xid, locator, HAS_CHUNKS)

    def own_file_is_passed_over(self, transaction: OpenTransaction, locator: RelFileLocator) -> None:
        """Skip the rows of a file in one transaction that changed a catalog, until it sees other versions."""
        self._set_own_file(transaction.xid, locator, NO_ROWS)

    def _set_own_file(self, top: Xid, locator: RelFileLocator, value: int) -> None:
        if self._own_files.get(top, {}).get(locator) == value:
            return
        if self._own_file_count >= FILES_MAX:
            self._forget_all_own_files()
        self._own_file_count += 1  # at most, too
        self._own_files.setdefault(top, {})[locator] = value
        self._files.set_own(top, locator.spc, locator.db, locator.rel, value)

    def forget_own_files(self, top: Xid) -> None:
        """Forget the files of one transaction: it sees other versions now."""
        for locator in self._own_files.pop(top, ()):
            self._own_file_count -= 1
            self._files.set_own(top, locator.spc, locator.db, locator.rel, 0)

    def _forget_all_own_files(self) -> None:
        self._own_files.clear()
        self._own_file_count = 0
        self._files.forget_own()

    def forget_files(self) -> None:
        """Forget all files: catalogs have changed."""
        self._file_count = 0
        self._catalog_files.clear()
        self._files.forget()
        self._forget_all_own_files()

    def set_state_of(self, xid: Xid, transaction: OpenTransaction) -> None:
        """Update the state of `xid` after one of its records."""
        if transaction.passed_over:
            self._extractor.set_xid_state(xid, PASSED_OVER)
            return
        chunks = transaction.toast.get(xid)
        current = transaction.rows.versions is self._transactions.versions
        if not (transaction.is_kept and current and (chunks is None or chunks.byte_count == 0)):
            self._extractor.set_xid_state(xid, KNOWN)
        else:
            own = transaction.schema is not None
            self._extractor.set_xid_state(xid, SEES_OWN * transaction.xid if own else ORDINARY)

    def set_aside(self, transaction: OpenTransaction) -> None:
        """Mark the whole transaction as not ordinary."""
        for xid in (transaction.xid, *transaction.children):
            self._extractor.set_xid_state(xid, PASSED_OVER if transaction.passed_over else KNOWN)

    def forget(self, xids: Iterable[Xid]) -> None:
        """Remove transactions or subtransactions that have ended."""
        for xid in xids:
            self._extractor.set_xid_state(xid, UNKNOWN)
            self.forget_own_files(xid)

    def forget_all(self) -> None:
        """Forget all files and transactions; open transactions are no longer ordinary."""
        self.forget_files()
        self._extractor.chunks.forget_layouts()
        transactions = list(self._transactions)
        self._extractor.forget_xids()
        for transaction in transactions:
            self.set_aside(transaction)
