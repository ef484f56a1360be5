"""The mirrors of all databases of a cluster, as databases are created, dropped and renamed.

Every created database is mirrored, whatever its name: then a journal does not depend on the selection, and a database
can be renamed into the selection. The current names determine which databases are *captured*, so that their rows are
delivered. Of those that were captured before and *left*, the tables that are dropped are reported. A database that
cannot be mirrored is left out, with a reason that is reported; the others continue.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.new_databases import CopiedFiles, CopiedPages, NotFollowed, layouts_of, mirror_of
from tidemark.decode.catalog.redo import CatalogDiverged
from tidemark.decode.catalog.shared import Database, SharedCatalogs
from tidemark.decode.catalog.store import CatalogStore
from tidemark.decode.catalog.transactions import precedes
from tidemark.decode.transactions.ports import DatabaseSelectionChange, DroppedTable
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.encodings import UnsupportedEncoding
from tidemark.model.lsn import INVALID_OID, Lsn, Oid, Xid
from tidemark.model.mapping import TypeMapping
from tidemark.model.relation import KnownDatabase, RelFileLocator
from tidemark.wal.record import INFO_MASK, Record
from tidemark.wal.rmgr import RM_DBASE, RM_HEAP, RM_HEAP2, RM_MULTIXACT, RM_RELMAP, RM_XLOG, dbase, relmap, xlog

SelectsDatabase = Callable[[Database], bool]
_BY_FILE = frozenset({RM_HEAP, RM_HEAP2, RM_XLOG})


def every_database(row: Database) -> bool:
    """Select all databases except templates."""
    return not row.is_template


def no_database(_row: Database) -> bool:
    """Select none."""
    return False


def among(databases: Container[Oid]) -> SelectsDatabase:
    """Select databases by OID, whatever their names."""
    return lambda row: row.oid in databases and every_database(row)


def by_name(selects: Callable[[str], bool]) -> SelectsDatabase:
    """Select databases by their names, but never templates."""
    return lambda row: not row.is_template and selects(row.name)


class DatabaseMirrors(Mapping[Oid, CatalogMirror]):
    """Mirrors by the OIDs of their databases; follows CREATE, ALTER and DROP DATABASE."""

    def __init__(self, mirrors: Iterable[CatalogMirror], selects: SelectsDatabase = every_database) -> None:
        self._mirrors = {mirror.database: mirror for mirror in mirrors}
        self._any = next(iter(self._mirrors.values()))  # for what is the same in all
        self._format = self._any.store.format
        self._selects = selects
        self._new: dict[Oid, CopiedFiles | CopiedPages] = {}
        self._captured: frozenset[Oid] = frozenset()
        self._left: frozenset[Oid] = frozenset()  # not captured any more
        self._shared_commits = -1
        self._revision = 0
        self._gone_outdated = 0
        self.readings = 0  # of pg_database: grows when names, or the set of captured databases, may have changed
        self.names: dict[Oid, str] = {}  # the latest name of each database that was ever captured
        self.encodings: dict[Oid, str] = {}
        self.left_out: dict[Oid, str] = {}  # databases that are not followed: the reason
        for mirror in self._mirrors.values():
            self.encodings[mirror.database] = mirror.encoding
        self._read_names()

    def __getitem__(self, database: Oid) -> CatalogMirror:
        return self._mirrors[database]

    def __iter__(self) -> Iterator[Oid]:
        return iter(self._mirrors)

    def __len__(self) -> int:
        return len(self._mirrors)

    @property
    def shared(self) -> SharedCatalogs:
        """The catalogs shared by all mirrors."""
        return self._any.shared

    @property
    def revision(self) -> int:
        """A number that grows with every record that changed a mirror: these records belong into a journal."""
        return self._own_revision + sum(mirror.store.revision for mirror in self._mirrors.values())

    @property
    def _own_revision(self) -> int:
        return self._revision + self.shared.store.revision

    @property
    def outdated_count(self) -> int:
        """A number that grows with each commit that may have changed a reported file or its relation."""
        return self._gone_outdated + sum(mirror.outdated_count for mirror in self._mirrors.values())

    @property
    def is_growing(self) -> bool:
        """Return whether a database is being created: such a state cannot be saved."""
        return bool(self._new)

    # --- captured databases

    def select(self, selects: SelectsDatabase) -> None:
        """Capture the databases that `selects` accepts, from here on."""
        self._selects = selects
        self._read_names()

    def captured(self, database: Oid) -> CatalogMirror | None:
        """Return the mirror of a captured database."""
        return self._mirrors[database] if database in self._captured else None

    def follow_left(self, databases: Iterable[Oid]) -> None:
        """Report the tables that are dropped in `databases`, which left earlier, as in those that leave from now on."""
        self._left = (self._left | frozenset(databases)) & self._mirrors.keys() - self._captured

    def remember(self, earlier: Mapping[Oid, str]) -> Mapping[Oid, str]:
        """Return the names of all databases that are or were captured, with `earlier` ones; it stays current."""
        for database, name in earlier.items():
            self.names.setdefault(database, name)
        return self.names

    def known(self) -> Mapping[Oid, KnownDatabase]:
        """Return the captured databases."""
        return {oid: KnownDatabase(self.names[oid], self.encodings[oid]) for oid in sorted(self._captured)}

    def _is_selected(self, row: Database | None) -> bool:
        return row is not None and self._selects(row)

    def _read_names(self) -> None:
        """Determine the captured databases from the committed rows of pg_database."""
        self.readings += 1
        if self.shared.store.seeding:
            return
        captured = set()
        for row in self.shared.databases():
            if not self._is_selected(row):
                continue
            if row.oid in self._mirrors:
                self.names[row.oid] = row.name
                captured.add(row.oid)
            elif row.oid not in self.left_out:
                self.left_out[row.oid] = "it existed before it was selected"
        if captured != self._captured:
            self._left = (self._left | self._captured) & self._mirrors.keys() - captured
            self._captured = frozenset(captured)
            self._gone_outdated += 1

    def left_out_by_name(self) -> Mapping[str, str]:
        """Return the selected databases that are not followed, with the reason."""
        rows = (self.shared.database(oid) for oid in self.left_out)
        return {row.name: self.left_out[row.oid] for row in rows if row is not None and self._is_selected(row)}

    def leave_out(self, database: Oid, reason: str) -> None:
        """Stop following a database."""
        self._drop(database)
        self.left_out[database] = reason
        self._count(True)

    # --- records

    def tracks(self, locator: RelFileLocator) -> bool:
        """Return whether `locator` is a file of a tracked catalog."""
        store = self._store(locator.db)
        return store is not None and store.tracks(locator)

    def _store(self, database: Oid) -> CatalogStore | None:
        if database == INVALID_OID:
            return self.shared.store
        mirror = self._mirrors.get(database)
        return mirror.store if mirror is not None else None

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Apply a record of `top_xid` (0: no transaction); return whether it is about catalogs or databases."""
        if record.rmgr == RM_DBASE:
            return self._count(self._begin(record, top_xid))
        if record.rmgr == RM_RELMAP:
            return self._relation_map(record, top_xid)
        if record.rmgr not in _BY_FILE or not record.blocks:
            if record.rmgr == RM_MULTIXACT:  # belongs to no database: rows of any may contain it
                self._redo_in_all(record, top_xid)
            return False
        database = record.blocks[0].locator.db
        if database == INVALID_OID:
            return self.shared.redo(record, top_xid)
        mirror = self._mirrors.get(database)
        if mirror is not None:
            return self._redo(mirror, record, top_xid)
        new = self._new.get(database)
        is_page = record.rmgr == RM_XLOG and record.info & INFO_MASK == xlog.FPI
        return is_page and isinstance(new, CopiedPages) and self._count(new.store_pages(record))

    def _redo_in_all(self, record: Record, top_xid: Xid) -> None:
        """Pass a record without changes to all mirrors, for their seeds."""
        for mirror in self._mirrors.values():
            mirror.redo(record, top_xid)

    def _redo(self, mirror: CatalogMirror, record: Record, top_xid: Xid) -> bool:
        """Apply a record to a mirror; if an uncaptured one, such as a template's, diverges, it is left out."""
        try:
            return mirror.redo(record, top_xid)
        except CatalogDiverged as error:
            if mirror.database in self._captured or mirror.store.seeding:
                raise
            self.leave_out(mirror.database, str(error))
            return True

    def _begin(self, record: Record, top_xid: Xid) -> bool:
        created = dbase.parse(record, self._format)
        if isinstance(created, dbase.DatabaseBegun):
            layouts = layouts_of(self._any)
            self._new[created.database] = CopiedPages(top_xid, created.database, created.tablespace, layouts)
            return True
        if not isinstance(created, dbase.DatabaseCopied) or created.source == created.database:
            return False
        new = self._new.get(created.database)
        if not isinstance(new, CopiedFiles) or new.xid != top_xid:  # left by an interrupted CREATE DATABASE
            new = self._new[created.database] = CopiedFiles(top_xid)
        source = self._mirrors.get(created.source)
        if source is not None and not source.store.seeding and source.store.tablespace == created.source_tablespace:
            new.copy(source, created.database, created.tablespace)
        return True

    def _relation_map(self, record: Record, top_xid: Xid) -> bool:
        update = relmap.parse(record, self._format)
        if update is None:
            return False
        if update.database == INVALID_OID:
            return self.shared.redo(record, top_xid)
        mirror = self._mirrors.get(update.database)
        if mirror is not None:
            return self._redo(mirror, record, top_xid)
        new = self._new.get(update.database)
        if isinstance(new, CopiedPages):
            new.map(update)
            return self._count(True)
        return False

    def _count(self, changed: bool) -> bool:  # noqa: FBT001 - the answer is passed on
        self._revision += changed
        return changed

    # --- ends of transactions

    def selection_changes(self, xid: Xid) -> Sequence[DatabaseSelectionChange]:
        """Return which databases join or leave the capture when `xid` commits; call this before `commit`."""
        selection_changes: list[DatabaseSelectionChange] = []
        if self._awaits_no_end:
            return selection_changes
        for before, after in self.shared.changes(xid):
            was, now = self._is_selected(before), self._is_selected(after)
            row = after or before
            assert row is not None, "one of both descriptions exists"
            mirror = self._mirrors.get(row.oid)
            if mirror is None and after is not None and self._new.get(row.oid) is not None:
                mirror = self._complete_mirror(row.oid, after)
            if mirror is not None and was != now:
                relations = tuple(mirror.relations())
                selection_changes.append(DatabaseSelectionChange(mirror, relations, now, is_dropped=after is None))
        return selection_changes

    def dropped_in_left(self, xid: Xid) -> Sequence[DroppedTable]:
        """Return the tables that `xid` drops in databases that left the capture; call this before `commit`."""
        if self._awaits_no_end or not self._left:
            return ()
        found = [
            DroppedTable(database, table)
            for database in sorted(self._left & self.shared.awaiting_ends)
            for table in self._mirrors[database].dropped(xid)
        ]
        for before, after in self.shared.changes(xid):
            if before is not None and after is None and before.oid in self._left:
                found += (DroppedTable(before.oid, table) for table in self._mirrors[before.oid].tables())
        return found

    def commit(self, xids: Collection[Xid], lsn: Lsn) -> bool:
        """Apply the commit of a transaction with its subtransactions; return whether it changed anything."""
        if self._awaits_no_end:
            return False
        changed, before = False, self._own_revision
        for xid in xids:
            for gone, row in self.shared.changes(xid):
                if row is None and gone is not None:
                    self._drop(gone.oid)
                elif row is not None and row.oid not in self._mirrors:
                    self._complete_mirror(row.oid, row)
        shared_commits = self.shared.store.commits
        self.shared.store.commit(xids, lsn)
        concerns_all = shared_commits != self.shared.store.commits
        for mirror in list(self._mirrors.values()) if concerns_all else self._awaiting_ends():
            changed |= mirror.commit(xids, lsn)
        self._forget(set(xids))
        if self._shared_commits != self.shared.store.commits:
            self._shared_commits = self.shared.store.commits
            self._read_names()
        self._drop_finished()
        return changed or self._own_revision != before

    def abort(self, xids: Collection[Xid]) -> bool:
        """Apply the abort of a transaction or subtransaction and those below it; return whether it changed anything."""
        if self._awaits_no_end:
            return False
        changed, before = False, self._own_revision
        self.shared.store.abort(xids)
        for mirror in self._awaiting_ends():
            changed |= mirror.abort(xids)
        self._forget(set(xids))
        self._drop_finished()
        return changed or self._own_revision != before

    @property
    def _awaits_no_end(self) -> bool:
        """Return whether no transaction's end has any effect here; this is the usual case."""
        return not self.shared.awaiting_ends and not self._new

    def _awaiting_ends(self) -> list[CatalogMirror]:
        return [self._mirrors[database] for database in self.shared.awaiting_ends if database in self._mirrors]

    def _drop_finished(self) -> None:
        """Remove stores from `awaiting_ends` once all transactions that changed their catalogs have ended."""
        for database in list(self.shared.awaiting_ends):
            store = self._store(database)
            if store is None or store.awaits_no_end:
                self.shared.awaiting_ends.remove(database)

    def abort_older_than(self, oldest_running: Xid) -> bool:
        """Abort the transactions that a crash left open, according to RUNNING_XACTS; return whether there were any."""
        before = self.revision
        for mirror in self._mirrors.values():
            mirror.abort_older_than(oldest_running)
        self._forget({new.xid for new in self._new.values() if precedes(new.xid, oldest_running)})
        return self.revision != before

    def _complete_mirror(self, database: Oid, row: Database) -> CatalogMirror | None:
        """Return the mirror of a completely created database, None if it cannot be followed."""
        new = self._new.pop(database, None)
        if new is None:
            return None
        try:
            heaps = new.heaps(self._mirrors.values())
            mirror = mirror_of(heaps, self._any, database, row.tablespace, row.encoding)
            for _relation in mirror.relations():  # so that a failure to describe shows now
                pass
        except (NotFollowed, UnsupportedEncoding, CatalogDiverged) as reason:
            self.left_out[database] = str(reason)
            return None
        self._mirrors[database] = mirror
        self.encodings[database] = mirror.encoding
        self._count(True)
        return mirror

    def _drop(self, database: Oid) -> None:
        """Remove a dropped database: no later record refers to it."""
        self.left_out.pop(database, None)
        self._left -= {database}
        if len(self._mirrors) > 1 and database in self._mirrors:
            mirror = self._mirrors.pop(database)
            self._gone_outdated += mirror.outdated_count + 1
            self._revision += mirror.store.revision  # the total must not decrease
            if mirror is self._any:
                self._any = next(iter(self._mirrors.values()))
            self._count(True)

    def _forget(self, xids: set[Xid]) -> None:
        for database in [database for database, new in self._new.items() if new.xid in xids]:
            del self._new[database]
            self._count(True)


class MappedDialects(Mapping[Oid, Dialect]):
    """The dialects of all databases that are or were mirrored, with the Arrow types of one mapping."""

    def __init__(self, mirrors: DatabaseMirrors, mapping: TypeMapping, major: int) -> None:
        self._mirrors = mirrors
        self._encodings = mirrors.encodings
        self._mapping = mapping
        self._major = major
        self._known: dict[str, Dialect] = {}  # by encoding: a recreated database may have another one

    def __getitem__(self, database: Oid) -> Dialect:
        encoding = self._encodings[database]
        known = self._known.get(encoding)
        if known is None:
            known = self._known[encoding] = Dialect.of(encoding, self._major, self._mapping)
        return known

    def mapped(self, mapping: TypeMapping) -> "MappedDialects":
        """Return the dialects with other Arrow types."""
        return MappedDialects(self._mirrors, mapping, self._major)

    def __iter__(self) -> Iterator[Oid]:
        return iter(self._encodings)

    def __len__(self) -> int:
        return len(self._encodings)
