"""The catalog mirror of one database: descriptions of relations and types at every LSN, from WAL alone.

A transaction that changed no catalog sees what is committed; one that did sees its own changes as well. That equals the
historic snapshot of the server's decoding, because DDL that changes a row's layout holds AccessExclusiveLock.

Descriptions are cached by OID and made again when a *subject* they stand on changes, and for nothing else. Equal
versions of a relation are one object: batches of changes are grouped by it.

Records are to be given in WAL order, each with the top-level xid of its transaction; ends of transactions as they come.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tidemark.decode.catalog.dependents import Dependents
from tidemark.decode.catalog.describe import (
    ClassRow,
    DescribedRelation,
    DescribedType,
    Describer,
    Incomplete,
    RowReaders,
)
from tidemark.decode.catalog.heap import format_tid
from tidemark.decode.catalog.layout import CATALOG_OF_NAME, PG_CLASS, PG_DATABASE, data_at, name_text
from tidemark.decode.catalog.missing import is_same_version
from tidemark.decode.catalog.redo import CatalogDiverged
from tidemark.decode.catalog.shared import NotFollowed, SharedCatalogs
from tidemark.decode.catalog.store import CatalogStore
from tidemark.decode.catalog.transactions import OpenChanges, Subject
from tidemark.decode.codecs.codec import Dialect
from tidemark.model.lsn import Lsn, Oid, Xid
from tidemark.model.relation import Relation, RelFileLocator, TypeDescription
from tidemark.wal.record import Record

VERSIONS_MAX = 8  # of one relation that are told apart by identity; an older one comes back as a new object
FIRST_USER_OID = 16384  # FirstNormalObjectId
TABLE_KINDS = ("r", "p", "m")  # pg_class.relkind of relations with rows, and of partitioned tables

CatalogValue = bool | int | float | str


@dataclass(slots=True)
class _PrivateCache:
    """What one transaction with catalog changes saw, as of one moment."""

    moment: tuple[int, int]
    relations: dict[Oid, DescribedRelation | None] = field(default_factory=dict)
    types: dict[Oid, DescribedType] = field(default_factory=dict)
    files: dict[RelFileLocator, Oid | None] = field(default_factory=dict)


class CatalogMirror:
    """One database's relations and types."""

    def __init__(self, store: CatalogStore, shared: SharedCatalogs, encoding: str) -> None:
        """Take over the catalogs of one database; `encoding` is PostgreSQL's name of its encoding."""
        self.store = store
        self.shared = shared
        self.database = store.database
        self.encoding = encoding
        self.dialect = Dialect.of(encoding, store.format.major)
        self._readers = RowReaders(store)
        self._relations: dict[Oid, DescribedRelation | None] = {}
        self._types: dict[Oid, DescribedType] = {}
        self._files: dict[RelFileLocator, Oid | None] = {}
        self._files_of: dict[Oid | None, list[RelFileLocator]] = {}
        self._users: dict[Subject, set[Oid]] = {}  # cached relations by what they stand on
        self._private: dict[Xid, _PrivateCache] = {}
        self._versions: dict[Oid, deque[Relation]] = {}
        self._shared_commits = shared.store.commits

    # --- records and ends of transactions

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Take a record of `top_xid` (0: of no transaction); tell if it was about a tracked catalog."""
        if self.store.redo(record, top_xid):
            return True
        return self.shared.redo(record, top_xid)

    def commit(self, xids: Collection[Xid], lsn: Lsn) -> bool:
        """Settle a committed transaction, its xid and those of its subtransactions; tell if it changed a catalog."""
        before = self.revision
        for xid in xids:
            self._private.pop(xid, None)
        self.shared.store.commit(xids, lsn)
        subjects = self.store.commit(xids, lsn)
        if subjects:
            self._forget(subjects)
        if self._shared_commits != self.shared.store.commits:
            self._shared_commits = self.shared.store.commits
            self._check_tablespace()
        return self.revision != before

    def abort(self, xids: Collection[Xid]) -> bool:
        """Settle an aborted transaction, or a subtransaction with those below it; tell if it had changed a catalog."""
        before = self.revision
        for xid in xids:
            self._private.pop(xid, None)
        self.shared.store.abort(xids)
        self.store.abort(xids)
        return self.revision != before

    def abort_older_than(self, oldest_running: Xid) -> bool:
        """Abort what a crash left open, as RUNNING_XACTS tells; tell if there was anything."""
        before = self.revision
        self.shared.store.abort_older_than(oldest_running)
        self.store.abort_older_than(oldest_running)
        for xid in [xid for xid in self._private if xid not in self.store.open]:
            del self._private[xid]
        return self.revision != before

    def _check_tablespace(self) -> None:
        row = self.shared.database(self.database)
        if row is not None and row.tablespace != self.store.tablespace:
            raise NotFollowed(
                f"database {row.name} was moved from tablespace {self.store.tablespace} to {row.tablespace}"
            )

    @property
    def revision(self) -> int:
        """A number that grows with every record that changed anything here: those belong into a journal."""
        return self.store.revision + self.shared.store.revision

    @property
    def is_dropped(self) -> bool:
        """DROP DATABASE has committed: no record will name this database again."""
        return self.shared.database(self.database) is None

    # --- questions

    def tracks(self, locator: RelFileLocator) -> bool:
        """Tell if `locator` is a file of a tracked catalog."""
        return self.store.tracks(locator) or self.shared.store.tracks(locator)

    def resolve(self, locator: RelFileLocator, top_xid: Xid) -> Relation | None:
        """Return the version of the relation with that file that the transaction sees now; None if there is none."""
        changes = self.store.open.get(top_xid)
        files = self._files if changes is None else self._private_cache(changes).files
        try:
            oid = files[locator]
        except KeyError:
            oid = files[locator] = self._oid_of_file(locator, None if changes is None else top_xid)
            if changes is None:
                self._files_of.setdefault(oid, []).append(locator)
        return None if oid is None else self.relation(oid, top_xid)

    def relation(self, oid: Oid, top_xid: Xid | None = None) -> Relation | None:
        """Return the version of a relation that the transaction sees now (None: what is committed)."""
        changes = self.store.open.get(top_xid) if top_xid is not None else None
        described = self._committed(oid) if changes is None else self._seen_by(changes, oid)
        return None if described is None else described.relation

    def type(self, oid: Oid, top_xid: Xid | None = None) -> TypeDescription | None:
        """Return a type as the transaction sees it now (None: as committed)."""
        changes = self.store.open.get(top_xid) if top_xid is not None else None
        types = self._types if changes is None else self._private_cache(changes).types
        try:
            return self._describer(None if changes is None else top_xid, types).type(oid).type
        except Incomplete:
            return None

    def touched(self, top_xid: Xid) -> frozenset[Oid]:
        """Return the relations whose description the transaction may have changed, dependents of types included."""
        changes = self.store.open.get(top_xid)
        if changes is None:
            return frozenset()
        cache = self._private_cache(changes)
        private = self._describer(top_xid, cache.types)
        committed = self._describer(None, self._types)
        oids = Dependents(self.store, top_xid).of(changes.subjects)

        def is_table(row: ClassRow | None) -> bool:
            return row is not None and row.kind.decode("ascii") in TABLE_KINDS and not row.rewrite

        return frozenset(oid for oid in oids if is_table(committed.class_row(oid)) or is_table(private.class_row(oid)))

    def rewriting(self, top_xid: Xid) -> frozenset[Oid]:
        """Return the relations that the transaction has a transient heap for: a command is rewriting them."""
        changes = self.store.open.get(top_xid)
        if changes is None:
            return frozenset()
        describer = self._describer(top_xid, {})
        rows = (describer.class_row(subject.oid) for subject in changes.subjects if subject.kind == PG_CLASS.oid)
        return frozenset(Oid(row.rewrite) for row in rows if row is not None and row.rewrite)

    def relations(self) -> Iterator[Relation]:
        """Give the user's tables (ordinary, partitioned, materialized views), as committed."""
        heap = self.store.heap(PG_CLASS)
        reader = self._readers.of_class
        oids = []
        for _tid, packed in heap.scan(self.store.sight(None)):
            row = ClassRow(*reader.unpack_from(packed, data_at(packed)))
            if row.oid >= FIRST_USER_OID and row.kind.decode("ascii") in TABLE_KINDS and not row.rewrite:
                oids.append(row.oid)
        for oid in sorted(oids):
            relation = self.relation(oid)
            assert relation is not None, oid
            yield relation

    def rows(self, catalog_name: str) -> Iterator[dict[str, CatalogValue]]:
        """Give the committed rows of a catalog by column, with their ctid: what SQL would show of the fixed columns."""
        catalog = CATALOG_OF_NAME[catalog_name]
        store = self.shared.store if catalog is PG_DATABASE else self.store
        heap = store.heap(catalog)
        columns = [column.name for column in heap.layout.fixed]
        for tid, packed in heap.scan(store.sight(None)):
            values = heap.layout.fixed_struct.unpack_from(packed, data_at(packed))
            row: dict[str, CatalogValue] = {"ctid": format_tid(tid)}
            for column, value in zip(columns, values, strict=True):
                row[column] = self.dialect.decode(name_text(value)) if isinstance(value, bytes) else value
            yield row

    # --- caches

    def _describer(self, top_xid: Xid | None, types: dict[Oid, DescribedType]) -> Describer:
        return Describer(self.store, self._readers, self.dialect.encoding, top_xid, types)

    def _oid_of_file(self, locator: RelFileLocator, top_xid: Xid | None) -> Oid | None:
        if locator.db != self.database:
            return None
        for row in self._describer(top_xid, {}).classes_with_file(locator.rel):
            if (row.tablespace or self.store.tablespace) == locator.spc:
                return row.oid
        return None

    def _committed(self, oid: Oid) -> DescribedRelation | None:
        try:
            return self._relations[oid]
        except KeyError:
            pass
        try:
            described = self._describer(None, self._types).relation(oid)
        except Incomplete as error:
            raise CatalogDiverged(f"catalogs of database {self.database}, relation {oid}: {error}") from error
        if described is not None:
            described = self._intern(described)
            for subject in described.subjects:
                self._users.setdefault(subject, set()).add(oid)
        self._users.setdefault(Subject(PG_CLASS.oid, oid), set()).add(oid)
        self._relations[oid] = described
        return described

    def _seen_by(self, changes: OpenChanges, oid: Oid) -> DescribedRelation | None:
        cache = self._private_cache(changes)
        if oid in cache.relations:
            return cache.relations[oid]
        own = Subject(PG_CLASS.oid, oid) in changes.subjects
        described = None if own else self._committed(oid)
        if own or (described is not None and not described.subjects.isdisjoint(changes.subjects)):
            try:
                described = self._describer(changes.xid, cache.types).relation(oid)
            except Incomplete:  # in the middle of a command
                described = None
            if described is not None:
                described = self._intern(described)
        cache.relations[oid] = described
        return described

    def _private_cache(self, changes: OpenChanges) -> _PrivateCache:
        moment = (changes.version, self.store.commits)
        cache = self._private.get(changes.xid)
        if cache is None or cache.moment != moment:
            cache = self._private[changes.xid] = _PrivateCache(moment)
            for oid, known in self._types.items():
                if known.subjects.isdisjoint(changes.subjects):
                    cache.types[oid] = known
        return cache

    def _intern(self, described: DescribedRelation) -> DescribedRelation:
        """Return `described` with the object that an equal version already has."""
        versions = self._versions.setdefault(described.relation.oid, deque(maxlen=VERSIONS_MAX))
        for version in versions:
            if is_same_version(version, described.relation):
                return DescribedRelation(version, described.subjects)
        versions.append(described.relation)
        return described

    def _forget(self, subjects: frozenset[Subject]) -> None:
        """Drop what stands on `subjects`, which changed."""
        for subject in subjects:
            for oid in self._users.pop(subject, ()):
                self._forget_relation(oid)
            if subject.kind == PG_CLASS.oid:
                self._forget_files(subject.oid)
                if next(self.store.heap(PG_CLASS).find("oid", subject.oid, self.store.sight(None)), None) is None:
                    self._versions.pop(subject.oid, None)
        self._forget_files(None)
        for oid in [oid for oid, known in self._types.items() if not known.subjects.isdisjoint(subjects)]:
            del self._types[oid]

    def _forget_relation(self, oid: Oid) -> None:
        described = self._relations.pop(oid, None)
        for subject in described.subjects if described is not None else ():
            users = self._users.get(subject)
            if users is not None:
                users.discard(oid)

    def _forget_files(self, oid: Oid | None) -> None:
        for locator in self._files_of.pop(oid, ()):
            self._files.pop(locator, None)
