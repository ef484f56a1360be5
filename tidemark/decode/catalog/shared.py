"""The shared catalogs: pg_database, one for all mirrors of a cluster."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.decode.catalog.layout import PG_DATABASE, data_at, name_text
from tidemark.decode.catalog.store import CatalogStore
from tidemark.model.lsn import Oid, Xid
from tidemark.wal.record import Record


@dataclass(frozen=True, slots=True)
class Database:
    """A row of pg_database."""

    oid: Oid
    name: str
    encoding: int  # PostgreSQL's number
    is_template: bool
    tablespace: Oid


class DatabaseChange(NamedTuple):
    """The change of a row of pg_database by a transaction."""

    before: Database | None
    after: Database | None


class SharedCatalogs:
    """pg_database as in WAL."""

    def __init__(self, store: CatalogStore) -> None:
        self.store = store
        # The databases, or `store.database` for these catalogs, for which the end of a transaction may have an effect:
        # most transactions change no catalog, and each is of one database.
        self.awaiting_ends = {store.database}
        layout = store.heaps[PG_DATABASE.oid].layout
        self._reader = layout.projection("oid", "datname", "encoding", "datistemplate", "dattablespace")

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Apply a record; return whether it concerned a shared catalog. Applying one twice has no effect."""
        is_applied = self.store.redo(record, top_xid)
        if is_applied:
            self.awaiting_ends.add(self.store.database)
        return is_applied

    def databases(self) -> Iterator[Database]:
        """Yield all databases, with templates."""
        heap = self.store.heap(PG_DATABASE)
        for _tid, packed in heap.scan(self.store.snapshot(None)):
            yield self._database(packed)

    def database(self, oid: Oid, top_xid: Xid | None = None) -> Database | None:
        """Return one database as the transaction sees it (None: as committed); None if it does not exist."""
        heap = self.store.heap(PG_DATABASE, top_xid)
        packed = next(heap.find("oid", oid, self.store.snapshot(top_xid)), None)
        return None if packed is None else self._database(packed)

    def changes(self, top_xid: Xid) -> Iterator[DatabaseChange]:
        """Yield the changes of an open transaction to databases, by their OIDs."""
        changes = self.store.open.get(top_xid)
        for oid in sorted({subject.oid for subject in changes.subjects} if changes is not None else ()):
            before, after = self.database(oid), self.database(oid, top_xid)
            if before != after:
                yield DatabaseChange(before, after)

    def being_created(self) -> list[Database]:
        """Return the databases whose CREATE DATABASE is open."""
        changes = [change for xid in self.store.open for change in self.changes(xid)]
        return [change.after for change in changes if change.before is None and change.after is not None]

    def _database(self, packed: bytes) -> Database:
        oid, name, encoding, is_template, tablespace = self._reader.unpack_from(packed, data_at(packed))
        # Names of databases have no particular encoding: each database uses its own.
        text = name_text(name).decode("utf-8", "surrogateescape")
        return Database(oid, text, encoding, is_template, tablespace)
