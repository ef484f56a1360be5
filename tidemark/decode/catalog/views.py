"""What was described or looked up already, for everybody and for each transaction that changed catalogs.

A description is kept until a *subject* that it stands on changes, and forgotten for nothing else: work grows with what
changes, not with what is there. What does not exist, or is half there, is not kept: to look again costs little.
"""

from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from tidemark.decode.catalog.describe import DescribedName, DescribedRelation, DescribedType, DescribedTypes
from tidemark.decode.catalog.layout import PG_CLASS, PG_TYPE
from tidemark.decode.catalog.transactions import OpenChanges, Subject
from tidemark.model.lsn import Oid
from tidemark.model.relation import RelFileLocator

OTHERS_MAX = 65536  # subjects; with more, all that the transaction itself changed is looked at again instead

_Described = TypeVar("_Described", DescribedName, DescribedRelation, DescribedType)


class Shelf(Generic[_Described]):
    """Descriptions of one sort by OID, to be found by what they stand on."""

    __slots__ = ("_kind", "_of", "_sets", "_users")

    def __init__(self, kind: Oid) -> None:
        """`kind` is what they are descriptions of: each stands on the subject of this kind that has its OID."""
        self._kind = kind
        self._of: dict[Oid, _Described] = {}
        # What is alike stands on the same: so the users of a set of subjects are kept, and in which sets each is.
        self._users: dict[frozenset[Subject], set[Oid]] = {}
        self._sets: dict[Subject, set[frozenset[Subject]]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def get(self, oid: Oid) -> _Described | None:
        """Return the description that is kept, if one is."""
        return self._of.get(oid)

    def keep(self, oid: Oid, described: _Described) -> None:
        """Keep a description until `forget` names one of its subjects."""
        self._drop(oid)
        self._of[oid] = described
        users = self._users.get(described.subjects)
        if users is None:
            users = self._users[described.subjects] = set()
            for subject in described.subjects:
                self._sets.setdefault(subject, set()).add(described.subjects)
        users.add(oid)

    def forget(self, subjects: Collection[Subject]) -> bool:
        """Drop what stands on `subjects`, which changed; tell if that was anything."""
        found = {subject.oid for subject in subjects if subject.kind == self._kind and subject.oid in self._of}
        for subject in subjects:
            for stands_on in self._sets.get(subject, ()):
                found |= self._users[stands_on]
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
    """What is committed: as everybody sees it who has changed no catalog."""

    __slots__ = ("_files_of", "class_names", "files", "relations", "types")

    def __init__(self) -> None:
        self.relations: Shelf[DescribedRelation] = Shelf(PG_CLASS.oid)
        self.types: Shelf[DescribedType] = Shelf(PG_TYPE.oid)
        self.class_names: Shelf[DescribedName] = Shelf(PG_CLASS.oid)
        self.files: dict[RelFileLocator, Oid] = {}
        self._files_of: dict[Oid, tuple[RelFileLocator, ...]] = {}

    def __len__(self) -> int:
        return len(self.relations) + len(self.types) + len(self.class_names) + len(self.files)

    def keep_file(self, locator: RelFileLocator, oid: Oid) -> None:
        """Keep whose file `locator` is."""
        self.files[locator] = oid
        self._files_of[oid] = (*self._files_of.get(oid, ()), locator)

    def forget(self, subjects: Collection[Subject]) -> bool:
        """Drop what stands on `subjects`, which changed; tell if a relation or a file was among it."""
        forgot = self.relations.forget(subjects)
        self.types.forget(subjects)
        self.class_names.forget(subjects)
        for subject in subjects:
            if subject.kind == PG_CLASS.oid:
                for locator in self._files_of.pop(subject.oid, ()):
                    del self.files[locator]
                    forgot = True
        return forgot


class PrivateView(View):
    """What one open transaction sees that changed catalogs, and what of it is still to be told."""

    __slots__ = ("_changes", "_classes", "_others", "_others_overflowed", "_untold", "rewrites", "touched")

    def __init__(self, changes: OpenChanges) -> None:
        super().__init__()
        self.rewrites: dict[Oid, Oid] = {}  # transient heaps, with the relations that they rewrite
        self.touched: set[Oid] = set()  # tables that were said to look different, and are there
        self._changes = changes
        self._untold: set[Subject] = set()  # its own changes
        self._classes: set[Oid] = set()  # that it changed: among them may be transient heaps
        self._others: set[Subject] = set()  # what others committed
        self._others_overflowed = False

    def catch_up(self) -> None:
        """Forget what the transaction's own records have changed by now, or the end of its subtransactions."""
        news = self._changes.news
        if news:
            self.forget(news)
            self._untold |= news
            self._classes.update(subject.oid for subject in news if subject.kind == PG_CLASS.oid)
            news.clear()

    def take_others(self, subjects: Collection[Subject]) -> None:
        """Follow what another transaction changed and committed."""
        self.forget(subjects)
        self._others.update(subjects)
        if len(self._others) > OTHERS_MAX:
            self._others.clear()
            self._others_overflowed = True

    def take_untold(self) -> Collection[Subject]:
        """Return, once, the subjects whose dependents may look different from when this was asked last.

        NB: what others commit counts: it may stand on what this transaction changed, or it on that.
        """
        untold = self._changes.subjects | self._untold if self._others_overflowed else self._untold | self._others
        self._untold, self._others, self._others_overflowed = set(), set(), False
        return untold

    def take_classes(self) -> Iterator[Oid]:
        """Give, once, the OIDs whose row of pg_class the transaction may have changed."""
        while self._classes:
            yield self._classes.pop()

    def types_with(self, committed: Shelf[DescribedType]) -> DescribedTypes:
        """Return the types that it sees, the committed ones included that it changed nothing of."""
        return _TypesSeen(self.types, committed, self._changes.subjects)


class _TypesSeen:
    """One transaction's types before those that are committed."""

    __slots__ = ("_changed", "_committed", "_own")

    def __init__(self, own: Shelf[DescribedType], committed: Shelf[DescribedType], changed: set[Subject]) -> None:
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
