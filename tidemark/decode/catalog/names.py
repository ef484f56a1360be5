"""Names as PostgreSQL prints them under the reference search_path `"$user", public` (`format_type.c`).

`$user` has no effect: the decoding user is assumed to have no schema.
"""

from tidemark.decode.types.keywords import quote_identifier
from tidemark.model.lsn import Oid

PG_CATALOG = "pg_catalog"
PUBLIC = "public"

_SPECIAL = {
    16: "boolean",
    20: "bigint",
    21: "smallint",
    23: "integer",
    114: "json",
    700: "real",
    701: "double precision",
    1042: "character",
    1043: "character varying",
    1083: "time without time zone",
    1114: "timestamp without time zone",
    1184: "timestamp with time zone",
    1186: "interval",
    1266: "time with time zone",
    1560: "bit",
    1562: "bit varying",
    1700: "numeric",
}


def type_display_name(oid: Oid, namespace: str, name: str, major: int, *, hidden: bool) -> str:
    """Return what `format_type` prints for a type that is not an array; `hidden`: pg_catalog has one of its name."""
    return _SPECIAL[oid] if oid in _SPECIAL else visible_name(namespace, name, major, hidden=hidden)


def visible_name(namespace: str, name: str, major: int, *, hidden: bool) -> str:
    """Return a name, with its schema if the path would not find it; `hidden`: pg_catalog has one of this name."""
    if namespace == PG_CATALOG or (namespace == PUBLIC and not hidden):
        return quote_identifier(name, major)
    return f"{quote_identifier(namespace, major)}.{quote_identifier(name, major)}"
