"""The changes of open transactions to catalogs.

A mark records that an xid, top-level or sub, inserted or deleted a row; the end of the xid resolves its marks. The
deleter is the record's xid, never the tuple's xmax, which may be a lock. The changed objects are kept as *subjects*:
the relations, types, namespaces and databases whose rows the transaction changed.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from tidemark.decode.catalog.heap import CatalogHeap
from tidemark.decode.catalog.layout import (
    CATALOG_OF_OID,
    PG_CLASS,
    PG_DATABASE,
    PG_ENUM,
    PG_NAMESPACE,
    PG_RANGE,
    PG_TYPE,
)
from tidemark.decode.catalog.packed_rows import Tid
from tidemark.model.lsn import HALF_OF_XIDS, XID_MASK, Oid, Xid
from tidemark.model.relation import RelFileLocator

UPDATERS_MAX = 1 << 20  # of multixacts that are remembered, the latest; foreign keys create many


class Subject(NamedTuple):
    """An object with a description: `kind` is the OID of the catalog that names it."""

    kind: Oid
    oid: Oid


_KIND_OF_CATALOG = dict.fromkeys(CATALOG_OF_OID, PG_CLASS.oid) | {
    PG_TYPE.oid: PG_TYPE.oid,
    PG_ENUM.oid: PG_TYPE.oid,
    PG_RANGE.oid: PG_TYPE.oid,
    PG_NAMESPACE.oid: PG_NAMESPACE.oid,
    PG_DATABASE.oid: PG_DATABASE.oid,
}


def subject_of(heap: CatalogHeap, packed: bytes) -> Subject:
    """Return the object that a row belongs to."""
    return Subject(_KIND_OF_CATALOG[heap.layout.catalog.oid], heap.subject(packed))


def precedes(xid: int, other: int) -> bool:
    """Return whether `xid` is older than `other`, as the server compares 32-bit xids."""
    return (xid - other) & XID_MASK >= HALF_OF_XIDS


@dataclass(slots=True)
class PendingFile:
    """A copy of a catalog that is not the catalog yet."""

    heap: CatalogHeap
    owner: Xid  # sub- or top-level: its end decides


@dataclass(slots=True)
class OpenChanges:
    """The changes of one open top-level transaction to catalogs."""

    xid: Xid
    subjects: set[Subject] = field(default_factory=set)
    unapplied: set[Subject] = field(default_factory=set)  # subjects that its view has not followed yet
    rewriting: dict[Oid, Xid] = field(default_factory=dict)  # catalogs that it copies, and the xid that showed it
    pending: dict[RelFileLocator, PendingFile] = field(default_factory=dict)
    views: dict[Oid, CatalogHeap] = field(default_factory=dict)  # catalogs for which it uses its own new file

    def record(self, subject: Subject) -> None:
        """Record that `subject` looks different to the transaction now."""
        self.subjects.add(subject)
        self.unapplied.add(subject)


class XidStatus(Enum):
    """The status of a transaction, as in the commit log."""

    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


class Marks:
    """Which rows wait for the end of which xid."""

    def __init__(self, *, seeding_from: Xid | None) -> None:
        """`seeding_from`: the next xid at the start of the seed's WAL; None: no seed is in progress."""
        self.seeding_from = seeding_from
        self.aborted: set[Xid] = set()  # that a copy may still treat as running: xids with marks; during a seed all
        self._committed: set[Xid] = set()  # during a seed: all
        self._presumed: set[Xid] = set()  # during a seed: xids whose changes and end were not seen
        self.updaters: dict[Xid, Xid] = {}  # during a seed: the updater of each multixact
        self._rows: dict[Xid, list[tuple[CatalogHeap, Tid]]] = {}

    @property
    def seeding(self) -> bool:
        """Return whether a seed is in progress: most rows, and older transactions, are not known."""
        return self.seeding_from is not None

    def is_older_than_seed(self, xid: Xid) -> bool:
        """Return whether the changes of `xid` may be from before the seed's WAL."""
        return self.seeding_from is not None and precedes(xid, self.seeding_from)

    def add(self, xid: Xid, heap: CatalogHeap, tid: Tid) -> None:
        """Add a mark of `xid` on the row at `tid`."""
        self._rows.setdefault(xid, []).append((heap, tid))

    def record_multixact(self, multixact: Xid, updater: Xid) -> None:
        """Record which member of a multixact updates the row."""
        if len(self.updaters) >= UPDATERS_MAX:
            del self.updaters[next(iter(self.updaters))]
        self.updaters[multixact] = updater

    def commit(self, xid: Xid) -> None:
        """Apply the commit of `xid` to its marks."""
        if self.seeding:
            self._committed.add(xid)
        for heap, tid in self._rows.pop(xid, ()):
            heap.commit(tid, xid)

    def abort(self, xid: Xid) -> bool:
        """Apply the abort of `xid` to its marks; return whether there were any."""
        rows = self._rows.pop(xid, None)
        if self.seeding or rows is not None:
            self.aborted.add(xid)
        for heap, tid in rows or ():
            heap.abort(tid, xid)
        return rows is not None

    def subjects(self, xid: Xid) -> Iterator[Subject]:
        """Yield the subjects whose rows wait for `xid`."""
        for heap, tid in self._rows.get(xid, ()):
            packed = heap.known_bytes(tid)
            if packed and heap.layout.fits(packed):
                yield subject_of(heap, packed)

    def status(self, xid: Xid) -> XidStatus:
        """Return the status of an xid that wrote to a catalog, and that the row itself does not show."""
        if xid in self._rows:
            return XidStatus.OPEN
        if xid in self.aborted:
            return XidStatus.ABORTED
        if self.seeding and xid not in self._committed:
            self._presumed.add(xid)
            return XidStatus.OPEN
        return XidStatus.COMMITTED

    def status_if_younger(self, xid: Xid) -> XidStatus:
        """Return the status of an xid during a seed; one from before has ended, and SQL shows its changes."""
        return XidStatus.COMMITTED if self.is_older_than_seed(xid) else self.status(xid)

    def forget_aborted(self, oldest_running: Xid) -> bool:
        """Drop aborted xids that no copy can treat as running; call this if no copy is in progress; return if any were.

        The end of a transaction is in WAL before the server considers it ended: a copy that begins between the two
        still treats it as running. RUNNING_XACTS shows that this moment has passed.
        """
        past = set() if self.seeding else {xid for xid in self.aborted if precedes(xid, oldest_running)}
        self.aborted -= past
        return bool(past)

    def end_seed(self, status: Callable[[Xid], XidStatus] | None = None) -> Collection[Xid]:
        """From now on all open transactions are known; return the older ones that `status` reports as open.

        Without `status`, transactions from before the seed's WAL have ended. If the end was not seen, it was an earlier
        commit: the server would have set hint bits in the rows of an aborted transaction when it copied them.
        """
        still_open = []
        for xid in self._presumed:
            if self.is_older_than_seed(xid) and xid in self._rows:
                match XidStatus.COMMITTED if status is None else status(xid):
                    case XidStatus.COMMITTED:
                        self.commit(xid)
                    case XidStatus.ABORTED:
                        self.abort(xid)
                    case XidStatus.OPEN:
                        still_open.append(xid)
        self._presumed.clear()
        self._committed.clear()
        self.updaters.clear()
        self.seeding_from = None
        return still_open

    def open_xids(self) -> Collection[Xid]:
        """Return the xids that rows wait for."""
        return self._rows.keys()
