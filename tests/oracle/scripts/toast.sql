-- Values out of line: compressed and not, changed and unchanged, old and new.
CREATE TABLE toasted (id int PRIMARY KEY, small int, p text, e text, x text, b bytea, j jsonb);
ALTER TABLE toasted ALTER e SET STORAGE EXTERNAL, ALTER x SET STORAGE EXTENDED, ALTER b SET STORAGE EXTERNAL;
CREATE FUNCTION noise(n int, seed int) RETURNS text LANGUAGE sql AS 'SELECT string_agg(md5(i::text || ''-'' || $2), '''') FROM generate_series(1, $1 / 32) i';
INSERT INTO toasted VALUES (1, 1, repeat('compressible ', 20000), noise(10000, 1), noise(30000, 2), decode(noise(5000, 3), 'hex'), jsonb_build_object('k', noise(8000, 4)));
INSERT INTO toasted VALUES (2, 1, repeat('short', 10), 'short', 'short', '\x01', '{}');
UPDATE toasted SET small = 2;
UPDATE toasted SET e = noise(9000, 5) WHERE id = 1;
UPDATE toasted SET p = NULL WHERE id = 1;
UPDATE toasted SET x = x || 'tail' WHERE id = 1;
UPDATE toasted SET id = 10 WHERE id = 1;
ALTER TABLE toasted REPLICA IDENTITY FULL;
UPDATE toasted SET small = 3;
UPDATE toasted SET b = NULL WHERE id = 10;
DELETE FROM toasted WHERE id = 10;
BEGIN;
INSERT INTO toasted VALUES (3, 1, noise(20000, 6), noise(3000, 7), NULL, NULL, NULL);
SAVEPOINT a;
INSERT INTO toasted VALUES (4, 1, noise(20000, 8), NULL, NULL, NULL, NULL);
UPDATE toasted SET e = noise(4000, 9) WHERE id = 3;
ROLLBACK TO a;
UPDATE toasted SET e = noise(4000, 10) WHERE id = 3;
SAVEPOINT b;
INSERT INTO toasted VALUES (5, 1, noise(20000, 11), noise(20000, 12), NULL, NULL, NULL);
RELEASE b;
UPDATE toasted SET small = 9;
COMMIT;
INSERT INTO toasted SELECT i, i, noise(6000, i), NULL, NULL, NULL, NULL FROM generate_series(20, 40) i;
INSERT INTO toasted SELECT i, i, noise(6000, i + 1), noise(2500, i), NULL, NULL, NULL FROM generate_series(30, 50) i ON CONFLICT (id) DO UPDATE SET p = excluded.p, e = excluded.e;
INSERT INTO toasted VALUES (31, 0, noise(6000, 99)) ON CONFLICT DO NOTHING;
ALTER TABLE toasted REPLICA IDENTITY DEFAULT;
UPDATE toasted SET small = small + 1 WHERE id BETWEEN 20 AND 30;
DELETE FROM toasted WHERE id BETWEEN 30 AND 35;
UPDATE toasted SET p = p WHERE id = 20;
UPDATE toasted SET p = e, e = p WHERE id = 36;
INSERT INTO toasted VALUES (60, 1, noise(1300000, 60), NULL, repeat('z', 1300000), NULL, NULL);
UPDATE toasted SET x = noise(700000, 61) WHERE id = 60;
-- rewritten with its TOAST table
ALTER TABLE toasted ADD COLUMN serial_number int DEFAULT (random() * 0)::int;
UPDATE toasted SET small = 0 WHERE id = 60;
VACUUM FULL toasted;
UPDATE toasted SET small = -1 WHERE id < 40;
BEGIN;
INSERT INTO toasted VALUES (70, 1, noise(9000, 70), noise(9000, 71));
ALTER TABLE toasted ALTER COLUMN small TYPE bigint;
INSERT INTO toasted VALUES (71, 1, noise(9000, 72), noise(9000, 73));
ROLLBACK;
CREATE TABLE array_toasted (id int PRIMARY KEY, a int[], t text[]);
INSERT INTO array_toasted SELECT 1, array_agg(i * 7919), array_agg(md5(i::text)) FROM generate_series(1, 5000) i;
UPDATE array_toasted SET id = 2;
UPDATE array_toasted SET a = a || 1;
-- with lz4
ALTER TABLE toasted ALTER p SET COMPRESSION lz4, ALTER x SET COMPRESSION lz4;
INSERT INTO toasted VALUES (80, 1, repeat('compressible by another method ', 20000), NULL, repeat('inline', 300), NULL, NULL);
UPDATE toasted SET small = 81 WHERE id = 80;
UPDATE toasted SET x = p WHERE id = 80;
TRUNCATE toasted;
INSERT INTO toasted VALUES (90, 1, noise(10000, 90));
\session b
BEGIN;
INSERT INTO toasted VALUES (91, 1, noise(10000, 91));
\session a
INSERT INTO toasted VALUES (92, 1, noise(10000, 92));
\session b
INSERT INTO toasted VALUES (93, 1, noise(10000, 93));
\session a
UPDATE toasted SET small = 5 WHERE id = 92;
\session b
COMMIT;
\session a
-- Rows and chunks that a savepoint, an error or a TRUNCATE separates.
CREATE TABLE pressed (id int PRIMARY KEY, p text, l text);
-- with lz4
ALTER TABLE pressed ALTER l SET COMPRESSION lz4;
INSERT INTO pressed SELECT i, repeat(noise(300, i), 60), repeat(noise(400, i), 90) FROM generate_series(1, 12) i;
BEGIN;
INSERT INTO pressed VALUES (20, repeat(noise(3000, 1), 9), noise(9000, 2));
SAVEPOINT a;
INSERT INTO pressed VALUES (21, noise(9000, 3), repeat(noise(5000, 4), 3));
UPDATE pressed SET l = noise(7000, 5) WHERE id = 20;
ROLLBACK TO a;
INSERT INTO pressed VALUES (21, noise(8000, 6), NULL);
TRUNCATE pressed;
INSERT INTO pressed SELECT i, noise(5000, i), repeat(noise(2500, i), 5) FROM generate_series(30, 40) i;
SAVEPOINT b;
TRUNCATE pressed;
INSERT INTO pressed SELECT i, noise(5000, i), repeat(noise(2500, i), 5) FROM generate_series(50, 60) i;
ROLLBACK TO b;
ALTER TABLE pressed ADD COLUMN n text;
INSERT INTO pressed VALUES (61, noise(4000, 7), NULL, noise(6000, 8));
UPDATE pressed SET n = noise(3500, id) WHERE id < 36;
COMMIT;
BEGIN;
TRUNCATE pressed;
INSERT INTO pressed SELECT i, noise(5000, i) FROM generate_series(70, 80) i;
ROLLBACK;
DO $$ BEGIN EXECUTE (SELECT 'CREATE TABLE broad (t text, ' || string_agg('c' || i || ' bigint', ', ') || ')' FROM generate_series(1, 1100) i); END $$;
-- The row is too big once its value is stored: the chunks have no row.
DO $$ BEGIN FOR k IN 1..4 LOOP BEGIN EXECUTE 'INSERT INTO broad SELECT noise(6000, ' || k || ')' || (SELECT string_agg(', 1', '') FROM generate_series(1, 1100)); EXCEPTION WHEN program_limit_exceeded THEN INSERT INTO broad (t) VALUES (noise(5000, k)); END; INSERT INTO pressed VALUES (90 + k, noise(5000, k)) ON CONFLICT (id) DO UPDATE SET p = noise(4500, k); INSERT INTO pressed VALUES (90 + k, noise(5000, k)) ON CONFLICT (id) DO UPDATE SET p = noise(4500, k); END LOOP; END $$;
