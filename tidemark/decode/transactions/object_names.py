"""What relations, types and schemas were called when rows were written that hold them (`regclass` and its like).

Such a value is an OID, and prints as a name: that of the moment when its record is read, which is not kept anywhere
once the transaction commits. So each name that a row needs is noted beside it, for whoever prints the row.
"""

from typing import NamedTuple

from tidemark.decode.datum.tuples import TupleLayout, deform
from tidemark.decode.transactions.ports import Catalog
from tidemark.decode.types.codec import Codec, Dialect
from tidemark.decode.types.registry import column_codec, prints_names
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, Xid
from tidemark.model.relation import Relation

TABLES_MAX = 65536  # relation versions whose codecs are remembered
NOTE_BYTES = 200  # that a note takes, about


class NamesNoted:
    """The names that rows of one transaction need, each with the LSN of the record from which on it held."""

    __slots__ = ("_noted", "note_count")

    def __init__(self) -> None:
        self._noted: dict[tuple[Oid, Oid], list[tuple[Lsn, str]]] = {}
        self.note_count = 0

    @property
    def byte_count(self) -> int:
        """Memory taken, about."""
        return self.note_count * NOTE_BYTES

    def note(self, kind: Oid, oid: Oid, lsn: Lsn, name: str) -> None:
        """Note what an object is called as of `lsn`; LSNs do not fall."""
        notes = self._noted.setdefault((kind, oid), [])
        if not notes or notes[-1][1] != name:
            notes.append((lsn, name))
            self.note_count += 1

    def name(self, kind: Oid, oid: Oid, lsn: Lsn) -> str:
        """Return what an object was called as of `lsn`; its number where that was not noted."""
        notes = self._noted.get((kind, oid), ())
        return next((name for since, name in reversed(notes) if since <= lsn), str(oid))


NO_NAMES = NamesNoted()  # of transactions of which none were kept


class NamesThen:
    """Names as of one record: `ObjectNames` for a printer, which says of which record."""

    def __init__(self) -> None:
        self.noted = NO_NAMES
        self.lsn = INVALID_LSN

    def name(self, kind: Oid, oid: Oid) -> str:
        """Return what was noted."""
        return self.noted.name(kind, oid, self.lsn)


class RowPlace(NamedTuple):
    """Where a row was written: with whose eyes to look at the catalog, and where to note what is seen."""

    catalog: Catalog
    top_xid: Xid
    lsn: Lsn
    noted: NamesNoted


class _NamesNow:
    """Names as a catalog has them: `ObjectNames` that notes what it is asked for."""

    def __init__(self) -> None:
        self.place: RowPlace | None = None

    def name(self, kind: Oid, oid: Oid) -> str:
        assert self.place is not None
        catalog, top_xid, lsn, noted = self.place
        name = catalog.object_name(kind, oid, top_xid) or str(oid)
        noted.note(kind, oid, lsn, name)
        return name


class _NamedColumns(NamedTuple):
    """A relation version's columns with names in their values."""

    layout: TupleLayout
    codecs: tuple[tuple[int, Codec], ...]


class NameKeeper:
    """Notes the names that rows need."""

    def __init__(self) -> None:
        self._now = _NamesNow()
        self._known: dict[tuple[str, Relation], _NamedColumns] = {}

    def note(self, place: RowPlace, relation: Relation, *packed: bytes | None) -> None:
        """Note the names that the tuples of a row need."""
        columns = self._columns(place.catalog.dialect, relation)
        if not columns.codecs:
            return
        self._now.place = place
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
        if columns is None:
            if len(self._known) >= TABLES_MAX:
                self._known.clear()
            naming = dialect.naming(self._now)
            columns = self._known[key] = _NamedColumns(
                TupleLayout.of(relation),
                tuple(
                    (index, column_codec(column, naming))
                    for index, column in enumerate(relation.columns)
                    if not column.dropped and prints_names(column.type)
                ),
            )
        return columns
