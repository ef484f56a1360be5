-- Geometry and geography through every kind of change; PostGIS is in the schema gis.
SET search_path = public, gis;
CREATE TABLE place (id int PRIMARY KEY, any_shape geometry, point geometry(Point, 4326), solid geometry(PolygonZ, 3857), globe geography, spot geography(Point), shapes geometry[], note text);
INSERT INTO place VALUES (1, 'SRID=4326;POINT(1 2)', 'SRID=4326;POINT(-71.06 42.28)', 'SRID=3857;POLYGON Z ((0 0 1,9 0 1,9 9 1,0 0 1),(1 1 1,2 1 1,2 2 1,1 1 1))', 'LINESTRING(0 0,1 1)', 'POINT(-110 30)', ARRAY['POINT(1 2)'::geometry, NULL, 'POINT ZM (1 2 3 4)'], 'all');
INSERT INTO place (id) VALUES (2);
-- inline, compressed and out of line
INSERT INTO place (id, any_shape) SELECT 10 + n, ST_Buffer(ST_Point(n, n), n, n * 20) FROM generate_series(1, 40) n;
INSERT INTO place (id, any_shape, globe) SELECT 100 + n, ST_Segmentize(ST_MakeLine(ST_Point(0, 0), ST_Point(100, n)), 0.01), ST_Point(n, n)::geography FROM generate_series(1, 3) n;
UPDATE place SET note = 'unchanged' WHERE id > 40;
ALTER TABLE place REPLICA IDENTITY FULL;
UPDATE place SET note = 'full' WHERE id > 90 OR id < 15;
UPDATE place SET any_shape = ST_Translate(any_shape, 1, 1), globe = 'SRID=4326;POINT EMPTY' WHERE id < 60;
UPDATE place SET any_shape = ST_Force4D(any_shape);
COPY place (id, any_shape, globe) FROM PROGRAM 'printf "500\tPOINT(1 2)\tSRID=4326;POINT(3 4)\n501\t\\N\t\\N\n"';
DELETE FROM place WHERE id % 2 = 0;
-- rows from before read the missing value, then are rewritten
ALTER TABLE place ADD extra geometry DEFAULT 'CURVEPOLYGON(CIRCULARSTRING(0 0,4 0,4 4,0 4,0 0),(1 1,3 3,3 1,1 1))';
UPDATE place SET note = 'with a default';
ALTER TABLE place ALTER any_shape TYPE geography USING NULL, ALTER globe TYPE geometry USING globe::geometry;
UPDATE place SET note = 'rewritten';
DELETE FROM place;
-- in other types, and in another schema
CREATE DOMAIN right_of_zero AS geometry(Point) CHECK (ST_X(VALUE) > 0);
CREATE TYPE pair AS (a geometry, b geography, c text);
CREATE TABLE made (s right_of_zero, p pair, ps pair[]);
INSERT INTO made VALUES ('POINT(1 2)', ROW('POINT(1 2)', 'POINT(3 4)', 'x,y'), ARRAY[ROW('POINT(1 2)', NULL, '')::pair]);
