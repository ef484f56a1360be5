-- Types whose values come out raw until "Decode everything": everything else on their lines is the same.
CREATE TYPE raw_pair AS (a int, b text);
CREATE TYPE raw_span AS RANGE (subtype = float8);
CREATE DOMAIN raw_domain AS raw_pair;
CREATE TABLE other (id int PRIMARY KEY, p point, b box, x xml, ts tsvector, tq tsquery, ir int4range, im int4multirange, pa raw_pair, pas raw_pair[], m money, bi bit(3), vb varbit, mac macaddr, rc regclass, rt regtype, rp regproc, sp raw_span, dp raw_domain, last text);
INSERT INTO other VALUES (1, '(1,2)', '((0,0),(1,1))', '<a>it''s</a>', 'a b:1', 'a & b', '[1,5)', '{[1,2),[4,9)}', '(1,"x y")', '{"(1,x)"}', '12.34', '101', '1', '08:00:2b:01:02:03', 'other', 'raw_pair', 'now', '[0.5,1.5]', '(2,z)', 'end');
INSERT INTO other (id, last) VALUES (2, 'nulls');
UPDATE other SET last = repeat('x', 20), p = '(3,4)', x = '<b/>' WHERE id = 1;
UPDATE other SET id = 3 WHERE id = 2;
ALTER TABLE other REPLICA IDENTITY FULL;
UPDATE other SET last = NULL;
ALTER TYPE raw_pair ADD ATTRIBUTE c int;
UPDATE other SET pa = ROW(1, 'b', 3) WHERE id = 1;
DELETE FROM other;
