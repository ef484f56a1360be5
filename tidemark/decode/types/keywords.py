"""SQL key words by major, and PostgreSQL's quoting of identifiers (`quote_identifier`, ruleutils.c).

Only words of a category other than "unreserved" need quotes; the sets are from `pg_get_keywords()` of each major.
"""

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

_FIRST = frozenset("abcdefghijklmnopqrstuvwxyz_")
_REST = _FIRST | frozenset("0123456789")


def quote_identifier(name: str, major: int) -> str:
    """Return `name` as in SQL of `major`: in double quotes unless it is safe without."""
    if name and name[0] in _FIRST and _REST.issuperset(name) and name not in QUOTED_KEYWORDS[major]:
        return name
    return '"' + name.replace('"', '""') + '"'
