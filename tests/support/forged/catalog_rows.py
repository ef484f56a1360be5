"""Hand-made catalog layouts and rows, for tests without a server."""

import struct

from tidemark.decode.catalog.heap import CatalogHeap
from tidemark.decode.catalog.layout import (
    PG_ATTRIBUTE,
    PG_CLASS,
    PG_ENUM,
    PG_NAMESPACE,
    CatalogColumn,
    CatalogId,
    CatalogLayout,
)
from tidemark.model.lsn import Oid
from tidemark.model.relation import RelFileLocator

DATABASE = Oid(5)
TABLESPACE = Oid(1663)

# Names, types and lengths of PostgreSQL 15; only columns with a fixed offset, then those that a test reads.
_OID, _NAME, _INT2, _INT4, _BOOL, _CHAR, _FLOAT4 = 26, 19, 21, 23, 16, 18, 700
_LENGTHS = {_OID: 4, _NAME: 64, _INT2: 2, _INT4: 4, _BOOL: 1, _CHAR: 1, _FLOAT4: 4}
_ALIGNS = {_OID: "i", _NAME: "c", _INT2: "s", _INT4: "i", _BOOL: "c", _CHAR: "c", _FLOAT4: "i"}
_SHAPES = {
    PG_ENUM: (("oid", _OID), ("enumtypid", _OID), ("enumsortorder", _FLOAT4), ("enumlabel", _NAME)),
    PG_NAMESPACE: (("oid", _OID), ("nspname", _NAME), ("nspowner", _OID)),
    PG_ATTRIBUTE: (
        ("attrelid", _OID),
        ("attname", _NAME),
        ("atttypid", _OID),
        ("attnum", _INT2),
        ("attisdropped", _BOOL),
    ),
    PG_CLASS: (
        *(("oid", _OID), ("relname", _NAME), ("relnamespace", _OID), ("relfilenode", _OID), ("reltablespace", _OID)),
        *(("relkind", _CHAR), ("relrewrite", _OID)),
    ),
}
_VARLENA = {PG_ATTRIBUTE: ("attacl", "attmissingval"), PG_NAMESPACE: ("nspacl",), PG_CLASS: ("relacl", "reloptions")}


def layout(catalog: CatalogId) -> CatalogLayout:
    """Return a layout with some of the catalog's columns."""
    fixed = [
        CatalogColumn(number, name, Oid(type_oid), _LENGTHS[type_oid], _ALIGNS[type_oid], not_null=True)
        for number, (name, type_oid) in enumerate(_SHAPES[catalog], 1)
    ]
    rest = [
        CatalogColumn(len(fixed) + number, name, Oid(1034), -1, "d" if name == "attmissingval" else "i", not_null=False)
        for number, name in enumerate(_VARLENA.get(catalog, ()), 1)
    ]
    return CatalogLayout(catalog, [*fixed, *rest])


def heap(catalog: CatalogId, relfilenode: int = 1000, *, seeding: bool = False) -> CatalogHeap:
    """Return an empty heap of the catalog."""
    return CatalogHeap(layout(catalog), RelFileLocator(TABLESPACE, DATABASE, Oid(relfilenode)), seeding=seeding)


def varlena(content: bytes) -> bytes:
    """Return `content` with a 4-byte header."""
    return struct.pack("<I", (len(content) + 4) << 2) + content


def enum_row(oid: int, type_oid: int, label: str = "x") -> bytes:
    """Return a row of pg_enum."""
    made = layout(PG_ENUM)
    return made.form(made.fixed_struct.pack(oid, type_oid, 1.0, label.encode()))


def attribute_row(relation: int, number: int, name: str = "a", missing: bytes | None = None) -> bytes:
    """Return a row of pg_attribute."""
    made = layout(PG_ATTRIBUTE)
    return made.form(made.fixed_struct.pack(relation, name.encode(), 23, number, False), [None, missing])
