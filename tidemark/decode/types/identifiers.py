"""Names as PostgreSQL prints them: quoted (`quote_identifier`, ruleutils.c), and with a schema (`format_type.c`).

Only key words of a category other than "unreserved" need quotes; the sets are from `pg_get_keywords()` of each major.
The reference search_path is `"$user", public`; `$user` has no effect: the decoding user is assumed to have no schema.
"""

from tidemark.model.lsn import Oid

_BASE = """
    all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean both case cast
    char character check coalesce collate collation column concurrently constraint create cross current_catalog
    current_date current_role current_schema current_time current_timestamp current_user dec decimal default deferrable
    desc distinct do else end except exists extract false fetch float for foreign freeze from full grant greatest group
    grouping having ilike in initially inner inout int integer intersect interval into is isnull join lateral leading
    least left like limit localtime localtimestamp national natural nchar none normalize not notnull null nullif numeric
    offset on only or order out outer overlaps overlay placing position precision primary real references returning
    right row select session_user setof similar smallint some substring symmetric table tablesample then time timestamp
    to trailing treat trim true union unique user using values varchar variadic verbose when where window with
    xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
"""
_NEW_IN_16 = "json_array json_arrayagg json_object json_objectagg system_user"
_NEW_IN_17 = "json json_exists json_query json_scalar json_serialize json_table json_value merge_action"

_14 = frozenset(_BASE.split())
_16 = _14 | frozenset(_NEW_IN_16.split())
_17 = _16 | frozenset(_NEW_IN_17.split())
QUOTED_KEYWORDS = {14: _14, 15: _14, 16: _16, 17: _17, 18: _17}
"""Per major: the words that an identifier may not be without quotes."""

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

_FIRST = frozenset("abcdefghijklmnopqrstuvwxyz_")
_REST = _FIRST | frozenset("0123456789")


def quote_identifier(name: str, major: int) -> str:
    """Return `name` as in SQL of `major`: in double quotes unless it is safe without."""
    if name and name[0] in _FIRST and _REST.issuperset(name) and name not in QUOTED_KEYWORDS[major]:
        return name
    return '"' + name.replace('"', '""') + '"'


def type_display_name(oid: Oid, namespace: str | None, name: str, major: int, *, hidden: bool) -> str:
    """Return what `format_type` prints for a type that is not an array; `hidden`: pg_catalog has one of its name."""
    return _SPECIAL[oid] if oid in _SPECIAL else visible_name(namespace, name, major, hidden=hidden)


def visible_name(namespace: str | None, name: str, major: int, *, hidden: bool) -> str:
    """Return a name, with its schema if it has one and the path would not find it.

    `hidden`: pg_catalog has one of this name.
    """
    if namespace is None or namespace == PG_CATALOG or (namespace == PUBLIC and not hidden):
        return quote_identifier(name, major)
    return f"{quote_identifier(namespace, major)}.{quote_identifier(name, major)}"
