-- Columns added with a constant default: rows that were there before read attmissingval, of every kind of type.
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN small AS int CHECK (value < 100);
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t SELECT generate_series(1, 3);
ALTER TABLE t ADD a int8 DEFAULT 5000000000, ADD b text DEFAULT 'text', ADD c numeric(8,3) DEFAULT 1.250, ADD d bool DEFAULT true,
  ADD e timestamptz DEFAULT '2024-01-02 03:04:05.678+00', ADD f uuid DEFAULT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', ADD g jsonb DEFAULT '{"a": [1, 2]}',
  ADD h int[] DEFAULT '{1,2,NULL}', ADD i mood DEFAULT 'ok', ADD j small DEFAULT 7, ADD k bytea DEFAULT '\xdeadbeef', ADD l char(7) DEFAULT 'pad',
  ADD m text[] DEFAULT '{a,"b,c"}', ADD n inet DEFAULT '10.0.0.1/8', ADD o interval DEFAULT '1 day 2 hours', ADD p float8 DEFAULT 0.1, ADD q "char" DEFAULT 'q', ADD r name DEFAULT 'nm',
  ADD s date DEFAULT '2000-01-01', ADD u time DEFAULT '01:02:03', ADD v float4 DEFAULT 'NaN', ADD w int2 DEFAULT -1, ADD x oid DEFAULT 7, ADD y json DEFAULT '{ "k":1 }', ADD z cidr DEFAULT '10.0.0.0/8';
UPDATE t SET id = id + 10;
ALTER TABLE t ADD long text DEFAULT repeat('long ', 2000);
ALTER TABLE t REPLICA IDENTITY FULL;
UPDATE t SET id = id + 10;
ALTER TABLE t ADD last int, ADD after_null int DEFAULT 3;
DELETE FROM t WHERE id = 21;
ALTER TYPE mood RENAME VALUE 'ok' TO 'fine';
DELETE FROM t WHERE id = 22;
ALTER TABLE t DROP COLUMN c, DROP COLUMN i;
DELETE FROM t;
