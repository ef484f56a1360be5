"""Names of relations, types and schemas when rows referring to them were written (`regclass` and similar types).

Such a value is an OID and prints as a name: the name at the time of its record, which is not stored anywhere after the
transaction commits. So each name that a row needs is stored with the transaction, for the code that prints the row.
"""

from typing import NamedTuple

from tidemark.decode.datum.tuples import TupleLayout, deform
from tidemark.decode.transactions.ports import Catalog
from tidemark.decode.transactions.version_cache import VersionCache
from tidemark.decode.types.codec import Codec, Dialect
from tidemark.decode.types.registry import column_codec, prints_names
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, Xid
from tidemark.model.relation import Relation

NAME_BYTES = 200  # approximate memory of one name


class RecordedNames:
    """The names that rows of one transaction need, each with the LSN of the record from which on it is valid."""

    __slots__ = ("_names", "name_count")

    def __init__(self) -> None:
        self._names: dict[tuple[Oid, Oid], list[tuple[Lsn, str]]] = {}
        self.name_count = 0

    @property
    def byte_count(self) -> int:
        """Approximate memory used."""
        return self.name_count * NAME_BYTES

    def record(self, kind: Oid, oid: Oid, lsn: Lsn, name: str) -> None:
        """Store an object's name as of `lsn`; LSNs must not decrease."""
        versions = self._names.setdefault((kind, oid), [])
        if not versions or versions[-1][1] != name:
            versions.append((lsn, name))
            self.name_count += 1

    def name(self, kind: Oid, oid: Oid, lsn: Lsn) -> str:
        """Return an object's name as of `lsn`; its OID if none was stored."""
        versions = self._names.get((kind, oid), ())
        return next((name for since, name in reversed(versions) if since <= lsn), str(oid))


NO_NAMES = RecordedNames()  # of transactions without stored names


class NamesThen:
    """Names as of one record: `ObjectNames` for a printer, which sets `lsn`."""

    def __init__(self) -> None:
        self.recorded = NO_NAMES
        self.lsn = INVALID_LSN

    def name(self, kind: Oid, oid: Oid) -> str:
        """Return the stored name."""
        return self.recorded.name(kind, oid, self.lsn)


class RowContext(NamedTuple):
    """The context of a row: which transaction's view of the catalog to use, and where to store the names."""

    catalog: Catalog
    top_xid: Xid
    lsn: Lsn
    recorded: RecordedNames


class _NamesNow:
    """The current names in a catalog: `ObjectNames` that stores each name it returns."""

    def __init__(self) -> None:
        self.context: RowContext | None = None

    def name(self, kind: Oid, oid: Oid) -> str:
        assert self.context is not None
        catalog, top_xid, lsn, recorded = self.context
        name = catalog.object_name(kind, oid, top_xid) or str(oid)
        recorded.record(kind, oid, lsn, name)
        return name


class _NamedColumns(NamedTuple):
    """The columns of a relation version whose values contain names."""

    layout: TupleLayout
    codecs: tuple[tuple[int, Codec], ...]


class NameKeeper:
    """Stores the names that rows need."""

    def __init__(self) -> None:
        self._now = _NamesNow()
        self._known: VersionCache[tuple[str, Relation], _NamedColumns] = VersionCache()

    def record(self, context: RowContext, relation: Relation, *packed: bytes | None) -> None:
        """Store the names that the tuples of a row need."""
        columns = self._columns(context.catalog.dialect, relation)
        if not columns.codecs:
            return
        self._now.context = context
        for row in packed:
            if row is None:
                continue
            values = deform(row, columns.layout)
            for index, codec in columns.codecs:
                value = values[index]
                if isinstance(value, bytes):
                    codec.text(value)

    def _columns(self, dialect: Dialect, relation: Relation) -> _NamedColumns:
        key = (dialect.encoding, relation)
        columns = self._known.get(key)
        if columns is not None:
            return columns
        naming = dialect.naming(self._now)
        codecs = tuple(
            (index, column_codec(column, naming))
            for index, column in enumerate(relation.columns)
            if not column.dropped and prints_names(column.type)
        )
        return self._known.keep(key, _NamedColumns(TupleLayout.of(relation), codecs))
