"""The catalog mirror of one database: descriptions of relations and types at every LSN, from WAL alone.

A transaction that changed no catalog sees what is committed; one that did sees its own changes as well. That equals the
historic snapshot of the server's decoding, because DDL that changes a row's layout holds AccessExclusiveLock.

Descriptions are cached by OID and made again only when one of their *subjects* changes (`views`).
Equal versions of a relation are one object: batches of changes are grouped by it.

Pass records in WAL order, each with the top-level xid of its transaction, and ends of transactions as they occur.
"""

import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tidemark.decode.catalog.descriptions.dependents import Dependents
from tidemark.decode.catalog.descriptions.describe import Describer, Incomplete
from tidemark.decode.catalog.descriptions.described import Above, DescribedRelation, DescribedTypes
from tidemark.decode.catalog.descriptions.described_rows import ClassRow, RowReaders
from tidemark.decode.catalog.descriptions.interning import Interner
from tidemark.decode.catalog.descriptions.views import PrivateView, View
from tidemark.decode.catalog.heap import format_tid
from tidemark.decode.catalog.layout import CATALOG_OF_NAME, PG_CLASS, PG_DATABASE, data_at, name_text
from tidemark.decode.catalog.redo import CatalogDiverged
from tidemark.decode.catalog.seeding.missing import is_same_version
from tidemark.decode.catalog.shared import SharedCatalogs
from tidemark.decode.catalog.store import CatalogStore
from tidemark.decode.catalog.transactions import OpenChanges, Subject
from tidemark.decode.transactions.ports import CatalogRow
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import REGNAMESPACE, REGTYPE
from tidemark.model.lsn import FIRST_USER_OID, Lsn, Oid, Xid
from tidemark.model.relation import Relation, RelFileLocator, TypeDescription
from tidemark.wal.record import Record

VERSIONS_MAX = 8  # of one relation that are identified as objects; an older one comes back as a new object
_TABLE_KINDS = (b"r", b"p", b"m")  # pg_class.relkind of relations with rows, and of partitioned tables
_TEMPORARY = b"t"  # pg_class.relpersistence: its rows are not in WAL, and it never changes

CatalogValue = bool | int | float | str


def _is_table(row: ClassRow | None) -> bool:
    return row is not None and row.kind in _TABLE_KINDS and not row.rewrite and row.persistence != _TEMPORARY


class CatalogMirror:
    """One database's relations and types."""

    def __init__(self, store: CatalogStore, shared: SharedCatalogs, encoding: str) -> None:
        """`store` has the catalogs of one database; `encoding` is PostgreSQL's name of its encoding."""
        self.store = store
        self.shared = shared
        self.database = store.database
        self.encoding = encoding
        self.dialect = Dialect.of(encoding, store.format.major)
        self._readers = RowReaders(store)
        self._interner = Interner()
        self.described_count = 0  # relations described so far
        self.outdated_count = 0  # commits that changed a reported relation or file
        self._view = View()
        self._private: dict[Xid, PrivateView] = {}
        self._versions: dict[Oid, tuple[Relation, ...]] = {}
        self._shared_commits = shared.store.commits
        shared.awaiting_ends.add(self.database)  # the store may contain open transactions

    # --- records and ends of transactions

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Apply a record of `top_xid` (0: no transaction); return whether it concerned a tracked catalog."""
        if self.store.redo(record, top_xid):
            self.shared.awaiting_ends.add(self.database)
            return True
        return self.shared.redo(record, top_xid)

    def redo_rows(self, rows: Sequence[CatalogRow], xid: Xid, top_xid: Xid) -> int:
        """Apply rows of one part of the transaction `top_xid`; return how many: the next one needs its record."""
        count = self.store.redo_rows(rows, xid, top_xid)
        if count:
            self.shared.awaiting_ends.add(self.database)
        return count

    def commit(self, xids: Collection[Xid], lsn: Lsn) -> bool:
        """Apply the commit of a transaction with its subtransactions; return whether it changed a catalog."""
        before = self.revision
        for xid in xids:
            self._private.pop(xid, None)
        self.shared.store.commit(xids, lsn)
        subjects = self.store.commit(xids, lsn)
        if subjects:
            self.outdated_count += self._view.forget(subjects)
            for view in self._private.values():
                view.record_others(subjects)
            self._forget_versions(subjects)
        if self._shared_commits != self.shared.store.commits:
            self._shared_commits = self.shared.store.commits
            self._follow_tablespace()
        return self.revision != before

    def abort(self, xids: Collection[Xid]) -> bool:
        """Apply the abort of a transaction or subtransaction and those below it; return if it changed a catalog."""
        before = self.revision
        self.shared.store.abort(xids)
        self._forget_versions(self.store.abort(xids))
        self._close_views()
        return self.revision != before

    def abort_older_than(self, oldest_running: Xid) -> bool:
        """Abort the transactions that a crash left open, according to RUNNING_XACTS; return whether there were any."""
        before = self.revision
        self.shared.store.abort_older_than(oldest_running)
        self._forget_versions(self.store.abort_older_than(oldest_running))
        self._close_views()
        return self.revision != before

    def _follow_tablespace(self) -> None:
        """Follow ALTER DATABASE SET TABLESPACE: the database had no sessions, and all its default files have moved."""
        row = self.shared.database(self.database)
        if row is not None and row.tablespace != self.store.tablespace:
            self.store.move(row.tablespace)
            self._view = View()
            self._private.clear()
            self.outdated_count += 1

    @property
    def revision(self) -> int:
        """A number that grows with every record that changed the mirror: these records belong into a journal."""
        return self.store.revision + self.shared.store.revision

    @property
    def is_dropped(self) -> bool:
        """DROP DATABASE has committed: no later record refers to this database."""
        return self.shared.database(self.database) is None

    # --- queries

    def tracks(self, locator: RelFileLocator) -> bool:
        """Return whether `locator` is a file of a tracked catalog."""
        return self.store.tracks(locator) or self.shared.store.tracks(locator)

    def resolve(self, locator: RelFileLocator, top_xid: Xid) -> Relation | None:
        """Return the version of the relation with that file that the transaction sees now; None if there is none."""
        changes = self.store.open.get(top_xid)
        view = self._view if changes is None else self._private_view(changes)
        oid = view.files.get(locator)
        if oid is None:
            oid = self._oid_of_file(locator, None if changes is None else top_xid)
            if oid is None:
                return None
            view.keep_file(locator, oid)
        return self.relation(oid, top_xid)

    def relation(self, oid: Oid, top_xid: Xid | None = None) -> Relation | None:
        """Return the version of a relation that the transaction sees now (None: as committed)."""
        changes = self.store.open.get(top_xid) if top_xid is not None else None
        described = self._committed(oid) if changes is None else self._seen_by(changes, oid)
        return None if described is None else described.relation

    def type(self, oid: Oid, top_xid: Xid | None = None) -> TypeDescription | None:
        """Return a type as the transaction sees it now (None: as committed)."""
        changes = self.store.open.get(top_xid) if top_xid is not None else None
        describer = self._describer(None) if changes is None else self._describer(top_xid, self._private_view(changes))
        try:
            with self._reading(f"type {oid}"):
                return describer.type(oid).type
        except Incomplete:
            return None

    def object_name(self, kind: Oid, oid: Oid, top_xid: Xid) -> str | None:
        """Return what the type `kind` (`regclass`, `regtype` or `regnamespace`) prints for an OID; None: its number."""
        changes = self.store.open.get(top_xid)
        view = self._view if changes is None else self._private_view(changes)
        describer = self._describer(None if changes is None else top_xid)
        try:
            with self._reading(f"object {oid}"):
                if kind == REGTYPE:
                    return describer.type_name(oid)
                if kind == REGNAMESPACE:
                    return describer.namespace_name(oid)
                return self._class_name(view, describer, oid)
        except Incomplete:
            return None

    @staticmethod
    def _class_name(view: View, describer: Describer, oid: Oid) -> str | None:
        described = view.class_names.get(oid)
        if described is None:
            described = describer.class_name(oid)
            if described is None:
                return None
            view.class_names.keep(oid, described)
        return described.text

    def pop_touched(self, top_xid: Xid) -> frozenset[Oid]:
        """Return the tables that may look different to the transaction since the last call.

        Dependents of types are included, temporary tables are not.
        """
        changes = self.store.open.get(top_xid)
        if changes is None:
            return frozenset()
        view = self._private_view(changes)
        committed, private = self._describer(None), self._describer(top_xid, view)
        oids = Dependents(self.store, top_xid).of(view.pop_unreported())
        tables = {oid for oid in oids if _is_table(committed.class_row(oid)) or _is_table(private.class_row(oid))}
        gone = oids & view.touched - tables
        view.touched |= tables
        view.touched -= gone
        return frozenset(tables | gone)

    def rewriting(self, top_xid: Xid) -> frozenset[Oid]:
        """Return the relations for which the transaction has a transient heap: a command rewrites them."""
        changes = self.store.open.get(top_xid)
        if changes is None:
            return frozenset()
        view = self._private_view(changes)
        describer = self._describer(top_xid, view)
        for oid in view.pop_classes():
            row = describer.class_row(oid)
            if row is not None and row.rewrite:
                view.rewrites[oid] = row.rewrite
            else:
                view.rewrites.pop(oid, None)
        return frozenset(view.rewrites.values())

    def dropped(self, top_xid: Xid) -> list[Oid]:
        """Return the tables that the transaction drops, sorted; call this once, before its commit."""
        committed, private = self._describer(None), self._describer(top_xid)
        return sorted(
            oid
            for oid in self.pop_touched(top_xid)
            if _is_table(committed.class_row(oid)) and private.class_row(oid) is None
        )

    def tables(self) -> list[Oid]:
        """Return the users' tables (ordinary, partitioned, materialized views), as committed and sorted."""
        heap = self.store.heap(PG_CLASS)
        reader = self._readers.of_class
        oids = []
        for _tid, packed in heap.scan(self.store.snapshot(None)):
            row = ClassRow(*reader.unpack_from(packed, data_at(packed)))
            if row.oid >= FIRST_USER_OID and row.kind in _TABLE_KINDS and not row.rewrite:
                oids.append(row.oid)
        return sorted(oids)

    def relations(self) -> Iterator[Relation]:
        """Yield the versions of the users' tables, as committed."""
        for oid in self.tables():
            relation = self.relation(oid)
            assert relation is not None, oid
            yield relation

    def file_of(self, oid: Oid) -> RelFileLocator | None:
        """Return the file of an unmapped relation, as committed; None if it does not exist."""
        row = self._describer(None).class_row(oid)
        if row is None:
            return None
        return RelFileLocator(row.tablespace or self.store.tablespace, self.database, row.relfilenode)

    def index_oids(self, oid: Oid) -> frozenset[Oid]:
        """Return the indexes of a relation, as committed."""
        return frozenset(self._describer(None).index_oids(oid))

    @property
    def kept_count(self) -> int:
        """Cached descriptions, versions and files: bounded by the existing objects and the open transactions."""
        return sum(len(versions) for versions in self._versions.values()) + sum(
            map(len, (self._view, *self._private.values()))
        )

    def rows(self, catalog_name: str) -> Iterator[dict[str, CatalogValue]]:
        """Yield the committed rows of a catalog by column, with their ctid, as SQL would show the fixed columns."""
        catalog = CATALOG_OF_NAME[catalog_name]
        store = self.shared.store if catalog is PG_DATABASE else self.store
        heap = store.heap(catalog)
        columns = [column.name for column in heap.layout.fixed]
        for tid, packed in heap.scan(store.snapshot(None)):
            values = heap.layout.fixed_struct.unpack_from(packed, data_at(packed))
            row: dict[str, CatalogValue] = {"ctid": format_tid(tid)}
            for column, value in zip(columns, values, strict=True):
                row[column] = self.dialect.decode(name_text(value)) if isinstance(value, bytes) else value
            yield row

    # --- caches

    @contextmanager
    def _reading(self, described: str) -> Iterator[None]:
        """Add the object's name to the error for a catalog row that no server writes."""
        try:
            yield
        except (KeyError, ValueError, struct.error) as error:
            raise CatalogDiverged(f"catalogs of database {self.database}, {described}: {error!r} in a row") from error

    def _describer(self, top_xid: Xid | None, view: PrivateView | None = None) -> Describer:
        types: DescribedTypes = self._view.types if view is None else view.types_with(self._view.types)
        return Describer(self.store, self._readers, self.dialect.encoding, top_xid, types, interner=self._interner)

    def _oid_of_file(self, locator: RelFileLocator, top_xid: Xid | None) -> Oid | None:
        if locator.db != self.database:
            return None
        for row in self._describer(top_xid).classes_with_file(locator.rel):
            if (row.tablespace or self.store.tablespace) == locator.spc:
                return row.oid
        return None

    def _committed(self, oid: Oid) -> DescribedRelation | None:
        described = self._view.relations.get(oid)
        if described is None:
            try:
                described = self._describe(self._describer(None), oid, self._committed)
            except Incomplete as error:
                raise CatalogDiverged(f"catalogs of database {self.database}, relation {oid}: {error}") from error
            if described is not None:
                self._view.relations.keep(oid, described)
        return described

    def _seen_by(self, changes: OpenChanges, oid: Oid) -> DescribedRelation | None:
        view = self._private_view(changes)
        described = view.relations.get(oid)
        if described is not None:
            return described
        own = Subject(PG_CLASS.oid, oid) in changes.subjects
        described = None if own else self._committed(oid)
        if own or (described is not None and not described.subjects.isdisjoint(changes.subjects)):
            try:
                above = partial(self._seen_by, changes)
                described = self._describe(self._describer(changes.xid, view), oid, above)
            except Incomplete:  # a command is in progress
                return None
        if described is not None:
            view.relations.keep(oid, described)
        return described

    def _private_view(self, changes: OpenChanges) -> PrivateView:
        view = self._private.get(changes.xid)
        if view is None:
            view = self._private[changes.xid] = PrivateView(changes)
        view.catch_up()
        return view

    def _close_views(self) -> None:
        for xid in [xid for xid in self._private if xid not in self.store.open]:
            del self._private[xid]

    def _describe(self, describer: Describer, oid: Oid, above: Above) -> DescribedRelation | None:
        """Return a description whose version is the existing object of an equal version, if there is one."""
        with self._reading(f"relation {oid}"):
            described = describer.relation(oid, above)
        if described is None:
            return None
        self.described_count += 1
        versions = self._versions.get(oid, ())
        for version in versions:
            if is_same_version(version, described.relation):
                return DescribedRelation(version, described.subjects)
        self._versions[oid] = (*versions, described.relation)[-VERSIONS_MAX:]
        return described

    def _forget_versions(self, subjects: frozenset[Subject]) -> None:
        """Drop the versions of relations among `subjects` that no longer exist."""
        describer = self._describer(None)
        for subject in subjects:
            known = subject.kind == PG_CLASS.oid and subject.oid in self._versions
            if known and describer.class_row(subject.oid) is None:
                del self._versions[subject.oid]
