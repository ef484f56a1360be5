"""The columns of catalogs that descriptions use, and the readers of these columns in packed rows."""

import struct
from typing import NamedTuple

from tidemark.decode.catalog.layout import (
    PG_ATTRIBUTE,
    PG_CLASS,
    PG_ENUM,
    PG_INDEX,
    PG_INHERITS,
    PG_NAMESPACE,
    PG_RANGE,
    PG_TYPE,
    CatalogId,
)
from tidemark.decode.catalog.store import CatalogStore
from tidemark.model.lsn import OID_BYTES, Oid
from tidemark.model.relation import Align, TypeDescription, TypeKind

ALIGNS = {align.value.encode("ascii"): align for align in Align}
NAMELESS = "???"  # what `format_type` prints for a type that does not exist


class ClassRow(NamedTuple):
    """The columns of pg_class that a description uses."""

    oid: Oid
    name: bytes
    namespace: Oid
    relfilenode: Oid
    tablespace: Oid
    toast: Oid
    persistence: bytes
    kind: bytes
    natts: int
    identity: bytes
    is_partition: bool
    rewrite: Oid


class AttributeRow(NamedTuple):
    """The columns of pg_attribute that a description uses."""

    name: bytes
    type_oid: Oid
    length: int
    number: int
    typmod: int
    by_value: bool
    align: bytes
    not_null: bool
    has_missing: bool
    generated: bytes
    dropped: bool


class TypeRow(NamedTuple):
    """The columns of pg_type that a description uses."""

    name: bytes
    namespace: Oid
    length: int
    by_value: bool
    kind: bytes
    delimiter: bytes
    relation: Oid
    subscript: Oid
    element: Oid
    align: bytes
    storage: bytes
    base: Oid
    typmod: int


class IndexRow(NamedTuple):
    """The columns of pg_index that a description uses."""

    key_count: int
    unique: bool
    primary: bool
    immediate: bool
    valid: bool
    live: bool
    replica_identity: bool


class RowReaders:
    """The precompiled row readers of one store's layouts: created once for each mirror."""

    def __init__(self, store: CatalogStore) -> None:
        def reader(catalog: CatalogId, *columns: str) -> struct.Struct:
            return store.heaps[catalog.oid].layout.projection(*columns)

        self.of_class = reader(
            PG_CLASS,
            *("oid", "relname", "relnamespace", "relfilenode", "reltablespace", "reltoastrelid", "relpersistence"),
            *("relkind", "relnatts", "relreplident", "relispartition", "relrewrite"),
        )
        self.attribute = reader(
            PG_ATTRIBUTE,
            *("attname", "atttypid", "attlen", "attnum", "atttypmod", "attbyval", "attalign", "attnotnull"),
            *("atthasmissing", "attgenerated", "attisdropped"),
        )
        self.type = reader(
            PG_TYPE,
            *("typname", "typnamespace", "typlen", "typbyval", "typtype", "typdelim", "typrelid", "typsubscript"),
            *("typelem", "typalign", "typstorage", "typbasetype", "typtypmod"),
        )
        self.index = reader(
            PG_INDEX,
            *("indnkeyatts", "indisunique", "indisprimary", "indimmediate", "indisvalid", "indislive"),
            "indisreplident",
        )
        self.index_oid = reader(PG_INDEX, "indexrelid")
        self.namespace = reader(PG_NAMESPACE, "nspname")
        self.enum = reader(PG_ENUM, "oid", "enumsortorder", "enumlabel")
        self.range = reader(PG_RANGE, "rngtypid", "rngsubtype")
        self.inherits = reader(PG_INHERITS, "inhparent", "inhdetachpending")
        attributes = store.heaps[PG_ATTRIBUTE.oid].layout
        self.attribute_from = attributes.offsets["attrelid"] + OID_BYTES  # all columns but attrelid
        self.attribute_to = attributes.fixed_bytes


def nameless_type(oid: Oid, holder: AttributeRow | TypeRow) -> TypeDescription:
    """Return a type that does not exist, with values that are stored as those of its column or domain.

    NB: of the subtype of a range, nothing is known: the values of such a range are not read.
    """
    return TypeDescription(
        oid=oid,
        namespace=NAMELESS,
        name=NAMELESS,
        display_name=NAMELESS,
        kind=TypeKind.BASE,
        length=holder.length,
        by_value=holder.by_value,
        align=ALIGNS[holder.align],
    )
