"""Tables that change in each way before and after a lake gets their changes, for the commands that add them later."""

from tidemark.decode.groups.group_builder import GROUP_ROWS

DATABASE = "shop"
DDL = """
CREATE TABLE other (id int PRIMARY KEY);
CREATE TABLE keyed (id int PRIMARY KEY, amount int, note text, big text);
ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL;
CREATE TABLE keyless (id int, note text); ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (20);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (20) TO (1000);
INSERT INTO keyed SELECT g, g, 'before', repeat('x', 3000) FROM generate_series(1, 20) g;
"""
WRITTEN = (
    "INSERT INTO keyed SELECT g, g, 'first', repeat('y', 3000) FROM generate_series(21, 40) g",
    "UPDATE keyed SET note = 'second' WHERE id % 3 = 0",
    "INSERT INTO keyless SELECT g % 5, 'row ' || g FROM generate_series(1, 30) g",
    "INSERT INTO parts SELECT g, 'part' FROM generate_series(1, 39) g",
    "ALTER TABLE keyed ALTER amount TYPE bigint",
    "UPDATE keyed SET amount = 5000000000 WHERE id = 3",
)
REWRITTEN = (
    "ALTER TABLE keyed RENAME note TO remark",
    "UPDATE keyed SET id = id + 1000 WHERE id < 5",
    "ALTER TABLE keyless ALTER id TYPE text USING 'n' || id",
    "DELETE FROM keyless WHERE id = 'n2'",
    "TRUNCATE keyless",
    "INSERT INTO keyless VALUES ('after', 'truncate'), ('after', 'truncate')",
    "ALTER TABLE keyed DROP COLUMN big",
    "DELETE FROM keyed WHERE id = 10",
    "BEGIN; ALTER TABLE parts ADD COLUMN extra int DEFAULT 7; UPDATE parts SET id = id + 70 WHERE id = 5; COMMIT",
)
WRITTEN_LATER = (
    "UPDATE keyed SET remark = 'third' WHERE id % 5 = 0",
    "ALTER TABLE keyed ADD COLUMN more text",
    "INSERT INTO keyed (id, more) VALUES (5000, 'later')",
    "DELETE FROM keyless WHERE note = 'truncate'",
    "INSERT INTO parts (id, note) VALUES (600, 'later')",
)
LARGE_ROWS = GROUP_ROWS + 1000  # of a transaction with two groups
