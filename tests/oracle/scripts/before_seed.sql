-- What is there already when the capture begins: the seed must know all of it.
CREATE TYPE feeling AS ENUM ('sad', 'ok');
CREATE TABLE before (id int PRIMARY KEY, m feeling, t text);
INSERT INTO before VALUES (1, 'ok', 'x'), (2, 'sad', repeat('toast', 2000));
ALTER TABLE before ADD COLUMN d numeric(6,2) DEFAULT 1.5, ADD COLUMN a int[] DEFAULT '{1,2}', ADD COLUMN ts timestamptz DEFAULT '2024-01-01 00:00+00', ADD COLUMN lng text DEFAULT repeat('seeded ', 600), ADD COLUMN mm feeling DEFAULT 'ok', ADD COLUMN nul text, ADD COLUMN j jsonb DEFAULT '{"a": "b"}', ADD COLUMN bt bytea DEFAULT '\x00ff', ADD COLUMN iv interval DEFAULT '1 day', ADD COLUMN f8 float8 DEFAULT 0.1, ADD COLUMN ch char(4) DEFAULT 'c', ADD COLUMN ta text[] DEFAULT '{"a b",NULL}';
ALTER TABLE before DROP COLUMN t;
CREATE TABLE full_before (a int, b text);
ALTER TABLE full_before REPLICA IDENTITY FULL;
INSERT INTO full_before VALUES (1, 'x');
CREATE TABLE parted (k int) PARTITION BY RANGE (k);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
VACUUM FULL before;
VACUUM FULL pg_class;
-- rows that hold defaults which are called otherwise later
CREATE DOMAIN mere_feeling AS feeling;
CREATE TABLE called (id int PRIMARY KEY);
INSERT INTO called SELECT generate_series(1, 4);
ALTER TABLE called ADD m feeling DEFAULT 'ok', ADD n mere_feeling DEFAULT 'ok', ADD c regclass DEFAULT 'called', ADD t regtype DEFAULT 'feeling', ADD s regnamespace DEFAULT 'public', ADD z regclass DEFAULT 0;
ALTER TABLE called REPLICA IDENTITY FULL;
