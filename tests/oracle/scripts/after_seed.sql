-- Changes to what stood there when the capture began.
UPDATE before SET id = id + 10;
ALTER TABLE before REPLICA IDENTITY FULL;
UPDATE before SET id = id + 10;
INSERT INTO before (id) VALUES (50);
UPDATE full_before SET a = 2;
DELETE FROM full_before;
INSERT INTO parted VALUES (1), (2);
ALTER TYPE feeling RENAME VALUE 'ok' TO 'fine';
UPDATE before SET id = id + 100;
ALTER TABLE before DROP COLUMN a, ADD COLUMN b int DEFAULT 3;
UPDATE before SET m = NULL;
DELETE FROM before;
DROP TABLE before;
