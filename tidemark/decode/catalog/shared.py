"""The shared catalogs: pg_database, of which there is one for all mirrors of a cluster.

CREATE DATABASE and DROP DATABASE are seen here; mirrors for databases that appear are not made yet. Moving a mirrored
database to another tablespace changes the files of all its relations at once and is not followed: it is an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.decode.catalog.layout import PG_DATABASE, data_at, name_text
from tidemark.decode.catalog.store import CatalogStore
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Oid, Xid
from tidemark.wal.record import Record


class NotFollowed(TidemarkError):
    """A change of a database that the mirror cannot follow."""

    hint = "make a new first copy of that database (cdcctl init)"


@dataclass(frozen=True, slots=True)
class Database:
    """A row of pg_database."""

    oid: Oid
    name: str
    encoding: int  # PostgreSQL's number
    tablespace: Oid


class SharedCatalogs:
    """pg_database as WAL leaves it."""

    def __init__(self, store: CatalogStore) -> None:
        self.store = store
        layout = store.heaps[PG_DATABASE.oid].layout
        self._reader = layout.projection("oid", "datname", "encoding", "dattablespace")

    def redo(self, record: Record, top_xid: Xid) -> bool:
        """Take a record; tell if it was about a shared catalog. Taking one twice does nothing."""
        return self.store.redo(record, top_xid)

    def databases(self) -> Iterator[Database]:
        """Give all databases, templates included."""
        heap = self.store.heap(PG_DATABASE)
        for _tid, packed in heap.scan(self.store.sight(None)):
            yield self._database(packed)

    def database(self, oid: Oid) -> Database | None:
        """Return one database; None if there is none, or none any more."""
        heap = self.store.heap(PG_DATABASE)
        packed = next(heap.find("oid", oid, self.store.sight(None)), None)
        return None if packed is None else self._database(packed)

    def _database(self, packed: bytes) -> Database:
        oid, name, encoding, tablespace = self._reader.unpack_from(packed, data_at(packed))
        # Names of databases are in no particular encoding: each database writes its own.
        return Database(oid, name_text(name).decode("utf-8", "surrogateescape"), encoding, tablespace)
