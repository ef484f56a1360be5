"""The decoder's ports: catalogs to resolve rows with, and storage for data that exceeds memory."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from tidemark.decode.types.codec import Dialect
from tidemark.model.lsn import Lsn, Oid, Xid
from tidemark.model.relation import Relation, RelFileLocator
from tidemark.wal.record import Record


class SpillPort(Protocol):
    """Storage for parts of large transactions."""

    def write(self, *parts: bytes | bytearray) -> int:
        """Store the concatenated `parts`; return a handle for reading them."""

    def read(self, handle: int) -> bytes:
        """Return the content stored under `handle`."""

    def release(self, handle: int) -> None:
        """Delete the content stored under `handle`."""


class PendingTransaction(NamedTuple):
    """A pending transaction's content: rows (`row_entries`), which the caller must copy at once."""

    xid: Xid  # always the top-level xid
    first_lsn: Lsn
    children: frozenset[Xid]  # subtransactions that were not rolled back
    entries: memoryview
    tuples: memoryview
    more: int  # additional rows for which the entries stand


class PendingTransactions(Protocol):
    """The holder of pending transactions, which have only a few rows so far."""

    @property
    def pending_count(self) -> int:
        """The number of pending transactions."""

    @property
    def first_lsn(self) -> Lsn | None:
        """The least first LSN of pending transactions."""

    def xids(self) -> Sequence[Xid]:
        """Return the pending transactions."""

    def remove_pending(self, xid: Xid) -> PendingTransaction | None:
        """Remove and return the pending transaction to which `xid` belongs; None if it is not pending."""


class CatalogRow(NamedTuple):
    """A row of a tracked catalog that a record inserted or deleted."""

    record: int  # number in its block
    xid: Xid
    file: RelFileLocator | None  # None: the rows of the record are not known
    tid: int  # block number in the high bits, line pointer in the low 16
    packed: bytes  # empty: deleted


class Catalog(Protocol):
    """One database's catalogs as of the WAL read so far, in the view of any open transaction."""

    @property
    def database(self) -> Oid:
        """OID of the database."""

    @property
    def dialect(self) -> Dialect:
        """The database's encoding and other settings on which output functions depend."""

    @property
    def outdated_count(self) -> int:
        """Increases with each commit that can change a file's relation or a relation's description."""

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Apply `record`; return whether it changed a tracked catalog."""

    def redo_rows(self, rows: Sequence[CatalogRow], xid: Xid, top_xid: Xid) -> int:
        """Apply rows of the transaction or subtransaction `xid`; return how many: the next one needs its record."""

    def commit(self, xids: Collection[Xid], lsn: Lsn) -> bool:
        """Make the changes of `xids` visible to all; return whether they changed a tracked catalog."""

    def abort(self, xids: Collection[Xid]) -> bool:
        """Undo the changes of `xids`; return whether they changed a tracked catalog."""

    def abort_older_than(self, oldest_running: Xid) -> bool:
        """Undo the changes of transactions that a crash left without an end; return whether there were any."""

    def resolve(self, locator: RelFileLocator, top_xid: Xid) -> Relation | None:
        """Return the relation of the file `locator` in the version that `top_xid` sees; None if no such file exists."""

    def relation(self, oid: Oid, top_xid: Xid | None) -> Relation | None:
        """Return the relation version that `top_xid` sees (None: the committed one); None if there is no such OID."""

    def object_name(self, kind: Oid, oid: Oid, top_xid: Xid) -> str | None:
        """Return the text of an OID of type `kind` (such as `regclass`) as `top_xid` sees it; None if there is none."""

    def pop_touched(self, top_xid: Xid) -> Collection[Oid]:
        """Return, once, the relations that may have changed in the view of `top_xid` since the last call."""

    def rewriting(self, top_xid: Xid) -> Collection[Oid]:
        """Return the relations for which `top_xid` has a transient heap: a command is rewriting them."""


class DatabaseSelectionChange(NamedTuple):
    """A database that the capture gains or loses when a transaction commits."""

    catalog: Catalog
    relations: Sequence[Relation]  # those that it has then, or had
    appears: bool
    is_dropped: bool


class DroppedTable(NamedTuple):
    """A table that a transaction drops."""

    database: Oid
    relation: Oid


class Databases(Protocol):
    """The databases of a cluster whose catalogs are mirrored."""

    @property
    def outdated_count(self) -> int:
        """Increases with each commit that can change a file's relation or a relation's description."""

    def captured(self, database: Oid) -> Catalog | None:
        """Return the catalogs of a database if its changes are captured."""

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Apply `record` of any database; return whether it changed tracked catalogs."""

    def selection_changes(self, xid: Xid) -> Sequence[DatabaseSelectionChange]:
        """Return the databases that are gained or lost when `xid` commits; called before `commit`."""

    def dropped_in_left(self, xid: Xid) -> Sequence[DroppedTable]:
        """Return the tables that `xid` drops in databases that were lost earlier; called before `commit`."""

    def commit(self, xids: Collection[Xid], lsn: Lsn) -> bool:
        """Make the changes of `xids` visible to all; return whether they changed a tracked catalog."""

    def abort(self, xids: Collection[Xid]) -> bool:
        """Undo the changes of `xids`; return whether they changed a tracked catalog."""

    def abort_older_than(self, oldest_running: Xid) -> bool:
        """Undo the changes of transactions that a crash left without an end; return whether there were any."""
