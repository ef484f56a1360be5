"""The first filling of a mirror: ordinary SELECTs, joined with the WAL from the last checkpoint's redo LSN on.

Pure: SQL text out, results in. The caller, which has the connection, does this in order (docs/design/catalog.md):

  1. `pg_control_checkpoint()` gives the redo LSN R0; `COLUMNS`, `IDENTITY` and `FILES`, the same before and after an
     insert LSN, give a mirror: `begin`.
  2. Wait until every transaction from before R0 has ended.
  3. In one REPEATABLE READ transaction: `SESSION`, then COPY of each of `queries`; then the flush LSN L2.
  4. Let the mirror follow the WAL from R0 to L2.
  5. `merge`: the mirror is exact at L2.

Rows from SQL become tuples whose fixed columns are exact; the others are null, except for the two that descriptions
need. The first change of a page after R0 logs its image (full_page_writes), and with it the real bytes.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from tidemark.decode.catalog.heap import ELIDED, CatalogHeap, make_tid
from tidemark.decode.catalog.layout import (
    CATALOG_OF_OID,
    HALF_DROPPED,
    LOCAL_CATALOGS,
    NAME_OID,
    PG_ATTRIBUTE,
    PG_CLASS,
    PG_INDEX,
    PG_TYPE,
    SHARED_CATALOGS,
    CatalogColumn,
    CatalogId,
    CatalogLayout,
)
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.packed_rows import Tid
from tidemark.decode.catalog.seeding.missing import missing_from_oid, missing_from_text
from tidemark.decode.catalog.shared import SharedCatalogs
from tidemark.decode.catalog.store import GLOBAL_TABLESPACE, CatalogStore
from tidemark.model.errors import InternalError
from tidemark.model.lsn import FIRST_USER_OID, INVALID_OID, Lsn, Oid, Xid
from tidemark.model.relation import RelFileLocator
from tidemark.wal.versions import WalFormat

INITDB_XIDS_MAX = 2000  # initdb uses some 750
_LOCAL_OIDS = ", ".join(str(catalog.oid) for catalog in LOCAL_CATALOGS)
_OIDS = ", ".join(str(oid) for oid in CATALOG_OF_OID)
COLUMNS = f"""
    SELECT attrelid::int8, attnum::int4, attname::text, atttypid::int8, attlen::int4, attalign::text, attnotnull
    FROM pg_catalog.pg_attribute WHERE attrelid IN ({_OIDS}) AND attnum > 0 ORDER BY attrelid, attnum
"""  # noqa: S608 - constants of ours
FILES = f"""
    SELECT oid::int8, pg_catalog.pg_relation_filenode(oid)::int8
    FROM pg_catalog.pg_class WHERE oid IN ({_OIDS}) ORDER BY oid
"""  # noqa: S608 - constants of ours
IDENTITY = """
    SELECT oid::int8, dattablespace::int8, pg_catalog.pg_encoding_to_char(encoding)::text
    FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()
"""
CONNECTABLE = f"""
    SELECT datname::text, datistemplate FROM pg_catalog.pg_database
    WHERE datallowconn AND datconnlimit <> {HALF_DROPPED}
      AND pg_catalog.has_database_privilege(oid, 'CONNECT') ORDER BY oid
"""  # noqa: S608 - a constant of ours
# The template that allows no connections. initdb made it from template1, with catalogs whose relfilenodes are their
# OIDs, and nothing but VACUUM has changed it since.
UNTOUCHED_TEMPLATE = """
    SELECT oid::int8, dattablespace::int8, encoding FROM pg_catalog.pg_database
    WHERE datname = 'template0' AND datistemplate AND NOT datallowconn
"""
# Whether the catalogs of this database are as initdb left them, row by row and tid by tid: no row is newer than the
# databases that initdb made, no object is a user's, none of the droppable ones is gone, no catalog was rewritten. A
# frozen row still shows its xmin.
UNTOUCHED = f"""
    WITH made AS (
        SELECT pg_catalog.min(xmin::text::int8) AS xid FROM pg_catalog.pg_database WHERE xmin::text::int8 >= 3),
    newest AS (SELECT pg_catalog.max(xmin::text::int8) AS xid, pg_catalog.max(oid::int8) AS oid FROM (
        SELECT xmin, oid FROM pg_catalog.pg_class
        UNION ALL SELECT xmin, attrelid FROM pg_catalog.pg_attribute
        UNION ALL SELECT xmin, oid FROM pg_catalog.pg_type
        UNION ALL SELECT xmin, oid FROM pg_catalog.pg_namespace
        UNION ALL SELECT xmin, indexrelid FROM pg_catalog.pg_index
        UNION ALL SELECT xmin, enumtypid FROM pg_catalog.pg_enum
        UNION ALL SELECT xmin, rngtypid FROM pg_catalog.pg_range
        UNION ALL SELECT xmin, inhrelid FROM pg_catalog.pg_inherits) AS found)
    SELECT newest.xid <= made.xid AND made.xid < {INITDB_XIDS_MAX} AND newest.oid < {FIRST_USER_OID}
        AND (SELECT pg_catalog.count(*) = 2 FROM pg_catalog.pg_namespace
            WHERE nspname IN ('public', 'information_schema'))
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_class
            WHERE oid IN ({_LOCAL_OIDS}) AND pg_catalog.pg_relation_filenode(oid) <> oid)
    FROM made, newest
"""  # noqa: S608 - constants of ours
# The types to which a type `t` of pg_type refers: element, base type, attributes, range and subtype.
TYPE_PARTS = """
    SELECT t.typelem UNION ALL SELECT t.typbasetype
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0
    UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid
    UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
"""
# The OIDs that describe users' tables: the tables, the row types to which their columns refer, and all their types.
DESCRIBING = f"""
    WITH RECURSIVE made (oid) AS (
        SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid >= {FIRST_USER_OID} AND c.relkind IN ('r', 'p')),
    used (oid) AS (
        SELECT a.atttypid FROM made JOIN pg_catalog.pg_attribute a ON a.attrelid = made.oid AND a.attnum > 0
        UNION SELECT part.oid
        FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid, LATERAL ({TYPE_PARTS}) part (oid))
    SELECT ARRAY(TABLE made UNION SELECT t.typrelid FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid)::text,
        ARRAY(TABLE used)::text
"""  # noqa: S608 - constants of ours
SESSION = (  # determines the text of missing values (docs/design/catalog.md)
    "SET search_path = public",
    "SET timezone = 'UTC'",
    "SET datestyle = 'ISO, MDY'",
    "SET intervalstyle = 'postgres'",
    "SET extra_float_digits = 1",
    "SET bytea_output = 'hex'",
)
_ENCODED = (
    "pg_catalog.convert_to({}, pg_catalog.getdatabaseencoding())"  # the database's bytes, whatever the client encoding
)
# A missing value that is an OID: of a label, or of an object that `regclass` and similar types name. The latter is in
# the result of array_send after 24 bytes: dimensions, flags, type, size, lower bound, length.
_MISSING_OID = """
    CASE WHEN atthasmissing THEN coalesce(
        (SELECT pg_catalog.int4send(e.oid::int8::bit(32)::int4) FROM pg_catalog.pg_enum e, pg_catalog.pg_type t
         WHERE t.oid = atttypid AND e.enumtypid IN (t.oid, t.typbasetype)
           AND e.enumlabel::text = (attmissingval::text::text[])[1]),
        CASE WHEN atttypid IN (24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191)
        THEN pg_catalog.substring(pg_catalog.array_send(attmissingval), 25, 4) END) END
"""
_INT2_OID = 21
_INT2VECTOR = struct.Struct("<IiiIii")
_COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_COPY_HEADER = struct.Struct(">11sII")
_FIELD_COUNT = struct.Struct(">h")
_FIELD_LENGTH = struct.Struct(">i")

ColumnRow = tuple[int, int, str, int, int, str, bool]


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """The result of `IDENTITY`: database, its default tablespace, the name of its encoding."""

    database: Oid
    tablespace: Oid
    encoding: str


@dataclass(frozen=True, slots=True)
class SeedQuery:
    """Rows of a catalog to copy: `COPY (sql) TO STDOUT (FORMAT binary)`."""

    catalog: CatalogId
    sql: str
    tids_only: bool = False  # of rows whose contents are not needed

    @property
    def copy(self) -> str:
        """The complete statement."""
        return f"COPY ({self.sql}) TO STDOUT (FORMAT binary)"


def begin(
    fmt: WalFormat,
    identity: DatabaseIdentity,
    columns: Iterable[ColumnRow],
    files: Iterable[tuple[int, int]],
    *,
    next_xid: Xid,
    files_lsn: Lsn,
    shared: SharedCatalogs | None = None,
) -> CatalogMirror:
    """Return a mirror without rows that can follow WAL from R0, where `next_xid` was the next xid.

    `files` were current at `files_lsn`, after R0: catalogs may have been rewritten in between. `shared` is that of
    another mirror of the same seed, if there is one.
    """
    layouts = layouts_of(columns)
    file_of = dict(files)

    def heaps(catalogs: Sequence[CatalogId], spc: Oid, db: Oid) -> Iterator[CatalogHeap]:
        for catalog in catalogs:
            locator = RelFileLocator(spc, db, Oid(file_of[catalog.oid]))
            yield CatalogHeap(layouts[catalog.oid], locator, seeding=True)

    def store(database: Oid, tablespace: Oid, heaps: Iterator[CatalogHeap]) -> CatalogStore:
        return CatalogStore(fmt, database, tablespace, heaps, seeding_from=next_xid, files_lsn=files_lsn)

    if shared is None:
        shared_heaps = heaps(SHARED_CATALOGS, GLOBAL_TABLESPACE, INVALID_OID)
        shared = SharedCatalogs(store(INVALID_OID, GLOBAL_TABLESPACE, shared_heaps))
    local_heaps = heaps(LOCAL_CATALOGS, identity.tablespace, identity.database)
    return CatalogMirror(store(identity.database, identity.tablespace, local_heaps), shared, identity.encoding)


def queries(mirror: CatalogMirror) -> Sequence[SeedQuery]:
    """Return the queries for all catalogs."""
    system_columns = "SELECT ctid FROM pg_catalog.pg_attribute WHERE attnum < 0"
    queries = [_row_query(layout) for layout in _seeding_layouts(mirror)]
    return [*queries, SeedQuery(PG_ATTRIBUTE, system_columns, tids_only=True)]


def queries_of_tables(mirror: CatalogMirror, relations: str, types: str) -> Sequence[SeedQuery]:
    """Return the queries for the result of `DESCRIBING`: to describe users' tables without following WAL."""
    wanted = {
        PG_CLASS: f"oid = ANY ('{relations}')",
        PG_ATTRIBUTE: f"attrelid = ANY ('{relations}')",
        PG_INDEX: f"indrelid = ANY ('{relations}')",
        # With each type, all types of its name: one in pg_catalog hides one in public, which then needs its schema.
        PG_TYPE: f"typname IN (SELECT typname FROM pg_catalog.pg_type WHERE oid = ANY ('{types}'))",  # noqa: S608
    }
    return [_row_query(layout, wanted.get(layout.catalog)) for layout in _seeding_layouts(mirror)]


def _seeding_layouts(mirror: CatalogMirror) -> Iterator[CatalogLayout]:
    stores = [store for store in (mirror.store, mirror.shared.store) if store.seeding]
    return (heap.layout for store in stores for heap in store.heaps.values())


def merge(mirror: CatalogMirror, answers: Mapping[SeedQuery, Iterable[bytes]]) -> None:
    """Join the rows from SQL with those from WAL; `answers` are the binary COPY data, split anywhere.

    A catalog that was rewritten after R0 is complete already: WAL contains the whole copy.
    """
    stores = [store for store in (mirror.store, mirror.shared.store) if store.seeding]
    heaps = {oid: heap for store in stores for oid, heap in store.heaps.items()}
    for query, data in answers.items():
        heap = heaps.get(query.catalog.oid)  # None: a shared catalog, completed by another database's merge
        if heap is not None and heap.seeding:
            copied = b"".join(data)
            heap.add_seeded(_tids(copied) if query.tids_only else _rows(copied, heap.layout))
    for store in stores:
        store.end_seed()


def layouts_of(columns: Iterable[ColumnRow]) -> dict[Oid, CatalogLayout]:
    """Return the layout of each catalog's rows."""
    of_catalog: dict[int, list[CatalogColumn]] = {}
    for catalog, number, name, type_oid, length, align, not_null in columns:
        column = CatalogColumn(number, name, Oid(type_oid), length, align, not_null)
        of_catalog.setdefault(catalog, []).append(column)
    return {catalog.oid: CatalogLayout(catalog, of_catalog[catalog.oid]) for catalog in CATALOG_OF_OID.values()}


def _row_query(layout: CatalogLayout, wanted: str | None = None) -> SeedQuery:
    """Select the ctid, the fixed columns, the names, and the one other column that is needed."""
    fixed = [f'"{column.name}"' for column in layout.fixed if column.type_oid != NAME_OID]
    names = [_ENCODED.format(f'"{column.name}"::text') for column in layout.fixed if column.type_oid == NAME_OID]
    more: list[str] = []
    conditions = [wanted] if wanted else []
    if layout.catalog is PG_ATTRIBUTE:
        more = [_MISSING_OID, _ENCODED.format("(attmissingval::text::text[])[1]")]
        conditions.append("attnum > 0")
    elif layout.catalog is PG_INDEX:
        more = ["indkey::text"]
    selected = ", ".join(["ctid", *fixed, *names, *more])
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    source = f"pg_catalog.{layout.catalog.name}{where}"
    return SeedQuery(layout.catalog, f"SELECT {selected} FROM {source}")  # noqa: S608 - constants and catalog columns


def _tids(copied: bytes) -> Iterator[tuple[Tid, bytes]]:
    reader = struct.Struct(">4xIH")
    for at in _row_starts(copied, reader.size, 0):
        block, offset = reader.unpack_from(copied, at)
        yield make_tid(block, offset), ELIDED


def _rows(copied: bytes, layout: CatalogLayout) -> Iterator[tuple[Tid, bytes]]:
    """Yield the rows of the result of `_row_query` as packed tuples."""
    sized = [column for column in layout.fixed if column.type_oid != NAME_OID]
    names = [column for column in layout.fixed if column.type_oid == NAME_OID]
    order = {column.number: index for index, column in enumerate([*sized, *names])}
    permute = itemgetter(*(order[column.number] for column in layout.fixed))
    if len(order) == 1:
        raise InternalError(f"{layout.catalog.name} has a single fixed column")
    # The server's binary form is big-endian, each value after its length; our projection gives a value's code.
    codes = [layout.projection(column.name).format.lstrip("<").lstrip("0123456789x") for column in sized]
    reader = struct.Struct(">4xIH" + "".join(f"4x{code}" for code in codes))
    more_count = {PG_ATTRIBUTE.oid: 2, PG_INDEX.oid: 1}.get(layout.catalog.oid, 0)
    pack = layout.fixed_struct.pack
    nothing: list[bytes | None] = [None] * (len(layout.columns) - len(layout.fixed))
    for start in _row_starts(copied, reader.size, len(names) + more_count):
        block, offset, *values = reader.unpack_from(copied, start)
        at = start + reader.size
        for _ in names:
            value, at = _field(copied, at)
            values.append(value or b"")
        more = []
        for _ in range(more_count):
            value, at = _field(copied, at)
            more.append(value)
        rest = None
        if more and more[-1] is not None:
            rest = nothing.copy()
            if layout.catalog is PG_INDEX:
                rest[0] = _int2vector(more[-1])
            elif more[0] is not None:
                rest[-1] = missing_from_oid(int.from_bytes(more[0], "big"))
            else:
                rest[-1] = missing_from_text(more[-1])
        yield make_tid(block, offset), layout.form(pack(*permute(values)), rest)


def _row_starts(copied: bytes, sized_bytes: int, fields_after: int) -> Iterator[int]:
    """Yield the offset of each row's fields in binary COPY data."""
    signature, _flags, extension = _COPY_HEADER.unpack_from(copied)
    if signature != _COPY_SIGNATURE:
        raise InternalError("the answer to a seed's query is not binary COPY data")
    at = _COPY_HEADER.size + extension
    while _FIELD_COUNT.unpack_from(copied, at)[0] >= 0:
        at += _FIELD_COUNT.size
        yield at
        at += sized_bytes
        for _ in range(fields_after):
            _value, at = _field(copied, at)


def _field(copied: bytes, at: int) -> tuple[bytes | None, int]:
    """Return a field and the offset of the next one."""
    (length,) = _FIELD_LENGTH.unpack_from(copied, at)
    begin = at + _FIELD_LENGTH.size
    return (None, begin) if length < 0 else (copied[begin : begin + length], begin + length)


def _int2vector(text: bytes) -> bytes:
    """Return the datum of an int2vector from its text (`1 2`)."""
    values = [int(value) for value in text.split()]
    head = _INT2VECTOR.pack((_INT2VECTOR.size + 2 * len(values)) << 2, 1, 0, _INT2_OID, len(values), 0)
    return head + struct.pack(f"<{len(values)}h", *values)
