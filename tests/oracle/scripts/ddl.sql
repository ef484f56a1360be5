-- Ordinary DDL of every kind between row changes: what a relation is called, what it looks like, where it lies.

-- types of every family that is promised, as columns, NULL and not
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN posint AS int CHECK (value > 0);
CREATE DOMAIN email AS varchar(40) NOT NULL;
CREATE TABLE every_type (
  id serial PRIMARY KEY, i2 int2, i8 int8, f4 float4, f8 float8, n numeric, n2 numeric(12,2), t text, v varchar(20),
  c char(5), nm name, ch "char", b bytea, bo bool, d date, ti time, tz timetz, ts timestamp, tstz timestamptz, iv interval,
  u uuid, j json, jb jsonb, m mood, ip inet, ci cidr, o oid, ia int[], ta text[], na numeric[], ma mood[], p posint,
  tsa timestamptz[], ba bool[], ja jsonb[]);
INSERT INTO every_type VALUES (DEFAULT, 1, 2, 3.5, 4.25, 5.125, 6.75, 'text', 'var', 'ch', 'name', 'x', '\x00ff', true,
  '2024-02-29', '12:34:56.789', '01:02:03+04:30', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789+02', '1 year 2 mons 3 days 04:05:06.7',
  'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": [1, 2, {"b": null}]}', '{"z": 1, "a": "é", "n": 1.50}', 'happy', '10.1.2.3/8', '10.0.0.0/8', 4294967295,
  '{1,NULL,3}', '{a,"b c",NULL,"q\"uote",""}', '{1.5,NaN}', '{sad,happy}', 7, '{"2020-01-01 00:00+00"}', '{t,f}', '{"{\"a\": 1}"}');
INSERT INTO every_type (i2) VALUES (NULL);
INSERT INTO every_type (f4, f8, n, d, ts, tstz, iv, t, ia, ta) VALUES
  ('NaN', '-Infinity', 'NaN', 'infinity', '-infinity', 'infinity', '-178000000 years', '', '{}', '[2:3][-1:0]={{a,b},{c,d}}'),
  (1e-20, 1e300, 'Infinity', '0044-03-15 BC', '4713-01-01 BC', '1066-10-14 BC', '-1 days +00:00:00.000001', 'it''s', '[0:2]={1,2,3}', '{null,"NULL"}'),
  (123456.7, 0.1, -123456789012345678901234567890.123456789, '9999-12-31', '294276-12-31 23:59:59.999999', '1900-01-01', '0', E'two\nlines\ttab\\', '{{1,2},{3,4}}', '{","}');
UPDATE every_type SET t = repeat('é', 300), jb = jb || '{"added": [true, false, null]}' WHERE id = 1;
UPDATE every_type SET id = id + 100;
DELETE FROM every_type WHERE id = 102;

-- names that need quotes
CREATE SCHEMA "My Schema";
CREATE TABLE "My Schema"."Odd ""Table""" ("select" int, "Camel" text, "a.b" "char", é text);
INSERT INTO "My Schema"."Odd ""Table""" VALUES (1, 'x', 'y', 'z');
CREATE TYPE "My Schema"."Mood" AS ENUM ('a', 'B c');
ALTER TABLE "My Schema"."Odd ""Table""" ADD COLUMN "Mood" "My Schema"."Mood" DEFAULT 'B c', ADD COLUMN moods "My Schema"."Mood"[];
INSERT INTO "My Schema"."Odd ""Table""" VALUES (2, 'x', 'y', 'z', 'a', '{a,"B c"}');
ALTER SCHEMA "My Schema" RENAME TO plain;
INSERT INTO plain."Odd ""Table""" VALUES (3);
ALTER TABLE plain."Odd ""Table""" RENAME TO odd;
ALTER TABLE plain.odd RENAME COLUMN "Camel" TO camel;
ALTER TABLE plain.odd SET SCHEMA public;
INSERT INTO odd VALUES (4);

-- replica identities, with and without keys, changed in flight
CREATE TABLE ident (a int, b text, c int NOT NULL);
INSERT INTO ident VALUES (1, 'one', 1), (2, 'two', 2), (3, NULL, 3);
UPDATE ident SET b = 'x' WHERE a = 1;
DELETE FROM ident WHERE a = 1;
ALTER TABLE ident REPLICA IDENTITY FULL;
UPDATE ident SET b = 'y' WHERE a = 2;
DELETE FROM ident WHERE a = 3;
CREATE UNIQUE INDEX ident_c ON ident (c);
ALTER TABLE ident REPLICA IDENTITY USING INDEX ident_c;
UPDATE ident SET b = 'z';
UPDATE ident SET c = 20;
DELETE FROM ident;
INSERT INTO ident VALUES (5, 'five', 5);
ALTER TABLE ident REPLICA IDENTITY NOTHING;
UPDATE ident SET c = 6;
DELETE FROM ident;
ALTER TABLE ident REPLICA IDENTITY DEFAULT, ADD PRIMARY KEY (c, b);
INSERT INTO ident VALUES (6, 'six', 6);
UPDATE ident SET a = 7;
UPDATE ident SET b = 'seven';
DELETE FROM ident;
DROP INDEX ident_c;
ALTER TABLE ident DROP CONSTRAINT ident_pkey;
INSERT INTO ident VALUES (7, 'seven', 7);
DELETE FROM ident;

-- columns come and go; rows from before read the missing values
CREATE TABLE cols (id int PRIMARY KEY);
INSERT INTO cols SELECT generate_series(1, 5);
ALTER TABLE cols ADD COLUMN a int DEFAULT 42, ADD COLUMN b text DEFAULT 'fast', ADD COLUMN c numeric(6,2) DEFAULT 1.50;
UPDATE cols SET id = id + 10 WHERE id = 1;
ALTER TABLE cols REPLICA IDENTITY FULL;
UPDATE cols SET id = id + 10 WHERE id = 2;
ALTER TABLE cols DROP COLUMN b;
INSERT INTO cols VALUES (100, 1, 2);
ALTER TABLE cols ADD COLUMN b int[] DEFAULT '{1,2}';
UPDATE cols SET a = NULL WHERE id = 3;
ALTER TABLE cols ALTER COLUMN a TYPE bigint;
UPDATE cols SET a = 5000000000 WHERE id = 3;
ALTER TABLE cols ALTER COLUMN a TYPE text USING 'a' || a;
DELETE FROM cols WHERE id = 4;
ALTER TABLE cols ADD COLUMN r float8 DEFAULT random() * 0;
UPDATE cols SET a = 'after rewrite';
ALTER TABLE cols ADD COLUMN g int GENERATED ALWAYS AS (id * 2) STORED;
UPDATE cols SET id = id + 1000;
ALTER TABLE cols ALTER COLUMN c SET DATA TYPE numeric(10,4);
ALTER TABLE cols ALTER COLUMN b SET DEFAULT '{9}';
INSERT INTO cols (id) VALUES (7);
ALTER TABLE cols DROP COLUMN c, DROP COLUMN a, DROP COLUMN r;
INSERT INTO cols (id) VALUES (8);
DELETE FROM cols;

-- all in one transaction, seen change by change
BEGIN;
CREATE TABLE inside (a int);
INSERT INTO inside VALUES (1);
ALTER TABLE inside ADD COLUMN b text DEFAULT 'd';
INSERT INTO inside VALUES (2);
SAVEPOINT s;
ALTER TABLE inside RENAME COLUMN b TO c;
INSERT INTO inside VALUES (3, 'three');
ROLLBACK TO s;
INSERT INTO inside VALUES (4, 'four');
ALTER TABLE inside ALTER COLUMN a TYPE numeric;
UPDATE inside SET b = b || a;
ALTER TABLE inside DROP COLUMN b;
INSERT INTO inside VALUES (5.5);
TRUNCATE inside;
INSERT INTO inside VALUES (6);
ALTER TABLE inside RENAME TO outside;
INSERT INTO outside VALUES (7);
COMMIT;
BEGIN;
CREATE TABLE never (a int);
INSERT INTO never VALUES (1);
ROLLBACK;
INSERT INTO outside VALUES (8);

-- TRUNCATE in all forms
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id serial PRIMARY KEY, p int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
INSERT INTO parent VALUES (1), (2), (3);
INSERT INTO child (p) VALUES (1), (2), (2);
UPDATE parent SET id = 20 WHERE id = 2;
DELETE FROM parent WHERE id = 20;
TRUNCATE parent, child;
INSERT INTO parent VALUES (1);
INSERT INTO child (p) VALUES (1);
TRUNCATE parent CASCADE;
INSERT INTO child (p) VALUES (NULL);
TRUNCATE child RESTART IDENTITY;
INSERT INTO child (p) VALUES (NULL);
BEGIN;
TRUNCATE child RESTART IDENTITY CASCADE;
INSERT INTO child (p) VALUES (NULL);
SAVEPOINT a;
TRUNCATE child;
ROLLBACK TO a;
INSERT INTO child (p) VALUES (NULL);
COMMIT;

-- enums, domains
CREATE TABLE feelings (id int PRIMARY KEY, m mood, ms mood[], e email DEFAULT 'a@b');
INSERT INTO feelings VALUES (1, 'ok', '{sad,ok}');
ALTER TYPE mood ADD VALUE 'ecstatic' AFTER 'happy';
INSERT INTO feelings VALUES (2, 'ecstatic');
ALTER TYPE mood RENAME VALUE 'ok' TO 'fine';
UPDATE feelings SET id = 3 WHERE id = 1;
ALTER TYPE mood ADD VALUE 'low' BEFORE 'sad';
INSERT INTO feelings VALUES (4, 'low', '{low}', 'c@d');
ALTER TYPE mood RENAME TO sentiment;
INSERT INTO feelings VALUES (5, 'fine');
BEGIN;
CREATE TYPE fresh AS ENUM ('x');
CREATE TABLE fresh_table (f fresh, p posint DEFAULT 3);
INSERT INTO fresh_table VALUES ('x');
ALTER TYPE fresh ADD VALUE 'y';
ALTER TYPE fresh RENAME VALUE 'x' TO 'first';
INSERT INTO fresh_table SELECT * FROM fresh_table;
COMMIT;
INSERT INTO fresh_table VALUES ('y', 9);
ALTER DOMAIN posint RENAME TO positive;
INSERT INTO fresh_table VALUES ('first', 10);
DROP TABLE fresh_table;
DROP TYPE fresh;

-- partitions
CREATE TABLE part (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE part_eu PARTITION OF part FOR VALUES IN ('de', 'fr');
CREATE TABLE part_us PARTITION OF part FOR VALUES IN ('us') PARTITION BY RANGE (id);
CREATE TABLE part_us_1 PARTITION OF part_us FOR VALUES FROM (0) TO (100);
CREATE TABLE part_rest PARTITION OF part DEFAULT;
INSERT INTO part VALUES (1, 'de', 1), (2, 'us', 2), (3, 'xx', 3);
UPDATE part SET region = 'fr' WHERE id = 2;
UPDATE part SET v = v + 1;
ALTER TABLE part ADD COLUMN w text DEFAULT 'w';
UPDATE part SET w = 'changed' WHERE id = 1;
ALTER TABLE part DETACH PARTITION part_rest;
INSERT INTO part_rest VALUES (4, 'yy', 4);
CREATE TABLE part_nl (w text, id int NOT NULL, region text NOT NULL, v int);
ALTER TABLE part ATTACH PARTITION part_nl FOR VALUES IN ('nl');
INSERT INTO part VALUES (5, 'nl', 5, 'five');
TRUNCATE part;
DELETE FROM part_rest;
CREATE TABLE base (a int);
CREATE TABLE heir (b int) INHERITS (base);
INSERT INTO heir VALUES (1, 2);
ALTER TABLE base ADD COLUMN c int DEFAULT 5;
UPDATE base SET a = 9;
DROP TABLE base CASCADE;

-- materialized views, views, sequences, temporary and unlogged tables
CREATE MATERIALIZED VIEW mv AS SELECT generate_series(1, 3) AS a WITH NO DATA;
REFRESH MATERIALIZED VIEW mv;
CREATE UNIQUE INDEX ON mv (a);
REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
REFRESH MATERIALIZED VIEW mv;
CREATE VIEW w AS SELECT * FROM outside;
INSERT INTO w VALUES (9);
CREATE SEQUENCE sq;
SELECT nextval('sq'), setval('sq', 10);
CREATE TEMP TABLE tmp (a int);
INSERT INTO tmp VALUES (1);
CREATE UNLOGGED TABLE unlog (a int);
INSERT INTO unlog VALUES (1);
ALTER TABLE unlog SET LOGGED;
INSERT INTO unlog VALUES (2);
ALTER TABLE unlog SET UNLOGGED;
INSERT INTO unlog VALUES (3);
CREATE TABLE ctas AS SELECT a::int, 'x'::text AS b FROM generate_series(1, 3) AS a;
SELECT a INTO into_table FROM generate_series(1, 2) AS a;

-- ON CONFLICT
CREATE TABLE conflict (id int PRIMARY KEY, n int DEFAULT 0, t text);
INSERT INTO conflict (id) VALUES (1) ON CONFLICT DO NOTHING;
INSERT INTO conflict (id) VALUES (1) ON CONFLICT DO NOTHING;
INSERT INTO conflict (id, t) VALUES (1, 'a'), (2, 'b') ON CONFLICT (id) DO UPDATE SET n = conflict.n + 1, t = excluded.t;
INSERT INTO conflict (id, t) SELECT i, 'many' FROM generate_series(1, 20) i ON CONFLICT (id) DO UPDATE SET t = excluded.t;

-- rewrites that keep the description
CLUSTER conflict USING conflict_pkey;
UPDATE conflict SET n = 5 WHERE id = 3;
VACUUM FULL conflict;
UPDATE conflict SET n = 6 WHERE id = 3;
REINDEX TABLE conflict;
BEGIN;
UPDATE conflict SET n = 7 WHERE id = 3;
CLUSTER conflict;
UPDATE conflict SET n = 8 WHERE id = 3;
ALTER TABLE conflict ALTER COLUMN n TYPE bigint;
UPDATE conflict SET n = 9 WHERE id = 3;
COMMIT;
ALTER TABLE conflict SET (fillfactor = 50);
UPDATE conflict SET n = 10;
ALTER TABLE conflict OWNER TO postgres;
GRANT SELECT ON conflict TO public;
COMMENT ON TABLE conflict IS 'of interest';
DELETE FROM conflict WHERE id % 2 = 0;

-- COPY's multi-inserts, triggers, rules, foreign keys with effects
CREATE TABLE copied (id int, t text);
INSERT INTO copied SELECT i, 'row ' || i FROM generate_series(1, 500) i;
CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.t := upper(NEW.t); RETURN NEW; END';
CREATE TRIGGER shout BEFORE INSERT OR UPDATE ON copied FOR EACH ROW EXECUTE FUNCTION shout();
UPDATE copied SET t = 'quiet' WHERE id < 4;
CREATE TABLE ruled (a int);
CREATE RULE also AS ON INSERT TO ruled DO ALSO INSERT INTO copied VALUES (NEW.a, 'by rule');
INSERT INTO ruled VALUES (1);

-- many tables
DO $$ BEGIN FOR i IN 1..60 LOOP EXECUTE format('CREATE TABLE many_%s (id serial PRIMARY KEY, t text DEFAULT %L)', i, i); EXECUTE format('INSERT INTO many_%s DEFAULT VALUES', i); END LOOP; END $$;
DO $$ BEGIN FOR i IN 1..60 LOOP IF i % 3 = 0 THEN EXECUTE format('DROP TABLE many_%s', i); ELSE EXECUTE format('UPDATE many_%s SET t = t || t', i); END IF; END LOOP; END $$;
DO $$ BEGIN FOR i IN 1..60 LOOP EXECUTE format('CREATE TABLE IF NOT EXISTS many_%s (other int)', i); IF i % 3 = 0 THEN EXECUTE format('INSERT INTO many_%s VALUES (%s)', i, i); END IF; END LOOP; END $$;

-- messages
SELECT pg_logical_emit_message(false, 'p', 'outside');
SELECT pg_logical_emit_message(true, 'p', 'alone');
BEGIN;
SELECT pg_logical_emit_message(true, 'p', 'before any change');
INSERT INTO ruled VALUES (2);
SELECT pg_logical_emit_message(true, 'p', 'between: it''s é');
SELECT pg_logical_emit_message(false, 'p', 'at once');
SAVEPOINT a;
SELECT pg_logical_emit_message(true, 'p', 'rolled back'), pg_logical_emit_message(false, 'p', 'kept all the same');
ROLLBACK TO a;
INSERT INTO ruled VALUES (3);
COMMIT;
BEGIN;
SELECT pg_logical_emit_message(false, 'p', 'from an abort');
INSERT INTO ruled VALUES (4);
ROLLBACK;

-- by settings of the writing session
SET DateStyle = 'German, DMY';
SET TimeZone = 'Asia/Kolkata';
SET bytea_output = 'escape';
SET IntervalStyle = 'iso_8601';
INSERT INTO every_type (d, tstz, iv, b) VALUES ('29.02.2024', '29.02.2024 12:00', 'P1Y2M3DT4H5M6S', '\x00ff');
RESET ALL;

-- other sessions rename while a transaction is open
\session b
BEGIN;
INSERT INTO feelings VALUES (50, 'fine');
\session a
ALTER TYPE sentiment RENAME VALUE 'fine' TO 'okay';
\session b
INSERT INTO feelings VALUES (51, 'okay');
\session a
ALTER TYPE sentiment RENAME TO mood;
\session b
INSERT INTO feelings VALUES (52, 'okay');
\session a
CREATE SCHEMA moved;
ALTER TYPE mood SET SCHEMA moved;
\session b
INSERT INTO feelings VALUES (53, 'okay');
COMMIT;
\session a
INSERT INTO feelings VALUES (54, 'okay');
