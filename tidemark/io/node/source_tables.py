"""The tables of one database as SQL shows them, each with a fingerprint (stamp) of its description.

A stamp is made of the xmin of all rows of the catalogs that a description comes from: the table's, its columns', those
of its partitioned parents, and of all types that its columns depend on. Built-in types do not change. A stamp shows
that something changed, not what: a caller that sees another stamp reads the catalogs again. Indexes are listed beside
it, since an index that was created and dropped changes no other row: the stamp is the same as before.
"""

from dataclasses import dataclass
from enum import Enum

from tidemark.decode.catalog.seeding.seed import TYPE_PARTS
from tidemark.decode.types.codec import Dialect
from tidemark.io.node.named_relations import ANCESTOR_NAMES, ANCESTORS, NAMES
from tidemark.io.node.node import Node
from tidemark.model.lsn import FIRST_USER_OID, Oid
from tidemark.model.relation import PARTITIONED

_COLUMNS = """
    SELECT pg_catalog.string_agg(pg_catalog.concat(a.attnum, ':', a.xmin), ',' ORDER BY a.attnum)
    FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
"""
_INDEXES = """
    SELECT pg_catalog.concat(pg_catalog.string_agg(
        pg_catalog.concat(i.indexrelid, ':', i.xmin), ',' ORDER BY i.indexrelid))
    FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid
"""
_LINEAGE = f"""
    SELECT pg_catalog.string_agg(pg_catalog.concat(a.relid, ':', ac.xmin, ':', an.xmin), ',' ORDER BY a.level)
    FROM {ANCESTORS}
"""  # noqa: S608 - a constant of ours
# The types of the columns with their element, base, attribute and subtypes, recursively.
_USED = f"""
    WITH RECURSIVE used (oid) AS (
        SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid >= {FIRST_USER_OID}
        UNION SELECT part.oid FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid, LATERAL ({TYPE_PARTS}) part (oid)
        WHERE part.oid >= {FIRST_USER_OID})
"""  # noqa: S608 - constants of ours
# Each type with its labels and attributes.
_TYPES = f"""
    {_USED}
    SELECT pg_catalog.string_agg(pg_catalog.concat_ws(':', t.oid, t.xmin, n.xmin,
        (SELECT pg_catalog.string_agg(pg_catalog.concat(e.oid, ' ', e.xmin), ';' ORDER BY e.oid)
         FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid),
        (SELECT pg_catalog.string_agg(pg_catalog.concat(a.attnum, ' ', a.xmin), ';' ORDER BY a.attnum)
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0)), ',' ORDER BY t.oid)
    FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
"""  # noqa: S608 - a constant of ours
_FORMS = f"""
    {_USED}
    SELECT pg_catalog.concat(e.oid, ' ', e.xmin) FROM used JOIN pg_catalog.pg_enum e ON e.enumtypid = used.oid
    UNION ALL SELECT pg_catalog.concat(t.oid, ':', (
        SELECT pg_catalog.string_agg(a.attnum::text, ',' ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped))
    FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid WHERE t.typrelid <> 0
"""  # noqa: S608 - constants of ours
_PARTITIONS = """
    WITH RECURSIVE below (oid, made) AS (
        SELECT i.inhrelid, i.xmin FROM pg_catalog.pg_inherits i WHERE c.relkind = 'p' AND i.inhparent = c.oid
        UNION ALL SELECT i.inhrelid, i.xmin FROM below JOIN pg_catalog.pg_inherits i ON i.inhparent = below.oid)
    SELECT pg_catalog.concat(pg_catalog.string_agg(pg_catalog.concat(oid, ':', made), ',' ORDER BY oid)) FROM below
"""
_QUERY = f"""
    SELECT c.oid::int8, {NAMES}, pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
        pg_catalog.has_table_privilege(c.oid, 'SELECT'), NOT pg_catalog.row_security_active(c.oid),
        pg_catalog.sha256(pg_catalog.convert_to(
            pg_catalog.concat_ws('/', c.xmin, n.xmin, ({_COLUMNS}), ({_LINEAGE}), ({_TYPES})),
            pg_catalog.getdatabaseencoding())),
        ({_INDEXES}), ({_PARTITIONS}), pg_catalog.getdatabaseencoding()::text, c.relkind::text, ARRAY({ANCESTOR_NAMES})
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.relrewrite = 0
"""  # noqa: S608 - constants of ours

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


class Denial(Enum):
    """Why the capture's role cannot read all rows of a table; the first one applies."""

    SCHEMA = "no USAGE on the schema of"
    TABLE = "no SELECT on"
    ROWS = "row-level security hides rows of"


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as SQL shows it; `stamp` changes whenever its description or that of its types does."""

    oid: Oid
    namespace: str
    name: str
    denial: Denial | None  # None: the role can read all rows
    stamp: bytes
    indexes: str  # changes with their set and with each of them: their OIDs, each with its row's xmin
    partitions: str  # changes with the set of partitions below a partitioned table
    is_partitioned: bool = False
    ancestors: tuple[tuple[str, str], ...] = ()  # of a partition: namespace and name, its parent first

    @property
    def index_oids(self) -> frozenset[Oid]:
        """The OIDs of the indexes."""
        return frozenset(Oid(int(index.partition(":")[0])) for index in self.indexes.split(",") if index)


def source_tables(node: Node, major: int, oid: Oid | None = None) -> list[SourceTable]:
    """Return the users' tables, or the one with that OID, if it exists."""
    chosen = f"c.oid >= {FIRST_USER_OID} ORDER BY c.oid" if oid is None else f"c.oid = {oid}"
    tables = []
    for row in node.query(f"{_QUERY} AND {chosen}".encode()):
        table, namespace, name, *rights, stamp, indexes, partitions, encoding, kind, lineage = row
        if None in rights:
            continue  # dropped after the statement began: privileges are looked up as of now
        # NB: as bytes: a SQL_ASCII database validates no text, and the server refuses to convert such text to UTF-8.
        dialect = Dialect.of(encoding, major)
        tables.append(
            SourceTable(
                Oid(table),
                dialect.decode(namespace),
                dialect.decode(name),
                next((denial for denial, has_right in zip(Denial, rights, strict=True) if not has_right), None),
                stamp,
                indexes,
                partitions,
                is_partitioned=kind == PARTITIONED,
                ancestors=tuple((dialect.decode(above), dialect.decode(named)) for above, named in lineage),
            )
        )
    return tables


def value_forms(node: Node, oid: Oid) -> frozenset[str]:
    """Return what determines the text of a table's values: the xmin of each enum label, the columns of each row type.

    Values are printed as before while no item of the set is gone: no existing value has a label that was added.
    """
    of_table = f"SELECT form FROM (VALUES ({oid}::oid)) c (oid), LATERAL ({_FORMS}) f (form)"  # noqa: S608 - a number
    return frozenset(str(form) for (form,) in node.query(of_table.encode()))


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
