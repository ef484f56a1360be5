-- OIDs that print as names of relations, types and schemas: as they were called when the row was written.
CREATE SCHEMA "Side";
CREATE TABLE "Side"."Odd ""Table""" (a int);
CREATE TABLE plain (a int);
CREATE TABLE "select" (a int);
CREATE TYPE "Side"."Mood" AS ENUM ('a');
CREATE TYPE trio AS (c regclass, t regtype, n regnamespace, note text);
CREATE DOMAIN class_domain AS regclass;
CREATE TABLE named (id int PRIMARY KEY, c regclass, t regtype, n regnamespace, cs regclass[], ts regtype[], d class_domain, b trio, bs trio[], last text);
INSERT INTO named VALUES (1, 'plain', 'plain', 'public', '{plain,pg_class,NULL}', '{integer,"character varying","\"char\"",bit}', 'plain', '(plain,plain,public,x)', '{"(plain,integer,\"\\\"Side\\\"\",)",NULL}', 'end');
INSERT INTO named (id, c, t, n) VALUES (2, '"Side"."Odd ""Table"""', '"Side"."Mood"', '"Side"'), (3, '"select"', '"Side"."Mood"[]', 'pg_catalog'), (4, 0, 0, 0), (5, 4000000000, 4000000000, 4000000000);
INSERT INTO named (id, c, t) SELECT 100 + oid::int, oid, reltype FROM pg_class WHERE oid < 16384 AND relkind IN ('r', 'i', 't', 'v', 'S');
INSERT INTO named (id, t, ts) SELECT 200000 + oid::int, oid, ARRAY[typelem::regtype, typarray] FROM pg_type WHERE oid < 16384;
INSERT INTO named (id, n) SELECT 300000 + oid::int, oid FROM pg_namespace;
INSERT INTO named (id, c) SELECT 400000 + oid::int, oid FROM pg_class WHERE oid > 16384;
ALTER TABLE plain RENAME TO renamed;
UPDATE named SET last = 'renamed' WHERE id < 5;
ALTER TABLE named REPLICA IDENTITY FULL;
BEGIN;
ALTER TABLE renamed SET SCHEMA "Side";
UPDATE named SET last = 'moved' WHERE id < 5;
SAVEPOINT s;
ALTER SCHEMA "Side" RENAME TO side;
ALTER TYPE side."Mood" RENAME TO humour;
UPDATE named SET last = 'schema renamed' WHERE id < 5;
ROLLBACK TO s;
UPDATE named SET last = 'and back' WHERE id < 5;
CREATE TABLE fresh (a int);
INSERT INTO named (id, c, t) VALUES (6, 'fresh', 'fresh[]');
DROP TABLE "select";
UPDATE named SET last = 'dropped' WHERE id < 7;
COMMIT;
-- a name that pg_catalog has as well is qualified
CREATE TABLE public.pg_class (a int);
CREATE DOMAIN public.text AS int;
INSERT INTO named (id, c, t) VALUES (7, 'public.pg_class', 'public.text');
DROP TABLE public.pg_class;
DROP DOMAIN public.text;
CREATE TEMP TABLE passing (a int);
INSERT INTO named (id, c) VALUES (8, 'passing');
-- others rename meanwhile
\session b
BEGIN;
INSERT INTO named (id, c, t, n) VALUES (10, 'fresh', 'fresh', '"Side"');
\session a
ALTER TABLE fresh RENAME TO old;
\session b
INSERT INTO named (id, c, t, n) VALUES (11, 'old', 'old', '"Side"');
\session a
ALTER SCHEMA "Side" RENAME TO "Other Side";
\session b
UPDATE named SET last = 'twice' WHERE id < 12;
COMMIT;
\session a
-- a default that older rows have, rows in many versions, values out of line
ALTER TABLE named ADD more regclass DEFAULT 'old', ADD many regclass[] DEFAULT '{old,named}';
UPDATE named SET last = NULL WHERE id < 7;
INSERT INTO named (id, cs) SELECT 12, array_agg(oid) FROM pg_class, generate_series(1, 30);
UPDATE named SET last = 'out of line' WHERE id = 12;
BEGIN;
INSERT INTO named (id, c) VALUES (13, 'old') ON CONFLICT (id) DO UPDATE SET c = 'named';
INSERT INTO named (id, c) VALUES (13, 'old') ON CONFLICT (id) DO UPDATE SET c = 'named';
PREPARE TRANSACTION 'names';
ALTER TABLE old RENAME TO older;
COMMIT PREPARED 'names';
ALTER TABLE named ALTER c TYPE oid;
DELETE FROM named;
