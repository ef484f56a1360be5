"""The relations of one database by their names, of any kind, and the role's privileges on them."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from tidemark.decode.types.encodings import decode_text, python_encoding
from tidemark.io.node.node import Node
from tidemark.model.lsn import Oid

NAMES = """
    pg_catalog.convert_to(n.nspname::text, pg_catalog.getdatabaseencoding()),
    pg_catalog.convert_to(c.relname::text, pg_catalog.getdatabaseencoding())
"""
ANCESTORS = """
    pg_catalog.pg_partition_ancestors(c.oid) WITH ORDINALITY AS a (relid, level)
    JOIN pg_catalog.pg_class ac ON ac.oid = a.relid JOIN pg_catalog.pg_namespace an ON an.oid = ac.relnamespace
"""
ANCESTOR_NAMES = f"""
    SELECT ARRAY[pg_catalog.convert_to(an.nspname::text, pg_catalog.getdatabaseencoding()),
        pg_catalog.convert_to(ac.relname::text, pg_catalog.getdatabaseencoding())]
    FROM {ANCESTORS} WHERE a.relid <> c.oid ORDER BY a.level
"""  # noqa: S608 - a constant of ours

_RELATIONS = f"""
    SELECT c.oid::int8, {NAMES}, pg_catalog.getdatabaseencoding()::text
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relrewrite = 0
"""  # noqa: S608 - a constant of ours
_RIGHTS = f"""
    SELECT c.relkind::text, c.relpersistence::text, pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE'),
        pg_catalog.has_table_privilege(c.oid, 'SELECT'), pg_catalog.row_security_active(c.oid),
        ARRAY({ANCESTOR_NAMES})
    FROM pg_catalog.pg_class c WHERE c.oid = %s
"""  # noqa: S608 - a constant of ours


@dataclass(frozen=True, slots=True)
class NamedRelation:
    """The kind of a relation, and the role's privileges on it."""

    oid: Oid
    kind: str  # pg_class.relkind
    persistence: str  # pg_class.relpersistence
    usable: bool  # USAGE on its schema
    readable: bool  # SELECT
    row_security: bool  # policies hide rows from the role
    ancestors: tuple[tuple[str, str], ...] = ()  # of a partition: namespace and name, its parent first


def named_relations(node: Node, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], NamedRelation]:
    """Return the existing relations with these namespaces and names, of any kind."""
    found: dict[tuple[str, str], NamedRelation] = {}
    # NB: compared here, since a statement cannot contain a name that is invalid in the database's encoding.
    for oid, raw_namespace, raw_name, encoding in node.query(_RELATIONS.encode()):
        text = partial(decode_text, encoding=python_encoding(encoding))
        name = (text(raw_namespace), text(raw_name))
        if name not in names:
            continue
        for kind, persistence, usable, readable, row_security, lineage in node.query(_RIGHTS.encode(), (oid,)):
            if readable is not None:  # None: dropped after the statement began
                above = tuple((text(namespace), text(named)) for namespace, named in lineage)
                found[name] = NamedRelation(Oid(oid), kind, persistence, usable, readable, row_security, above)
    return found
