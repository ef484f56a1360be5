"""The privileges that a role lacks to read the tables of one database in full."""

from dataclasses import dataclass

from tidemark.io.node.node import Node
from tidemark.model.lsn import FIRST_USER_OID, Oid

_LACKING = f"""
    SELECT c.oid::int8, pg_catalog.quote_ident(n.nspname), pg_catalog.format('%I.%I', n.nspname, c.relname),
        pg_catalog.has_schema_privilege(n.oid, 'USAGE'), pg_catalog.has_table_privilege(c.oid, 'SELECT'),
        pg_catalog.row_security_active(c.oid)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.oid >= {FIRST_USER_OID}
        AND NOT (pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
            AND NOT pg_catalog.row_security_active(c.oid))
    ORDER BY n.nspname, c.relname
"""  # noqa: S608 - a constant of ours


@dataclass(frozen=True, slots=True)
class LackingTable:
    """A table that the role cannot read in full; its names are quoted for SQL."""

    oid: Oid
    schema: str
    table: str  # with its schema
    is_usable: bool  # USAGE on its schema
    is_readable: bool  # SELECT
    hides_rows: bool  # row security


def lacking_tables(node: Node) -> list[LackingTable]:
    """Return the users' tables that the role of a session cannot read in full."""
    rows = node.query(_LACKING.encode())
    return [
        LackingTable(Oid(oid), str(schema), str(table), usable, readable, hides)
        for oid, schema, table, usable, readable, hides in rows
        if readable is not None  # None: dropped after the statement began
    ]


def role_name(node: Node) -> str:
    """Return the role of a session, quoted for SQL."""
    ((name,),) = node.query("SELECT pg_catalog.quote_ident(current_user)")
    return str(name)
