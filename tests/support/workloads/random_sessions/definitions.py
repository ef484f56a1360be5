"""DDL of every kind that a transaction may contain: tables, types, identities, rewrites."""

from collections.abc import Callable, Mapping, Sequence

from tests.support.workloads.random_sessions.draw import COLUMNS, Draw, Step
from tests.support.workloads.random_sessions.objects import KEEPERS

FOLLOWED = ("pg_class", "pg_attribute", "pg_type", "pg_index", "pg_enum", "pg_namespace", "pg_inherits", "pg_range")
OTHERS = ("pg_proc", "pg_depend", "pg_constraint", "pg_attrdef", "pg_statistic", "pg_largeobject")
SHARED = ("pg_database", "pg_authid", "pg_shdepend")
CATALOGS = (*FOLLOWED, *FOLLOWED, *FOLLOWED, *OTHERS, *SHARED)
CLUSTERED = {
    "pg_class": "pg_class_oid_index",
    "pg_attribute": "pg_attribute_relid_attnum_index",
    "pg_type": "pg_type_oid_index",
    "pg_index": "pg_index_indrelid_index",
    "pg_enum": "pg_enum_oid_index",
}
VIRTUAL_SINCE = 18


def volatile_table(draw: Draw) -> Step:
    """Create, drop or rename a volatile table."""
    table, column = draw.table(), draw.column()
    shape = f"(id bigint PRIMARY KEY, note text, {column} {draw.type_of(column)})"
    return Step(
        draw.pick(
            (
                f"CREATE TABLE {table} {shape}",
                f"CREATE TABLE IF NOT EXISTS {table} {shape}",
                f"CREATE UNLOGGED TABLE {table} {shape}",
                f"CREATE TABLE {table} AS SELECT i::bigint AS id, 'born'::text AS note FROM generate_series(1, 30) i",
                f"CREATE TABLE {table} (LIKE {draw.table()} INCLUDING ALL)",
                f"CREATE TABLE {table} () INHERITS ({draw.table()})",
                f"DROP TABLE {table} CASCADE",
                f"ALTER TABLE {table} RENAME TO {draw.table()}",
                f"ALTER TABLE {table} SET SCHEMA other",
                f"ALTER TABLE other.{table} SET SCHEMA public",
                f"CREATE TEMP TABLE temp_{draw.name} ON COMMIT DROP AS SELECT 1 AS a",
            )
        )
    )


def column(draw: Draw) -> Step:
    """Add, drop, rename or change a column of a volatile table."""
    name, other = draw.column(), f"c{draw.number(COLUMNS)}"
    type_name = draw.type_of(name)
    generated = "VIRTUAL" if draw.load.major >= VIRTUAL_SINCE and draw.chance(0.5) else "STORED"
    change = draw.pick(
        (
            f"ADD COLUMN {name} {type_name}",
            f"ADD COLUMN {name} {type_name} DEFAULT {draw.value(name)}",
            f"ADD COLUMN IF NOT EXISTS {name} {type_name}, ADD COLUMN IF NOT EXISTS {other} {draw.type_of(other)}",
            f"ADD COLUMN extra_{draw.number(4)} text DEFAULT clock_timestamp()::text",
            f"ADD COLUMN sum_{draw.number(4)} bigint GENERATED ALWAYS AS (id * 2) {generated}",
            f"DROP COLUMN {name}",
            f"DROP COLUMN IF EXISTS extra_{draw.number(4)}, DROP COLUMN IF EXISTS sum_{draw.number(4)}",
            f"ALTER COLUMN {name} TYPE text",
            f"ALTER COLUMN {name} SET STORAGE {draw.pick(('EXTERNAL', 'EXTENDED', 'MAIN'))}",
            f"ALTER COLUMN note SET COMPRESSION {draw.pick(draw.load.compressions)}",
            f"ALTER COLUMN {name} SET DEFAULT {draw.value(name)}",
            f"RENAME COLUMN {name} TO {other}",
        )
    )
    return Step(f"ALTER TABLE {draw.table()} {change}")


def identity(draw: Draw) -> Step:
    """Change the replica identity during concurrent row changes."""
    table = draw.pick((*KEEPERS, draw.table(), "parted_0", "parted_1"))
    index = {"account": "account_identity"}.get(table, f"{table}_pkey")
    kind = draw.pick(("FULL", "FULL", "DEFAULT", "NOTHING", f"USING INDEX {index}"))
    return Step(f"ALTER TABLE {table} REPLICA IDENTITY {kind}")


def rewrite(draw: Draw) -> Step:
    """Rewrite a table in a way that a transaction block allows."""
    table = draw.pick((*KEEPERS, draw.table(), draw.table()))
    return Step(
        draw.pick(
            (
                f"CLUSTER {table} USING {table}_pkey",
                f"ALTER TABLE {table} SET TABLESPACE {draw.pick(('side', 'pg_default'))}",
                f"ALTER TABLE {table} SET {draw.pick(('LOGGED', 'LOGGED', 'UNLOGGED'))}",
                f"ALTER TABLE {table} ADD COLUMN rewritten float8 DEFAULT random(), DROP COLUMN rewritten",
                f"ALTER TABLE account ALTER COLUMN n TYPE {draw.pick(('bigint', 'int'))}",
                "REFRESH MATERIALIZED VIEW summary",
                f"REINDEX TABLE {table}",
            )
        )
    )


def partition(draw: Draw) -> Step:
    """Detach partitions from their root, and attach them again."""
    return Step(
        draw.pick(
            (
                "ALTER TABLE parted DETACH PARTITION parted_0",
                "ALTER TABLE parted ATTACH PARTITION parted_0 FOR VALUES IN (0)",
                "ALTER TABLE parted ATTACH PARTITION parted_0 FOR VALUES IN (0)",
                f"ALTER TABLE parted ADD COLUMN added_{draw.number(3)} int DEFAULT {draw.number(9)}",
                f"ALTER TABLE parted DROP COLUMN IF EXISTS added_{draw.number(3)}",
                f"CREATE TABLE parted_{draw.number(3) + 10} PARTITION OF parted FOR VALUES IN ({draw.number(3) + 10})",
                f"DROP TABLE parted_{draw.number(3) + 10}",
            )
        )
    )


def type_(draw: Draw) -> Step:
    """Change types that columns use."""
    return Step(
        draw.pick(
            (
                f"ALTER TYPE mood ADD VALUE 'mood {draw.name}'",
                "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
                "ALTER TYPE mood RENAME VALUE 'fine' TO 'ok'",
                f"ALTER TYPE raw_pair ADD ATTRIBUTE a_{draw.name} int CASCADE",
                f"ALTER TYPE mood SET SCHEMA {draw.pick(('other', 'public'))}",
                "ALTER TYPE other.mood SET SCHEMA public",
                f"CREATE TYPE kind_{draw.name} AS ENUM ('a', 'b')",
                f"CREATE TYPE range_{draw.name} AS RANGE (subtype = bigint)",
                f"CREATE DOMAIN domain_{draw.name} AS positive CHECK (VALUE < 1000)",
            )
        )
    )


def context(draw: Draw) -> Step:
    """Change objects around tables: indexes, grants, comments, sequences, large objects."""
    table, name = draw.table(), draw.column()
    return Step(
        draw.pick(
            (
                f"CREATE INDEX ON {table} ({name})",
                f"CREATE UNIQUE INDEX ON {table} (id, note)",
                f"DROP INDEX IF EXISTS {table}_{name}_idx",
                f"GRANT SELECT (id), UPDATE ON {table} TO public",
                f"COMMENT ON COLUMN {table}.id IS '{draw.name}'",
                f"ALTER TABLE {table} SET (fillfactor = {10 + draw.number(90)})",
                "SELECT nextval('pet_id_seq'), setval('owner_id_seq', 1000000 + nextval('owner_id_seq'))",
                "SELECT lo_unlink(lo_from_bytea(0, decode(noise(3000, 1), 'hex')))",
                f"CREATE VIEW view_{draw.name} AS SELECT * FROM owner",
                "DROP SCHEMA other CASCADE",
                "CREATE SCHEMA IF NOT EXISTS other",
            )
        )
    )


def behaviour(draw: Draw) -> Step:
    """Change functions, triggers, rules, constraints and roles: rows of catalogs that the mirror does not track."""
    table, number = draw.table(), draw.number(3)
    body = draw.pick(("NEW.note := upper(NEW.note); RETURN NEW;", "RETURN NEW;", "RETURN NULL;"))
    return Step(
        draw.pick(
            (
                f"CREATE OR REPLACE FUNCTION act_{number}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body} END'",
                f"CREATE OR REPLACE FUNCTION act_{number}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body} END'",
                f"ALTER FUNCTION act_{number}() COST {1 + draw.number(99)}",
                f"CREATE TRIGGER act BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION act_{number}()",
                f"DROP TRIGGER IF EXISTS act ON {table}",
                f"CREATE RULE also AS ON DELETE TO {table} DO ALSO INSERT INTO owner (note) VALUES ('rule')",
                f"DROP RULE IF EXISTS also ON {table}",
                f"ALTER TABLE {table} ADD CONSTRAINT odd_{number} CHECK (id <> {draw.number(9)}) NOT VALID",
                f"CREATE STATISTICS IF NOT EXISTS both_{number} ON id, note FROM {table}",
                f"CREATE ROLE role_{draw.name}",
                f"{draw.pick(('GRANT pg_monitor TO', 'REVOKE pg_monitor FROM'))} cdc",
                f"CREATE PUBLICATION publication_{draw.name} FOR TABLE account",
                f"COMMENT ON DATABASE postgres IS '{draw.name}'",
            )
        )
    )


DEFINITIONS: Mapping[Callable[[Draw], Step], float] = {
    volatile_table: 6,
    column: 6,
    identity: 3,
    rewrite: 2,
    partition: 1,
    type_: 1.5,
    context: 2,
    behaviour: 2,
}


def definition(draw: Draw) -> Step:
    """Return one of these statements."""
    return draw.weighted(DEFINITIONS)(draw)


def catalog_rewrite(draw: Draw) -> Step:
    """Rewrite a catalog in the middle of a transaction."""
    catalog = draw.pick(list(CLUSTERED))
    return Step(draw.pick((f"CLUSTER {catalog} USING {CLUSTERED[catalog]}", f"REINDEX TABLE {catalog}")))


def chore(draw: Draw) -> Step:
    """Return a statement that runs outside a transaction block."""
    table = draw.pick((*KEEPERS, draw.table()))
    chores: Sequence[str] = (
        f"VACUUM {table}",
        f"VACUUM FULL {table}",
        f"VACUUM FULL {draw.table()}",
        f"VACUUM (FREEZE) {table}",
        f"VACUUM {draw.pick(CATALOGS)}",
        "ANALYZE",
        "CHECKPOINT",
        "CHECKPOINT",
        "SELECT pg_switch_wal()",
        f"CREATE INDEX CONCURRENTLY ON {draw.table()} (note)",
        f"REINDEX INDEX CONCURRENTLY {table}_pkey",
        "REFRESH MATERIALIZED VIEW CONCURRENTLY summary",
        "ALTER TABLE parted DETACH PARTITION parted_0 CONCURRENTLY",
        f"REINDEX TABLE {draw.pick(CATALOGS)}",
    )
    return Step(draw.pick(chores))
