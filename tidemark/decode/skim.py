"""Takes the ordinary rows out of blocks of records and hands them to their transactions (`extract` has the loop).

What is ordinary is decided here, by what the decoder tells: a file's relation version as long as no transaction that
changed catalogs has committed since; a transaction as long as it has changed none itself, is whole, and has no TOAST
chunks waiting for their row. Whoever is in doubt says nothing: the loop then stops, and the decoder takes the record.
"""

from array import array
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from tidemark.decode.extract import (
    FIRST_VERSION,
    KNOWN,
    NO_ROWS,
    ORDINARY,
    RUN_ROWS_MAX,
    UNKNOWN,
    RowExtractor,
)
from tidemark.decode.row_entries import ENTRY_BYTES, LSN_AT
from tidemark.decode.transactions import OpenTransaction, TransactionTable
from tidemark.model.lsn import INVALID_XID, Lsn, Oid, Xid
from tidemark.model.relation import RelFileLocator
from tidemark.wal.page import RecordBlock
from tidemark.wal.versions import WalFormat

FILES_MAX = 1 << 20  # told; then all are forgotten and looked at again
POSTGRES_EPOCH_US = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970-01-01
_LSN = Struct("<Q")


class PlainCommit(NamedTuple):
    """A commit record without subtransactions and all else that a commit can say."""

    time_us: int  # since 1970-01-01 UTC
    database: Oid


class Skimmer:
    """The ordinary part of decoding."""

    def __init__(self, fmt: WalFormat, transactions: TransactionTable) -> None:
        self._transactions = transactions
        self._file_count = 0  # told since they were forgotten
        self._entries = bytearray(RUN_ROWS_MAX * ENTRY_BYTES)
        self._tuples = bytearray()
        self._run_xids = array("q", bytes(8 * RUN_ROWS_MAX))
        self._run_rows = array("q", bytes(8 * RUN_ROWS_MAX))
        self._run_bytes = array("q", bytes(8 * RUN_ROWS_MAX))
        self._extractor = RowExtractor(
            fmt.image_compressed, self._entries, self._run_xids, self._run_rows, self._run_bytes
        )

    def skim(self, block: RecordBlock, start: int) -> int:
        """Take the records of `block` from `start` on; return the first that the decoder has to see, or the count."""
        if len(self._tuples) < len(block.linear):
            self._tuples = bytearray(len(block.linear))
        extractor = self._extractor
        while True:
            start = extractor.extract(
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
            if extractor.run_count:
                self._hand_over(extractor.run_count, extractor.row_count, extractor.tuple_count)
            if not extractor.is_full:
                return start

    @property
    def plain_commit(self) -> PlainCommit | None:
        """What the record says at which the last skim stopped, if it is a commit that says no more than this."""
        extractor = self._extractor
        if not extractor.is_commit:
            return None
        return PlainCommit(extractor.commit_time + POSTGRES_EPOCH_US, Oid(extractor.commit_database))

    def _hand_over(self, run_count: int, row_count: int, tuple_count: int) -> None:
        entries, tuples = memoryview(self._entries), memoryview(self._tuples)
        row = byte = 0
        for run in range(run_count):
            stop, end = self._run_rows[run], self._run_bytes[run]
            xid = self._run_xids[run]
            transaction = self._transactions.of(Xid(xid)) if xid > 0 else self._enter(Xid(-xid), row)
            if not transaction.partial:
                transaction.rows.extend(entries[row * ENTRY_BYTES : stop * ENTRY_BYTES], tuples[byte:end])
            row, byte = stop, end
        self._transactions.grew(row_count * ENTRY_BYTES + tuple_count)

    def _enter(self, xid: Xid, row: int) -> OpenTransaction:
        """Return the transaction that a row is the first of."""
        lsn: int = _LSN.unpack_from(self._entries, row * ENTRY_BYTES + LSN_AT)[0]
        transaction = self._transactions.enter(xid, INVALID_XID, Lsn(lsn))
        assert transaction.partial or transaction.schema is None, "what has changed catalogs is known"
        self.look_at(xid, transaction)
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
        whole = not transaction.partial and transaction.schema is None
        current = transaction.rows.versions is self._transactions.versions
        ordinary = whole and current and (chunks is None or chunks.byte_count == 0)
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
