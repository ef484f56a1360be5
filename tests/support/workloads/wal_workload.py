"""A workload that writes WAL of every kind: DDL, COPY, TOAST, savepoints, two-phase, page images, switches, a crash."""

import re

from tests.support.servers.postgres import Cluster, Session, StopMode, sql
from tidemark.model.lsn import Lsn, parse_lsn

STATEMENTS = """
CREATE TABLE plain (id int PRIMARY KEY, note text, amount numeric(12, 2));
INSERT INTO plain SELECT g, repeat('x', g % 90), g FROM generate_series(1, 3000) g;
CREATE INDEX ON plain USING hash (note);
CREATE INDEX ON plain USING brin (amount);
CREATE TABLE shapes (id int, at point);
CREATE INDEX ON shapes USING gist (at);
CREATE INDEX ON shapes USING spgist (at);
INSERT INTO shapes SELECT g, point(g, g % 17) FROM generate_series(1, 400) g;
CREATE TABLE words (tags text[]);
CREATE INDEX ON words USING gin (tags);
INSERT INTO words SELECT ARRAY['a' || g, 'b' || g % 7] FROM generate_series(1, 300) g;
CREATE TABLE big (id int PRIMARY KEY, body text);
ALTER TABLE big REPLICA IDENTITY FULL;
INSERT INTO big SELECT g, (SELECT string_agg(md5((g * i)::text), '') FROM generate_series(1, 300) i)
  FROM generate_series(1, 20) g;
CHECKPOINT;
UPDATE plain SET note = note || 'y' WHERE id % 3 = 0;
UPDATE big SET id = id + 1000 WHERE id < 5;
DELETE FROM big WHERE id BETWEEN 10 AND 15;
INSERT INTO plain VALUES (1, 'again', 0), (9000, 'new', 0) ON CONFLICT (id) DO UPDATE SET note = 'conflict';
BEGIN;
SAVEPOINT one;
INSERT INTO plain VALUES (-1, 'kept');
SAVEPOINT two;
INSERT INTO plain VALUES (-2, 'dropped');
ROLLBACK TO SAVEPOINT two;
RELEASE SAVEPOINT one;
COMMIT;
BEGIN;
INSERT INTO plain VALUES (-3, 'rolled back');
ROLLBACK;
BEGIN;
INSERT INTO plain VALUES (-4, 'prepared');
CREATE TABLE made_by_prepared (id int);
PREPARE TRANSACTION 'kept';
COMMIT PREPARED 'kept';
BEGIN;
INSERT INTO plain VALUES (-5, 'prepared');
PREPARE TRANSACTION 'dropped';
ROLLBACK PREPARED 'dropped';
DO $$ BEGIN FOR i IN 1..150 LOOP BEGIN INSERT INTO plain VALUES (10000 + i, 'sub'); EXCEPTION WHEN division_by_zero
  THEN NULL; END; END LOOP; END $$;
SELECT pg_logical_emit_message(true, 'transactional', 'in a transaction');
SELECT pg_logical_emit_message(false, 'not', repeat('long', 5000));
CREATE SEQUENCE counter;
SELECT nextval('counter');
CHECKPOINT;
VACUUM FULL pg_class;
VACUUM FULL plain;
VACUUM (FREEZE) big;
ALTER TABLE plain ADD COLUMN added int DEFAULT 7;
ALTER TABLE plain ALTER COLUMN id TYPE bigint;
TRUNCATE shapes, words RESTART IDENTITY CASCADE;
SELECT id FROM plain WHERE id BETWEEN 5 AND 90 FOR UPDATE;
SELECT pg_switch_wal();
UPDATE plain SET added = 8 WHERE id < 50;
DROP TABLE made_by_prepared;
CREATE DATABASE other;
SELECT pg_logical_emit_message(true, 'last', 'one');
"""


def run(cluster: Cluster, *, compressions: tuple[str, ...] = ()) -> tuple[Lsn, Lsn]:
    """Run the workload, and continue after a crash; return the begin and end LSN of its WAL."""
    begin = parse_lsn(str(cluster.sql("SELECT redo_lsn FROM pg_control_checkpoint()")[0][0]))
    with cluster.connect() as session:
        for statement in re.split(r";\n", STATEMENTS.strip().removesuffix(";")):
            sql(session, statement)
        _copy(session)
        for compression in compressions:
            sql(session, f"SET wal_compression = {compression}")
            sql(session, "CHECKPOINT")
            sql(session, "UPDATE plain SET added = added + 1 WHERE id % 5 = 0")
            sql(
                session,
                "INSERT INTO big SELECT (SELECT max(id) FROM big) + row_number() OVER (), body FROM big LIMIT 3",
            )
    cluster.restart(StopMode.IMMEDIATE)
    cluster.sql("INSERT INTO plain SELECT -g FROM generate_series(100, 300) g")
    cluster.sql("SELECT pg_logical_emit_message(true, 'flushed', '')")
    return begin, parse_lsn(cluster.flush_lsn())


def _copy(session: Session) -> None:
    with session.cursor().copy("COPY plain (id, note) FROM STDIN") as copy:
        for number in range(20_000, 24_000):
            copy.write_row((number, "copied"))
