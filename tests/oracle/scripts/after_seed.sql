-- Changes to what stood there when the capture began.
UPDATE before SET id = id + 10;
ALTER TABLE before REPLICA IDENTITY FULL;
UPDATE before SET id = id + 10;
INSERT INTO before (id) VALUES (50);
UPDATE full_before SET a = 2;
DELETE FROM full_before;
INSERT INTO parted VALUES (1), (2);
UPDATE called SET id = 10 WHERE id = 1;
ALTER TYPE feeling RENAME VALUE 'ok' TO 'fine';
UPDATE called SET id = 20 WHERE id = 2;
ALTER TABLE called RENAME TO called_otherwise;
ALTER TYPE feeling RENAME TO sense;
UPDATE called_otherwise SET id = 30 WHERE id = 3;
UPDATE before SET id = id + 100;
ALTER TABLE before DROP COLUMN a, ADD COLUMN b int DEFAULT 3;
UPDATE before SET m = NULL;
DELETE FROM before;
DROP TABLE before;
