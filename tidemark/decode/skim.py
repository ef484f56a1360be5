"""Takes the ordinary rows out of blocks of records and hands them to their transactions (`extract` has the loop).

What is ordinary is decided here, by what the decoder tells: a file's relation version as long as no transaction that
changed catalogs has committed since; a transaction as long as it has changed none itself, is kept, and has no TOAST
chunks waiting for their row. Whoever is in doubt says nothing: the loop then stops, and the decoder takes the record.
"""

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct

from tidemark.decode.extract import (
    FIRST_VERSION,
    KNOWN,
    NO_RECORD,
    NO_ROWS,
    ORDINARY,
    RUN_ROWS_MAX,
    UNKNOWN,
    RowExtractor,
)
from tidemark.decode.row_entries import ENTRY_BYTES, LSN_AT
from tidemark.decode.transactions import Ended, OpenTransaction, TransactionTable
from tidemark.model.lsn import INVALID_XID, Lsn, Oid, Xid
from tidemark.model.relation import RelFileLocator
from tidemark.wal.page import RecordBlock
from tidemark.wal.versions import WalFormat

FILES_MAX = 1 << 20  # told; then all are forgotten and looked at again
POSTGRES_EPOCH_US = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970-01-01
XID_MASK = 0xFFFFFFFF
_LSN = Struct("<Q")


class Skimmer:
    """The ordinary part of decoding."""

    def __init__(self, fmt: WalFormat, transactions: TransactionTable) -> None:
        self._transactions = transactions
        self._begun = False
        self._file_count = 0  # told since they were forgotten
        self._entries = bytearray(RUN_ROWS_MAX * ENTRY_BYTES)
        self._tuples = bytearray()
        self._run_xids, self._run_rows, self._run_bytes, self._run_records, self._run_times, self._run_databases = (
            array("q", bytes(8 * RUN_ROWS_MAX)) for _ in range(6)
        )
        self._extractor = RowExtractor(
            fmt.image_compressed,
            -1 if transactions.complete_from is None else transactions.complete_from & XID_MASK,
            self._entries,
            self._run_xids,
            self._run_rows,
            self._run_bytes,
            self._run_records,
            self._run_times,
            self._run_databases,
        )

    @property
    def is_full(self) -> bool:
        """Tell if the last skim stopped for want of room, not at a record that the decoder has to see."""
        full: bool = self._extractor.is_full
        return full

    def skim(self, block: RecordBlock, start: int) -> int:
        """Take the records of `block` from `start` on; return the first that is not ordinary, or the count.

        What was taken is for `hand_over`, which comes next.
        """
        if not self._begun:  # those from before it are partial
            self._begun = True
            for transaction in self._transactions:
                self.set_aside(transaction)
        if len(self._tuples) < len(block.linear):
            self._tuples = bytearray(len(block.linear))
        at: int = self._extractor.extract(
            block.linear,
            self._tuples,
            block.lsns,
            block.xids,
            block.rmgrs,
            block.infos,
            block.offsets,
            block.lengths,
            start,
            len(block),
        )
        return at

    def hand_over(self, block: RecordBlock) -> Iterator[tuple[OpenTransaction, Ended]]:
        """Give the rows that were taken to their transactions; yield those that commit among them, in order."""
        extractor, transactions = self._extractor, self._transactions
        entries, tuples = memoryview(self._entries), memoryview(self._tuples)
        row = byte = 0
        for run in range(extractor.run_count):
            stop, end, xid = self._run_rows[run], self._run_bytes[run], self._run_xids[run]
            record = self._run_records[run]
            if record != NO_RECORD:
                transaction = transactions.leave(Xid(xid), ())
                assert transaction is not None, "only of open ones it is known that they are ordinary"
                yield transaction, self._ended(block, run, record)
                continue
            transaction = transactions.of(Xid(xid)) if xid > 0 else self._enter(Xid(-xid), row)
            if transaction.is_kept:
                transaction.rows.extend(entries[row * ENTRY_BYTES : stop * ENTRY_BYTES], tuples[byte:end])
            row, byte = stop, end
        transactions.grew(row * ENTRY_BYTES + byte)

    def _ended(self, block: RecordBlock, run: int, record: int) -> Ended:
        return Ended(
            Xid(self._run_xids[run]),
            Lsn(block.lsns[record]),
            Lsn(block.ends[record]),
            self._run_times[run] + POSTGRES_EPOCH_US,
            Oid(self._run_databases[run]),
        )

    def _enter(self, xid: Xid, row: int) -> OpenTransaction:
        """Return the transaction that a row is the first of."""
        lsn: int = _LSN.unpack_from(self._entries, row * ENTRY_BYTES + LSN_AT)[0]
        transaction = self._transactions.enter(xid, INVALID_XID, Lsn(lsn))
        assert not transaction.partial, "what began before the first record is known"
        assert transaction.schema is None, "what has changed catalogs is known"
        return transaction

    # --- what is ordinary

    def file_has_rows(self, locator: RelFileLocator, number: int) -> None:
        """Say that the rows of a file are those of relation version `number`, for all who changed no catalog."""
        self._know_file(locator, FIRST_VERSION + number)

    def file_is_passed_over(self, locator: RelFileLocator) -> None:
        """Say that the rows of a file are none of ours."""
        self._know_file(locator, NO_ROWS)

    def _know_file(self, locator: RelFileLocator, value: int) -> None:
        if self._file_count >= FILES_MAX:
            self.forget_files()
        self._file_count += 1  # at most
        self._extractor.know_file(locator.spc, locator.db, locator.rel, value)

    def forget_files(self) -> None:
        """Look at each file anew: catalogs have changed."""
        self._file_count = 0
        self._extractor.forget_files()

    def look_at(self, xid: Xid, transaction: OpenTransaction) -> None:
        """Say what `xid` is after a record of it."""
        chunks = transaction.toast.get(xid)
        plain = transaction.is_kept and transaction.schema is None
        current = transaction.rows.versions is self._transactions.versions
        ordinary = plain and current and (chunks is None or chunks.byte_count == 0)
        self._extractor.know_xid(xid, ORDINARY if ordinary else KNOWN)

    def set_aside(self, transaction: OpenTransaction) -> None:
        """Say that rows of the whole transaction are not ordinary any more."""
        for xid in (transaction.xid, *transaction.children):
            self._extractor.know_xid(xid, KNOWN)

    def forget(self, xids: Iterable[Xid]) -> None:
        """Say that transactions or subtransactions have ended."""
        for xid in xids:
            self._extractor.know_xid(xid, UNKNOWN)

    def forget_all(self) -> None:
        """Look at everything anew."""
        self.forget_files()
        self._extractor.forget_xids()
        for transaction in self._transactions:
            self.set_aside(transaction)
