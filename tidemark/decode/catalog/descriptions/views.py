"""Caches of descriptions and look-ups: one for committed catalogs, and one for each transaction that changed catalogs.

A description is kept until one of its *subjects* changes, so work grows with the changes, not with the number of
objects. An object that does not exist, or is incomplete, is not cached: looking it up again costs little.
"""

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from typing import Generic, NamedTuple, TypeVar

from tidemark.decode.catalog.descriptions.described import (
    DescribedName,
    DescribedRelation,
    DescribedType,
    DescribedTypes,
)
from tidemark.decode.catalog.layout import PG_CLASS, PG_TYPE
from tidemark.decode.catalog.transactions import OpenChanges, Subject
from tidemark.model.lsn import Oid
from tidemark.model.relation import RelFileLocator

OTHERS_MAX = 65536  # subjects; beyond that, all subjects that the transaction itself changed are checked again instead

_Described = TypeVar("_Described", DescribedName, DescribedRelation, DescribedType)


class DescriptionCache(Generic[_Described]):
    """Descriptions of one kind by OID, also found by their subjects."""

    __slots__ = ("_kind", "_of", "_sets", "_users")

    def __init__(self, kind: Oid) -> None:
        """`kind`: the descriptions' kind of subject; each depends on the subject of this kind with its OID."""
        self._kind = kind
        self._of: dict[Oid, _Described] = {}
        # Equal descriptions depend on equal sets of subjects: so each set has its users, and each subject its sets.
        self._users: dict[frozenset[Subject], set[Oid]] = {}
        self._sets: dict[Subject, set[frozenset[Subject]]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def get(self, oid: Oid) -> _Described | None:
        """Return the cached description, if there is one."""
        return self._of.get(oid)

    def keep(self, oid: Oid, described: _Described) -> None:
        """Cache a description until `forget` names one of its subjects."""
        self._drop(oid)
        self._of[oid] = described
        users = self._users.get(described.subjects)
        if users is None:
            users = self._users[described.subjects] = set()
            for subject in described.subjects:
                self._sets.setdefault(subject, set()).add(described.subjects)
        users.add(oid)

    def forget(self, subjects: Collection[Subject]) -> bool:
        """Drop the descriptions that depend on the changed `subjects`; return whether there were any."""
        found = {subject.oid for subject in subjects if subject.kind == self._kind and subject.oid in self._of}
        for subject in subjects:
            for subjects_used in self._sets.get(subject, ()):
                found |= self._users[subjects_used]
        for oid in found:
            self._drop(oid)
        return bool(found)

    def _drop(self, oid: Oid) -> None:
        described = self._of.pop(oid, None)
        if described is None:
            return
        users = self._users[described.subjects]
        users.remove(oid)
        if users:
            return
        del self._users[described.subjects]
        for subject in described.subjects:
            sets = self._sets[subject]
            sets.remove(described.subjects)
            if not sets:
                del self._sets[subject]


class View:
    """The committed descriptions, as a transaction that has changed no catalog sees them."""

    __slots__ = ("_files_of", "class_names", "files", "relations", "types")

    def __init__(self) -> None:
        self.relations: DescriptionCache[DescribedRelation] = DescriptionCache(PG_CLASS.oid)
        self.types: DescriptionCache[DescribedType] = DescriptionCache(PG_TYPE.oid)
        self.class_names: DescriptionCache[DescribedName] = DescriptionCache(PG_CLASS.oid)
        self.files: dict[RelFileLocator, Oid] = {}
        self._files_of: dict[Oid, tuple[RelFileLocator, ...]] = {}

    def __len__(self) -> int:
        return len(self.relations) + len(self.types) + len(self.class_names) + len(self.files)

    def keep_file(self, locator: RelFileLocator, oid: Oid) -> None:
        """Cache the relation of the file `locator`."""
        self.files[locator] = oid
        self._files_of[oid] = (*self._files_of.get(oid, ()), locator)

    def forget(self, subjects: Collection[Subject]) -> bool:
        """Drop what depends on the changed `subjects`; return whether this included a relation or a file."""
        forgot = self.relations.forget(subjects)
        self.types.forget(subjects)
        self.class_names.forget(subjects)
        for subject in subjects:
            if subject.kind == PG_CLASS.oid:
                for locator in self._files_of.pop(subject.oid, ()):
                    del self.files[locator]
                    forgot = True
        return forgot


class UnreportedSubjects(NamedTuple):
    """The subjects that may look different to a transaction."""

    subjects: AbstractSet[Subject]
    first: AbstractSet[Subject]  # those among them that it changed, and for the first time since the last report


class PrivateView(View):
    """What one open transaction that changed catalogs sees, and which of its changes are still to be reported."""

    __slots__ = (
        "_changes",
        "_classes",
        "_others",
        "_others_overflowed",
        "_reported",
        "_unreported",
        "rewrites",
        "touched",
    )

    def __init__(self, changes: OpenChanges) -> None:
        super().__init__()
        self.rewrites: dict[Oid, Oid] = {}  # transient heaps, with the relations that they rewrite
        self.touched: set[Oid] = set()  # existing tables that were reported as changed
        self._changes = changes
        self._unreported: set[Subject] = set()  # its own changes
        self._reported: set[Subject] = set()  # its own changes before
        self._classes: set[Oid] = set()  # with rows that it changed: some may be transient heaps
        self._others: set[Subject] = set()  # changes that others committed
        self._others_overflowed = False

    def catch_up(self) -> None:
        """Drop what the transaction's own records, or the ends of its subtransactions, have changed since."""
        unapplied = self._changes.unapplied
        if unapplied:
            self.forget(unapplied)
            self._unreported |= unapplied
            self._classes.update(subject.oid for subject in unapplied if subject.kind == PG_CLASS.oid)
            unapplied.clear()

    def record_others(self, subjects: Collection[Subject]) -> None:
        """Apply the changes that another transaction committed."""
        self.forget(subjects)
        self._others.update(subjects)
        if len(self._others) > OTHERS_MAX:
            self._others.clear()
            self._others_overflowed = True

    def pop_unreported(self) -> UnreportedSubjects:
        """Return the subjects whose dependents may look different since the last call.

        NB: this includes commits of others: they may depend on this transaction's changes, or the reverse.
        """
        own, others = self._unreported, self._others
        first = own - self._reported - others
        if self._others_overflowed:
            others, first = self._changes.subjects, set()
        self._reported |= own
        self._unreported, self._others, self._others_overflowed = set(), set(), False
        return UnreportedSubjects(own | others, first)

    def pop_classes(self) -> Iterator[Oid]:
        """Yield, once each, the OIDs whose row of pg_class the transaction may have changed."""
        while self._classes:
            yield self._classes.pop()

    def types_with(self, committed: DescriptionCache[DescribedType]) -> DescribedTypes:
        """Return the types that it sees, with the committed ones that it did not change."""
        return _TypesSeen(self.types, committed, self._changes.subjects)


class _TypesSeen:
    """One transaction's types before the committed ones."""

    __slots__ = ("_changed", "_committed", "_own")

    def __init__(
        self, own: DescriptionCache[DescribedType], committed: DescriptionCache[DescribedType], changed: set[Subject]
    ) -> None:
        self._own = own
        self._committed = committed
        self._changed = changed

    def get(self, oid: Oid) -> DescribedType | None:
        known = self._own.get(oid)
        if known is None:
            known = self._committed.get(oid)
            if known is not None and not known.subjects.isdisjoint(self._changed):
                return None
        return known

    def keep(self, oid: Oid, described: DescribedType) -> None:
        self._own.keep(oid, described)
