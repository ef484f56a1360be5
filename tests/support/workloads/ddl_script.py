"""DDL of every kind that changes the name, the columns or the file of a relation or a type.

Each step is one session's statements, outside a transaction or between BEGIN and COMMIT; all succeed.
"""

STEPS: tuple[str, ...] = (
    "CREATE SCHEMA app",
    'CREATE SCHEMA "My Schema"',
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
    "CREATE TYPE app.mood AS ENUM ('x')",
    'CREATE TYPE "My Schema"."Pair ""of"" things" AS (a int, "B" text)',
    "CREATE DOMAIN positive AS int CHECK (value > 0)",
    "CREATE DOMAIN deeper AS positive",
    "CREATE TYPE span AS RANGE (subtype = float8)",
    "CREATE TYPE \"table\" AS ENUM ('a keyword is its name')",
    "CREATE TYPE public.text AS ENUM ('hidden behind pg_catalog')",
    "CREATE TABLE plain (id serial PRIMARY KEY, a int2, b pg_catalog.text, c varchar(10), d char(3), e numeric(10,2))",
    'CREATE TABLE typed (m mood, ms mood[], am app.mood, p positive, q deeper, r span, t public.text, u "table"[])',
    'CREATE TABLE "My Schema"."Odd ""Table""" ("select" int, "Camel" "My Schema"."Pair ""of"" things", x bit(3))',
    'CREATE TABLE wide (c "char", n name, o oid, v int2vector, w oidvector, i interval day, z timestamptz(3))',
    "ALTER TABLE wide ADD COLUMN s int4multirange, ADD COLUMN t tsvector DEFAULT 'a b'",
    "ALTER TABLE plain ADD COLUMN f int NOT NULL DEFAULT 7",
    "ALTER TABLE plain ADD COLUMN g pg_catalog.text DEFAULT repeat('long ', 500)",
    "ALTER TABLE plain ADD COLUMN h int[] DEFAULT '{1,NULL,3}'",
    "ALTER TABLE plain ADD COLUMN k timestamptz DEFAULT now()",
    "ALTER TABLE plain ALTER COLUMN b TYPE int USING length(b)",
    "ALTER TABLE plain DROP COLUMN c",
    "ALTER TABLE plain RENAME COLUMN d TO dd",
    "ALTER TABLE plain RENAME TO renamed",
    "ALTER TABLE renamed SET SCHEMA app",
    "ALTER SCHEMA app RENAME TO application",
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
    "ALTER TYPE mood ADD VALUE 'better' BEFORE 'happy'",
    "ALTER TYPE mood RENAME TO humour",
    "ALTER TYPE humour SET SCHEMA application",
    'ALTER TYPE "My Schema"."Pair ""of"" things" ADD ATTRIBUTE c date',
    'ALTER TYPE "My Schema"."Pair ""of"" things" DROP ATTRIBUTE a',
    "CREATE TABLE ident (a int NOT NULL, b int NOT NULL, c int, UNIQUE (b, a) INCLUDE (c))",
    "ALTER TABLE ident REPLICA IDENTITY USING INDEX ident_b_a_c_key",
    "CREATE TABLE later (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)",
    "ALTER TABLE typed REPLICA IDENTITY FULL",
    "ALTER TABLE wide REPLICA IDENTITY NOTHING",
    "CREATE TABLE parent (k int, v pg_catalog.text, PRIMARY KEY (k)) PARTITION BY RANGE (k)",
    "CREATE TABLE part_1 PARTITION OF parent FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE part_2 (v pg_catalog.text, gone int, k int NOT NULL)",
    "ALTER TABLE part_2 DROP COLUMN gone",
    "ALTER TABLE parent ATTACH PARTITION part_2 FOR VALUES FROM (10) TO (20)",
    "ALTER TABLE parent DETACH PARTITION part_1",
    "CREATE TABLE base (a int)",
    "CREATE TABLE heir (b int) INHERITS (base)",
    "CREATE MATERIALIZED VIEW summary AS SELECT 1 AS one, 'x'::pg_catalog.text AS x",
    "REFRESH MATERIALIZED VIEW summary",
    "CREATE VIEW looking AS SELECT * FROM base",
    "CREATE UNLOGGED TABLE fleeting (a int)",
    "ALTER TABLE fleeting SET LOGGED",
    "CREATE TEMP TABLE temporary (a int)",
    "CREATE TABLE generated (a int, b int GENERATED ALWAYS AS (a * 2) STORED)",
    "INSERT INTO base SELECT generate_series(1, 100)",
    "TRUNCATE base",
    "VACUUM FULL base",
    "CLUSTER ident USING ident_b_a_c_key",
    "REINDEX TABLE ident",
    "VACUUM ANALYZE",
    "GRANT SELECT ON ident TO PUBLIC",
    "GRANT SELECT (a, xmin) ON ident TO PUBLIC",
    "GRANT SELECT (ctid) ON ident TO PUBLIC",
    "CREATE TABLE dropped (a int, b pg_catalog.text)",
    "DROP TABLE dropped",
    "CREATE TABLE swap_1 (a int)",
    "CREATE TABLE swap_2 (b pg_catalog.text)",
    (
        "BEGIN; ALTER TABLE swap_1 RENAME TO s; ALTER TABLE swap_2 RENAME TO swap_1; "
        "ALTER TABLE s RENAME TO swap_2; COMMIT"
    ),
    "BEGIN; CREATE TABLE never (a int); ALTER TABLE swap_1 ADD COLUMN never int; ROLLBACK",
    (
        "BEGIN; ALTER TABLE swap_1 ADD COLUMN kept int; SAVEPOINT a; ALTER TABLE swap_1 ADD COLUMN lost int; "
        "DROP TABLE swap_2; SAVEPOINT b; CREATE TABLE lost (a int); ROLLBACK TO a; "
        "ALTER TABLE swap_1 ADD COLUMN again int DEFAULT 3; COMMIT"
    ),
    (
        "BEGIN; CREATE TABLE prepared (a int PRIMARY KEY); SAVEPOINT a; ALTER TABLE prepared ADD COLUMN b int; "
        "PREPARE TRANSACTION 'kept'"
    ),
    "BEGIN; DROP TABLE swap_2; PREPARE TRANSACTION 'lost'",
    "COMMIT PREPARED 'kept'",
    "ROLLBACK PREPARED 'lost'",
    (
        "BEGIN; CREATE TYPE young AS ENUM ('a'); CREATE TABLE of_young (y young, ys young[]); "
        "ALTER TYPE young ADD VALUE 'b'; COMMIT"
    ),
    (
        "DO $$ BEGIN FOR i IN 1..60 LOOP EXECUTE format('CREATE TABLE many_%s (id int PRIMARY KEY, v varchar)', i); "
        "END LOOP; END $$"
    ),
    "DO $$ BEGIN FOR i IN 1..50 LOOP EXECUTE format('DROP TABLE many_%s', i); END LOOP; END $$",
    (
        "DO $$ BEGIN FOR i IN 1..70 LOOP BEGIN EXECUTE format('CREATE TABLE sub_%s (id int)', i); IF i % 3 = 0 "
        "THEN RAISE 'x'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$"
    ),
    (
        "DO $$ BEGIN EXECUTE 'CREATE TABLE broad (' || (SELECT string_agg(format('c%s int', i), ', ') FROM "
        "generate_series(1, 900) i) || ')'; END $$"
    ),
    "ALTER TABLE broad DROP COLUMN c450, ADD COLUMN last pg_catalog.text DEFAULT 'x'",
    'DROP SCHEMA "My Schema" CASCADE',
    "DROP TYPE span CASCADE",
)
REWRITES: tuple[str, ...] = (
    "VACUUM FULL pg_class",
    "CREATE TABLE after_class (a int, b int)",
    "VACUUM FULL pg_attribute",
    "ALTER TABLE after_class ADD COLUMN c int DEFAULT 4",
    "VACUUM FULL pg_type",
    "CREATE TYPE after_type AS ENUM ('a', 'b')",
    "VACUUM FULL pg_namespace",
    "CREATE SCHEMA after_namespace",
    "VACUUM FULL pg_enum",
    "ALTER TYPE after_type ADD VALUE 'c'",
    "VACUUM FULL pg_index",
    "CREATE UNIQUE INDEX ON after_class (a)",
    "VACUUM FULL pg_range",
    "VACUUM FULL pg_inherits",
    "VACUUM FULL pg_database",
    "REINDEX TABLE pg_class",
    "REINDEX TABLE pg_attribute",
    "REINDEX TABLE pg_index",
    "CLUSTER pg_type USING pg_type_oid_index",
    "CLUSTER pg_attribute USING pg_attribute_relid_attnum_index",
    "CLUSTER pg_enum USING pg_enum_typid_sortorder_index",
    (
        "BEGIN; CREATE TABLE in_1 (a int, b after_type); CLUSTER pg_class USING pg_class_oid_index; "
        "ALTER TABLE in_1 ADD COLUMN c int; CREATE TABLE in_2 (a int); COMMIT"
    ),
    (
        "BEGIN; CREATE TABLE out_1 (a int); CLUSTER pg_class USING pg_class_oid_index; "
        "CREATE TABLE out_2 (a int); ROLLBACK"
    ),
    (
        "BEGIN; SAVEPOINT a; CLUSTER pg_index USING pg_index_indexrelid_index; CREATE TABLE out_3 (a int PRIMARY KEY); "
        "ROLLBACK TO a; CREATE TABLE in_3 (a int PRIMARY KEY); COMMIT"
    ),
    (
        "BEGIN; CLUSTER pg_enum USING pg_enum_oid_index; CLUSTER pg_index USING pg_index_indexrelid_index; "
        "CREATE TABLE in_4 (a int PRIMARY KEY); ALTER TYPE after_type RENAME VALUE 'a' TO 'z'; COMMIT"
    ),
    "VACUUM FULL",
    "DROP TYPE after_type CASCADE",
    (
        "BEGIN; CLUSTER pg_enum USING pg_enum_oid_index; CREATE TYPE first AS ENUM ('into', 'an empty file'); "
        "CREATE TABLE of_first (a first); COMMIT"
    ),
    "CREATE TABLE at_last (a int PRIMARY KEY, b first)",
)
