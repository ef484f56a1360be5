"""What transactions that are still open did to catalogs.

A mark says that an xid, top-level or sub, made or ended a row; the end of the xid settles its marks. The deleter is
the record's xid, never the tuple's xmax, which may be a lock. What a transaction changed is kept as *subjects*: the
relations, types, namespaces and databases whose rows it touched.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from tidemark.decode.catalog.heap import CatalogHeap, Tid
from tidemark.decode.catalog.layout import (
    CATALOG_OF_OID,
    PG_CLASS,
    PG_DATABASE,
    PG_ENUM,
    PG_NAMESPACE,
    PG_RANGE,
    PG_TYPE,
)
from tidemark.model.lsn import Oid, Xid
from tidemark.model.relation import RelFileLocator

UPDATERS_MAX = 1 << 20  # of multixacts that are remembered, the latest; foreign keys make many
_HALF_OF_XIDS = 1 << 31
_ALL_XIDS = (1 << 32) - 1


class Subject(NamedTuple):
    """Something that has a description: `kind` is the OID of the catalog that names it."""

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
    """Return what a row helps to describe."""
    return Subject(_KIND_OF_CATALOG[heap.layout.catalog.oid], heap.subject(packed))


def precedes(xid: int, other: int) -> bool:
    """Tell if `xid` is older than `other`, as the server compares 32-bit xids."""
    return (xid - other) & _ALL_XIDS >= _HALF_OF_XIDS


@dataclass(slots=True)
class PendingFile:
    """A copy of a catalog that is not the catalog yet."""

    heap: CatalogHeap
    owner: Xid  # sub- or top-level: its end decides


@dataclass(slots=True)
class OpenChanges:
    """What one open top-level transaction did to catalogs."""

    xid: Xid
    subjects: set[Subject] = field(default_factory=set)
    news: set[Subject] = field(default_factory=set)  # those of them that its view has not followed yet
    rewriting: dict[Oid, Xid] = field(default_factory=dict)  # catalogs that it copies, and which xid said so
    pending: dict[RelFileLocator, PendingFile] = field(default_factory=dict)
    views: dict[Oid, CatalogHeap] = field(default_factory=dict)  # catalogs that it sees in its own new file

    def note(self, subject: Subject) -> None:
        """Note that `subject` looks different to the transaction now."""
        self.subjects.add(subject)
        self.news.add(subject)


class Fate(Enum):
    """What became of a transaction."""

    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


class Marks:
    """Which rows wait for the end of which xid."""

    def __init__(self, *, learning_from: Xid | None) -> None:
        """`learning_from`: a seed is being taken, and this was the next xid when WAL began to be read for it."""
        self.learning_from = learning_from
        self.aborted: set[Xid] = set()  # xids that had marks, while learning all, that a copy may meet as running
        self._committed: set[Xid] = set()  # while learning: all
        self._presumed: set[Xid] = (
            set()
        )  # while learning: xids whose writing was not seen, and whose end was not either
        self.updaters: dict[Xid, Xid] = {}  # while learning: who updates, by multixact
        self._rows: dict[Xid, list[tuple[CatalogHeap, Tid]]] = {}

    @property
    def learning(self) -> bool:
        """Tell if a seed is being taken: most rows, and older transactions, are not known."""
        return self.learning_from is not None

    def is_older_than_learning(self, xid: Xid) -> bool:
        """Tell if what `xid` did before the seed's WAL begins is not known."""
        return self.learning_from is not None and precedes(xid, self.learning_from)

    def add(self, xid: Xid, heap: CatalogHeap, tid: Tid) -> None:
        """Let the row at `tid` wait for `xid`."""
        self._rows.setdefault(xid, []).append((heap, tid))

    def note_multixact(self, multixact: Xid, updater: Xid) -> None:
        """Remember who of a multixact's members updates the row."""
        if len(self.updaters) >= UPDATERS_MAX:
            del self.updaters[next(iter(self.updaters))]
        self.updaters[multixact] = updater

    def commit(self, xid: Xid) -> None:
        """Settle the marks of `xid`: it committed."""
        if self.learning:
            self._committed.add(xid)
        for heap, tid in self._rows.pop(xid, ()):
            heap.commit(tid, xid)

    def abort(self, xid: Xid) -> bool:
        """Settle the marks of `xid`, which aborted; tell if there were any."""
        rows = self._rows.pop(xid, None)
        if self.learning or rows is not None:
            self.aborted.add(xid)
        for heap, tid in rows or ():
            heap.abort(tid, xid)
        return rows is not None

    def subjects(self, xid: Xid) -> Iterator[Subject]:
        """Give the subjects whose rows wait for `xid`."""
        for heap, tid in self._rows.get(xid, ()):
            packed = heap.known_bytes(tid)
            if packed and heap.layout.fits(packed):
                yield subject_of(heap, packed)

    def fate(self, xid: Xid) -> Fate:
        """Tell what became of an xid that wrote to a catalog, and of which the row itself does not tell."""
        if xid in self._rows:
            return Fate.OPEN
        if xid in self.aborted:
            return Fate.ABORTED
        if self.learning and xid not in self._committed:
            self._presumed.add(xid)
            return Fate.OPEN
        return Fate.COMMITTED

    def fate_if_younger(self, xid: Xid) -> Fate:
        """Tell what became of an xid while learning; one from before has ended, and SQL shows what it did."""
        return Fate.COMMITTED if self.is_older_than_learning(xid) else self.fate(xid)

    def forget_aborted(self, oldest_running: Xid) -> bool:
        """Forget the aborted xids that no copy will meet as running, for none is being made; tell if there were any.

        The end of a transaction is in WAL before the server holds it for ended: a copy that begins between the two
        still takes it for running. RUNNING_XACTS tells that the moment has passed.
        """
        past = set() if self.learning else {xid for xid in self.aborted if precedes(xid, oldest_running)}
        self.aborted -= past
        return bool(past)

    def stop_learning(self) -> None:
        """Hold that all open transactions are known from here on.

        What was open before learning began has ended by now. If its end was not seen, it came before, and was a
        commit: the server would have marked rows of an aborted transaction when it copied them.
        """
        for xid in self._presumed:
            if self.is_older_than_learning(xid):
                self.commit(xid)
        self._presumed.clear()
        self._committed.clear()
        self.updaters.clear()
        self.learning_from = None

    def open_xids(self) -> Collection[Xid]:
        """Return the xids that rows wait for."""
        return self._rows.keys()
