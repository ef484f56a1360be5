-- Types of the extensions that come with every server, in whatever schema.
CREATE SCHEMA "Extra";
CREATE EXTENSION citext;
CREATE EXTENSION hstore SCHEMA "Extra";
CREATE EXTENSION ltree;
CREATE EXTENSION cube SCHEMA "Extra";
CREATE TABLE extended (id citext PRIMARY KEY, h "Extra".hstore, l ltree, c "Extra".cube, hs "Extra".hstore[], ci citext[]);
INSERT INTO extended VALUES ('MiXeD', 'a=>1, "b c"=>NULL, "q\"t"=>"\\"', 'Top.Sub', '(1,2),(3,4.5)', '{"a=>1",NULL}', '{A,b}');
INSERT INTO extended SELECT 'k' || n, ("Extra".hstore('n', repeat(n::text, n * 100))), ('a.b' || n)::ltree, "Extra".cube(n, n + 0.5) FROM generate_series(1, 40) n;
UPDATE extended SET id = 'mixed' WHERE id = 'MIXED';
ALTER TABLE extended REPLICA IDENTITY FULL;
UPDATE extended SET h = "Extra".hstore('big', repeat('x', 9000)) WHERE id = 'k1';
UPDATE extended SET l = 'other' WHERE id = 'k1';
ALTER EXTENSION citext SET SCHEMA "Extra";
INSERT INTO extended (id) VALUES ('after the move');
DELETE FROM extended;
