-- What is rare: very wide tables, COPY FREEZE, deferred keys, dropped identities, large objects, MERGE, segment switches.
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int);
INSERT INTO deferred SELECT i, i FROM generate_series(1, 5) i;
UPDATE deferred SET id = id + 1;
DELETE FROM deferred WHERE id = 3;
CREATE TABLE via_index (a int NOT NULL, b int NOT NULL, t text);
CREATE UNIQUE INDEX via_index_ba ON via_index (b, a);
ALTER TABLE via_index REPLICA IDENTITY USING INDEX via_index_ba;
INSERT INTO via_index VALUES (1, 2, 'x');
UPDATE via_index SET t = 'y';
UPDATE via_index SET b = 3;
DROP INDEX via_index_ba;
UPDATE via_index SET b = 4;
DELETE FROM via_index;
DO $$ BEGIN EXECUTE (SELECT 'CREATE TABLE wide (' || string_agg(format('c%s %s', i, (ARRAY['int', 'text', 'int2', '"char"', 'float8', 'numeric'])[i % 6 + 1]), ',') || ')' FROM generate_series(1, 500) i); END $$;
INSERT INTO wide (c1, c500) VALUES ('one', 2);
DO $$ BEGIN EXECUTE (SELECT 'INSERT INTO wide VALUES (' || string_agg('''1''', ',') || ')' FROM generate_series(1, 500) i); END $$;
DO $$ BEGIN EXECUTE (SELECT 'CREATE TABLE wider (' || string_agg(format('c%s bool', i), ',') || ')' FROM generate_series(1, 1500) i); END $$;
DO $$ BEGIN EXECUTE (SELECT 'INSERT INTO wider VALUES (' || string_agg((i % 7 > 2)::text, ',') || ')' FROM generate_series(1, 1500) i); END $$;
INSERT INTO wider (c1500) VALUES (true);
ALTER TABLE wider DROP COLUMN c3, ADD COLUMN last int DEFAULT 9;
UPDATE wider SET c1 = NOT c1;
BEGIN;
CREATE TABLE frozen (a int, b text);
COPY frozen FROM PROGRAM 'seq 1 300 | sed "s/$/\tx/"' WITH (FREEZE);
COMMIT;
COPY frozen FROM PROGRAM 'seq 1 300 | sed "s/$/\ty/"';
SELECT lo_from_bytea(0, '\x0102');
SELECT lo_unlink(oid) FROM pg_largeobject_metadata;
INSERT INTO frozen VALUES (1000, 'after lo');
SELECT pg_switch_wal();
INSERT INTO frozen VALUES (1001, 'after switch');
-- since 15
MERGE INTO deferred d USING (VALUES (2, 20), (99, 990)) s (id, v) ON d.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v);
-- since 15
MERGE INTO deferred d USING (VALUES (2)) s (id) ON d.id = s.id WHEN MATCHED THEN DELETE;
-- since 18
CREATE TABLE virtual (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2), c text);
-- since 18
INSERT INTO virtual (a, c) VALUES (1, 'x'), (2, NULL);
-- since 18
UPDATE virtual SET a = a + 10;
-- since 18
ALTER TABLE virtual REPLICA IDENTITY FULL;
-- since 18
DELETE FROM virtual;
CREATE TABLE empty_table ();
INSERT INTO empty_table DEFAULT VALUES;
ALTER TABLE empty_table ADD COLUMN a int;
INSERT INTO empty_table VALUES (1);
DELETE FROM empty_table;
CREATE TABLE toggled (a int, b int);
INSERT INTO toggled VALUES (1, 1);
ALTER TABLE toggled DROP COLUMN a;
ALTER TABLE toggled DROP COLUMN b;
INSERT INTO toggled DEFAULT VALUES;
DELETE FROM toggled;
SET session_replication_role = replica;
INSERT INTO frozen VALUES (1002, 'as replica');
RESET session_replication_role;
SET synchronous_commit = off;
INSERT INTO frozen VALUES (1003, 'asynchronous');
RESET synchronous_commit;
\session b
BEGIN;
SELECT * FROM deferred FOR UPDATE;
SAVEPOINT a;
UPDATE deferred SET v = 0 WHERE id = 4;
ROLLBACK TO a;
\session a
INSERT INTO frozen VALUES (1004, 'beside a lock');
\session b
UPDATE deferred SET v = 1 WHERE id = 4;
COMMIT;
\session a
BEGIN;
INSERT INTO frozen VALUES (1005, 'kept');
SAVEPOINT a;
INSERT INTO frozen VALUES (1006, 'rolled back last');
SAVEPOINT b;
SAVEPOINT c;
INSERT INTO frozen VALUES (1007, 'in a savepoint that wrote nothing itself');
RELEASE c;
ROLLBACK TO b;
ROLLBACK TO a;
INSERT INTO frozen VALUES (1008, 'kept');
COMMIT;
-- What 64 subtransactions were assigned is told by one record: it is all that names the top-level one of the last.
INSERT INTO frozen VALUES (1009, 'known by now');
BEGIN;
CREATE TABLE before_many (id int);
DO $$ BEGIN FOR id IN 1..200 LOOP BEGIN INSERT INTO frozen VALUES (2000 + id, 'many'); IF id % 3 = 0 THEN RAISE EXCEPTION 'no'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$;
COMMIT;
DELETE FROM deferred;
DROP TABLE wide, wider;
