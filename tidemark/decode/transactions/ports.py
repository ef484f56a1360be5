"""What the decoder needs from outside itself: a catalog to resolve rows with, a place for what memory cannot hold."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from tidemark.decode.types.codec import Dialect
from tidemark.model.lsn import Lsn, Oid, Xid
from tidemark.model.relation import Relation, RelFileLocator
from tidemark.wal.record import Record


class SpillPort(Protocol):
    """Where parts of large transactions go."""

    def write(self, *parts: bytes | bytearray) -> int:
        """Keep `parts`, one behind the other; return the handle by which they are read."""

    def read(self, handle: int) -> bytes:
        """Return the content kept under `handle`."""

    def release(self, handle: int) -> None:
        """Forget the content kept under `handle`."""


class PendingTransaction(NamedTuple):
    """What there is to a transaction that is held: rows (`row_entries`), to be copied at once."""

    xid: Xid  # the top-level one, whichever of it was asked for
    first_lsn: Lsn
    children: frozenset[Xid]  # subtransactions that were not rolled back
    entries: memoryview
    tuples: memoryview
    more: int  # rows that the entries stand for beside one each


class Holder(Protocol):
    """Who holds transactions to which there is nothing but a few rows so far."""

    @property
    def pending_count(self) -> int:
        """How many transactions are held."""

    @property
    def first_lsn(self) -> Lsn | None:
        """The least first LSN of those that are held."""

    def xids(self) -> Sequence[Xid]:
        """Return those that are held."""

    def take_out(self, xid: Xid) -> PendingTransaction | None:
        """Hold the transaction no longer to which `xid` belongs; None if it is not held."""


class Catalog(Protocol):
    """One database's catalogs as the WAL read so far leaves them, seen with the eyes of any open transaction."""

    @property
    def database(self) -> Oid:
        """OID of the database."""

    @property
    def dialect(self) -> Dialect:
        """The database's encoding, and what else output functions depend on."""

    @property
    def outdated_count(self) -> int:
        """A number that grows with each commit after which a file, or its relation, may be another than was told."""

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Follow `record`; tell if it was about a tracked catalog."""

    def commit(self, xids: Collection[Xid], lsn: Lsn) -> bool:
        """Make what `xids` changed visible to all; tell if they changed a tracked catalog."""

    def abort(self, xids: Collection[Xid]) -> bool:
        """Undo what `xids` changed; tell if they changed a tracked catalog."""

    def abort_older_than(self, oldest_running: Xid) -> bool:
        """Undo what transactions did that a crash left without an end; tell if it was anything."""

    def resolve(self, locator: RelFileLocator, top_xid: Xid) -> Relation | None:
        """Return the relation whose file `locator` is, in the version that `top_xid` sees; None: no such file."""

    def relation(self, oid: Oid, top_xid: Xid | None) -> Relation | None:
        """Return the version of a relation that `top_xid` sees, None seeing what is committed; None: no such OID."""

    def object_name(self, kind: Oid, oid: Oid, top_xid: Xid) -> str | None:
        """Return what the type `kind` (`regclass` or its like) prints for an OID, as `top_xid` sees it; None: none."""

    def take_touched(self, top_xid: Xid) -> Collection[Oid]:
        """Return, once, the relations that may look different to `top_xid` from when this was asked last."""

    def rewriting(self, top_xid: Xid) -> Collection[Oid]:
        """Return the relations that `top_xid` has a transient heap for: a command is rewriting them."""


class DatabaseTurn(NamedTuple):
    """A database that comes into the capture, or leaves it, when a transaction commits."""

    catalog: Catalog
    relations: Sequence[Relation]  # that it has then, or had
    appears: bool


class Databases(Protocol):
    """The databases of a cluster whose catalogs are followed."""

    @property
    def outdated_count(self) -> int:
        """A number that grows with each commit after which a file, or its relation, may be another than was told."""

    def captured(self, database: Oid) -> Catalog | None:
        """Return the catalogs of a database whose changes are given out."""

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Follow `record`, of whichever database; tell if it was about tracked catalogs."""

    def turns(self, xid: Xid) -> Sequence[DatabaseTurn]:
        """Return what comes and goes when `xid` commits; asked before `commit`."""

    def commit(self, xids: Collection[Xid], lsn: Lsn) -> bool:
        """Make what `xids` changed visible to all; tell if they changed a tracked catalog."""

    def abort(self, xids: Collection[Xid]) -> bool:
        """Undo what `xids` changed; tell if they changed a tracked catalog."""

    def abort_older_than(self, oldest_running: Xid) -> bool:
        """Undo what transactions did that a crash left without an end; tell if it was anything."""
