"""Rows of a table read from its file, and its description read by SQL: input for tests of the codecs.

This is independent of WAL and of the catalog mirror: the server writes the page and describes it; the tests read it.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from tidemark.decode.datum.tuples import Datum, TupleLayout, deform
from tidemark.model.lsn import Oid
from tidemark.model.relation import Align, Column, EnumLabel, Relation, ReplicaIdentity, TypeDescription, TypeKind

PAGE_BYTES = 8192
LINE_POINTERS_AT = 24
NORMAL = 1  # flag of a line pointer
TUPLE_HEADER = struct.Struct("<III6sHHB")
PACKED_HEADER = struct.Struct("<HHB")


def packed_tuples(data: Path, session: psycopg.Connection[TupleRow], table: str) -> list[bytes]:
    """Return the packed tuples of `table` in physical order; rows must not have been updated or deleted."""
    session.execute("CHECKPOINT")
    row = session.execute("SELECT pg_relation_filepath(%s::regclass)", [table]).fetchone()
    assert row is not None
    content = (data / row[0]).read_bytes()
    packed: list[bytes] = []
    for start in range(0, len(content), PAGE_BYTES):
        packed += page_tuples(content[start : start + PAGE_BYTES])
    return packed


def load_values(
    session: psycopg.Connection[TupleRow], table: str, declaration: str, values: Sequence[str | None]
) -> None:
    """Create `table` (number serial, value of the declared type, stored inline if possible) and COPY `values` in."""
    session.execute(f"DROP TABLE IF EXISTS {table}")
    session.execute(f"CREATE TABLE {table} (number serial, value {declaration})")
    row = session.execute("SELECT attstorage FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 2", [table])
    if row.fetchall() != [("p",)]:
        session.execute(f"ALTER TABLE {table} ALTER value SET STORAGE MAIN")
    with session.cursor().copy(f"COPY {table} (value) FROM STDIN") as copy:
        for value in values:
            copy.write_row([value])


def stored_values(data: Path, session: psycopg.Connection[TupleRow], table: str) -> tuple[Column, list[Datum]]:
    """Return the column `value` of a table of `load_values`, and the result of deforming, by number."""
    relation = describe_relation(session, table)
    layout = TupleLayout.of(relation)
    rows = [deform(packed, layout) for packed in packed_tuples(data, session, table)]
    # NB: physical order is not the order of insertion: a short row goes to an earlier page with free space.
    rows.sort(key=lambda row: int.from_bytes(row[0] if isinstance(row[0], bytes) else b"", "little"))
    return relation.columns[1], [row[1] for row in rows]


def output_texts(session: psycopg.Connection[TupleRow], table: str) -> list[str | None]:
    """Return what the type's output function prints for each value.

    NB: a cast to text is not the output function: it says true for t, and trims blanks. Nor is a row of NULLs a NULL.
    """
    return [
        row[0]
        for row in session.execute(
            f"SELECT CASE WHEN value IS DISTINCT FROM NULL THEN format('%s', value) END FROM {table} ORDER BY number"
        )
    ]


def page_tuples(page: bytes) -> list[bytes]:
    """Return the packed tuples of one page."""
    (lower,) = struct.unpack_from("<H", page, 12)
    packed = []
    for (pointer,) in struct.iter_unpack("<I", page[LINE_POINTERS_AT : max(lower, LINE_POINTERS_AT)]):
        at, flags, length = pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17
        if flags == NORMAL:
            *_, infomask2, infomask, hoff = TUPLE_HEADER.unpack_from(page, at)
            packed.append(PACKED_HEADER.pack(infomask2, infomask, hoff) + page[at + 23 : at + length])
    return packed


def describe_type(session: psycopg.Connection[TupleRow], oid: int) -> TypeDescription:
    """Return the description of a type, recursively."""
    row = session.execute(
        "SELECT n.nspname, t.typname, format_type(t.oid, NULL), t.typtype, t.typlen, t.typbyval, t.typalign,"
        " t.typdelim,"
        " CASE WHEN t.typsubscript = 'array_subscript_handler'::regproc THEN t.typelem ELSE 0 END,"
        " t.typbasetype, t.typtypmod, t.typrelid,"
        " (SELECT CASE t.typtype WHEN 'r' THEN rngsubtype ELSE rngtypid END FROM pg_range"
        " WHERE t.oid IN (rngtypid, rngmultitypid))"
        " FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = %s",
        [oid],
    ).fetchone()
    assert row is not None
    namespace, name, display, kind, length, by_value, align, delimiter, element, base, base_typmod, rows, subtype = row
    labels = session.execute(
        "SELECT oid, enumsortorder, enumlabel FROM pg_enum WHERE enumtypid = %s ORDER BY enumsortorder", [oid]
    ).fetchall()
    return TypeDescription(
        oid=Oid(oid),
        namespace=namespace,
        name=name,
        display_name=display,
        kind=TypeKind(kind),
        length=length,
        by_value=by_value,
        align=Align(align),
        delimiter=delimiter,
        element=describe_type(session, element) if element else None,
        base=describe_type(session, base) if base else None,
        base_typmod=base_typmod,
        labels=tuple(EnumLabel(Oid(o), order, label) for o, order, label in labels),
        subtype=describe_type(session, subtype) if subtype else None,
        attributes=_columns(session, rows) if kind == "c" else (),
    )


def _columns(session: psycopg.Connection[TupleRow], relation: int) -> tuple[Column, ...]:
    rows = session.execute(
        "SELECT attnum, attname, atttypid, atttypmod, attlen, attbyval, attalign, attnotnull, attisdropped,"
        " attgenerated FROM pg_attribute WHERE attrelid = %s AND attnum > 0 ORDER BY attnum",
        [relation],
    ).fetchall()
    return tuple(
        Column(
            number=number,
            name=name,
            type=None if dropped else describe_type(session, type_oid),
            typmod=typmod,
            length=length,
            by_value=by_value,
            align=Align(align),
            not_null=not_null,
            dropped=dropped,
            generated=generated,
        )
        for number, name, type_oid, typmod, length, by_value, align, not_null, dropped, generated in rows
    )


def describe_relation(session: psycopg.Connection[TupleRow], table: str) -> Relation:
    """Return the description of a table; SQL cannot read missing values in the server's own array form."""
    row = session.execute("SELECT %s::regclass::oid", [table]).fetchone()
    assert row is not None
    columns = _columns(session, row[0])
    return Relation(Oid(row[0]), "public", table, "r", "p", columns, ReplicaIdentity.DEFAULT)
