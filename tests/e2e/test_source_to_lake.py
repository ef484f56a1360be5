"""A real server, a real sidecar, a real Spark: after any SQL statements the lake equals the source."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Protocol

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.processes.captures import Sidecar, running
from tests.support.processes.spark import land
from tests.support.processes.spark_process import wait_for
from tests.support.servers.postgres import Cluster, database_in
from tidemark.io.state.state import StateStore
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.pipeline.lake.comparison import compare
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TableState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("forked")]
WAIT_S = 120.0
SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE typed (
  id bigint PRIMARY KEY, flag boolean, small smallint, real4 real, real8 double precision, amount numeric(12,2),
  anything numeric, name varchar(40), fixed char(8), data bytea, day date, at timestamptz, local timestamp,
  clock time, span interval, uid uuid, doc jsonb, plain json, feeling mood, numbers int[], words text[], address inet);
CREATE TABLE toasted (id int PRIMARY KEY, counter int, body text);
CREATE TABLE keyed_by_day (day date, kind text, total numeric(10,3), PRIMARY KEY (day, kind));
CREATE TABLE keyed_by_bytes (key bytea PRIMARY KEY, value int);
CREATE TABLE keyed_by_array (key int[] PRIMARY KEY, value int);
CREATE TABLE full_identity (id int PRIMARY KEY, body text);
ALTER TABLE full_identity REPLICA IDENTITY FULL;
CREATE TABLE by_index (a int NOT NULL, b text NOT NULL, c int, UNIQUE (b));
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_b_key;
CREATE TABLE keyless (n int, note text);
CREATE TABLE duplicates (n int, part float8, doc jsonb, list real[], body text, at timestamptz, amount numeric);
ALTER TABLE duplicates REPLICA IDENTITY FULL;
CREATE TABLE objects (kind regclass, n int);
ALTER TABLE objects REPLICA IDENTITY FULL;
INSERT INTO objects VALUES ('keyless', 1), ('keyless', 2);
INSERT INTO duplicates SELECT n % 2, (ARRAY['NaN', '-0', '0', NULL])[n % 4 + 1]::float8,
  (ARRAY['{"a": [1, null]}', 'null', NULL])[n % 3 + 1]::jsonb, (ARRAY['{NaN,NULL}', '{-0}', '{}'])[n % 3 + 1]::real[],
  CASE WHEN n % 12 = 0 THEN (SELECT string_agg(md5(m::text), '') FROM generate_series(1, 300) m) END, 'infinity', 1.10
  FROM generate_series(1, 48) n;
CREATE TABLE parted (id int, region text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parted_eu PARTITION OF parted FOR VALUES IN ('eu');
CREATE TABLE parted_us PARTITION OF parted FOR VALUES IN ('us');
CREATE TABLE "Odd, 'Näme'" ("Id" int PRIMARY KEY, id int, "_op" text, "two words" text);
CREATE TABLE columnless ();
CREATE DOMAIN temper AS mood;
CREATE TABLE keyed_by_mood (mood mood PRIMARY KEY, others mood[], temper temper, value int);
INSERT INTO keyed_by_mood VALUES ('ok', '{ok,NULL,sad}', 'ok', 1), ('sad', NULL, 'happy', 2), ('happy', '{}', NULL, 3);
CREATE TABLE empty_one (id int PRIMARY KEY, v text);
CREATE TABLE keyed_by_nan (key numeric(10,2), part real, value int, PRIMARY KEY (key, part));
CREATE TABLE keyed_by_address (key macaddr PRIMARY KEY, value int);
CREATE TABLE keyed_late (id int PRIMARY KEY DEFERRABLE, body text);
ALTER TABLE keyed_late REPLICA IDENTITY FULL;
CREATE TABLE renamed ("a.b" int PRIMARY KEY, "Name" text);
INSERT INTO keyed_by_nan VALUES ('NaN', 'NaN', 1), (0, '-0', 2), (1, 'Infinity', 3);
INSERT INTO keyed_by_address VALUES ('08:00:2b:01:02:03', 1);
INSERT INTO keyed_late SELECT n, n FROM generate_series(1, 5) n;
INSERT INTO renamed VALUES (1, 'one'), (2, 'two');
INSERT INTO typed SELECT n, n % 2 = 0, n, n / 3.0, n / 7.0, n * 1.01, n * 1e10 + 0.5, 'name ' || n, 'fix', '\\x00ff',
  date '2020-01-01' + n, timestamptz '2020-01-01 00:00+00' + n * interval '1 hour', now(), time '10:00',
  interval '1 mon 2 days',
  gen_random_uuid(), jsonb_build_object('n', n), '{"a": 1}', 'ok', ARRAY[n, NULL], ARRAY['a b', NULL], '10.0.0.1/24'
  FROM generate_series(1, 200) n;
INSERT INTO typed (id, day, at, local, anything, real8) VALUES
  (1001, 'infinity', '-infinity', 'infinity', 'NaN', 'Infinity'),
  (1002, '0044-03-15 BC', '12000-01-01', NULL, 0, '-0');
INSERT INTO toasted SELECT n, 0, string_agg(md5(n::text || m::text), '')
  FROM generate_series(1, 20) n, generate_series(1, 200) m GROUP BY n;
INSERT INTO keyless SELECT n, 'note' FROM generate_series(1, 10) n;
INSERT INTO parted SELECT n, CASE WHEN n % 2 = 0 THEN 'eu' ELSE 'us' END FROM generate_series(1, 10) n;
"""
RARER = """
CREATE TYPE pair AS (a int, b text);
CREATE TABLE shapes (id int PRIMARY KEY, p point, b box, c circle, pa path, note text);
CREATE TABLE small (mac macaddr PRIMARY KEY, bits bit(3), m money, lsn pg_lsn, at tid, kind regtype, kinds regclass[]);
CREATE TABLE searched (id int PRIMARY KEY, words tsvector, query tsquery, doc xml);
CREATE TABLE ranged (during daterange PRIMARY KEY, sizes int4multirange, n numrange[]);
CREATE TABLE paired (id pair PRIMARY KEY, more pair[]);
INSERT INTO shapes SELECT n, point(n, n / 3.0), box(point(0, 0), point(n, 1)), NULL, '[(1,2),(3,4)]', 'x'
  FROM generate_series(1, 20) n;
INSERT INTO small VALUES ('08:00:2b:01:02:03', '101', 12.34, '1/A', '(1,2)', 'int', '{pg_class,NULL}');
INSERT INTO searched SELECT n, to_tsvector('simple', 'w' || n || ' it''s'), 'a & !b', '<a/>'
  FROM generate_series(1, 20) n;
INSERT INTO ranged VALUES ('[2024-01-01,2024-02-01)', '{[1,2),[5,9)}', '{"[1.50,2]",empty}');
INSERT INTO paired VALUES ('(1,"a b")', '{"(2,)",NULL}');
"""
RARER_CHANGES = """
UPDATE shapes SET p = '(NaN,Infinity)' WHERE id < 5;
DELETE FROM shapes WHERE id > 15;
UPDATE small SET kind = 'pair', m = -0.01;
INSERT INTO small (mac, m) VALUES ('ff:00:2b:01:02:03', 1);
UPDATE small SET mac = 'ff:ff:2b:01:02:03' WHERE m = '$1.00';
UPDATE searched SET words = NULL WHERE id = 3;
UPDATE ranged SET during = 'empty';
INSERT INTO ranged VALUES ('(,)', '{}', NULL);
UPDATE paired SET more = '{"(3,\\"\\\"\\\"\\")"}';
INSERT INTO paired VALUES ('(2,)', NULL);
DELETE FROM paired WHERE id = '(1,"a b")'::pair;
"""
OTHER_FORMS = {
    "TIDEMARK_TYPES__DECIMALS": "double",
    "TIDEMARK_TYPES__BINARY": "base64",
    "TIDEMARK_TYPES__INTERVALS": "microseconds",
    "TIDEMARK_TYPES__TIME_PRECISION": "milliseconds",
    "TIDEMARK_TYPES__OUT_OF_RANGE": "null",
}
FIRST = """
UPDATE typed SET amount = amount + 1, name = NULL WHERE id % 3 = 0;
DELETE FROM typed WHERE id % 10 = 0;
UPDATE typed SET id = id + 5000 WHERE id BETWEEN 20 AND 25;
UPDATE toasted SET counter = counter + 1;
UPDATE toasted SET id = id + 100 WHERE id < 5;
INSERT INTO toasted SELECT 500, 1, repeat('x', 100000);
UPDATE toasted SET counter = 7 WHERE id = 500;
INSERT INTO keyed_by_day VALUES ('2024-02-29', 'a', 1.5), ('2024-02-29', 'b', 2.5), ('infinity', 'c', 0);
UPDATE keyed_by_day SET day = '2025-01-01' WHERE kind = 'b';
INSERT INTO keyed_by_bytes VALUES ('\\x00', 1), ('\\xff', 2);
UPDATE keyed_by_bytes SET value = 3 WHERE key = '\\xff';
INSERT INTO keyed_by_array VALUES ('{1,2}', 1);
INSERT INTO full_identity SELECT n, repeat('y', 5000 * n) FROM generate_series(1, 4) n;
UPDATE full_identity SET id = id + 10 WHERE id > 2;
DELETE FROM full_identity WHERE id = 1;
INSERT INTO by_index VALUES (1, 'one', 1), (2, 'two', 2);
UPDATE by_index SET b = 'uno', c = 5 WHERE a = 1;
INSERT INTO keyless VALUES (11, 'more');
DELETE FROM duplicates WHERE ctid IN (SELECT min(ctid) FROM duplicates GROUP BY n, part, doc);
UPDATE duplicates SET part = part WHERE n = 1;
UPDATE duplicates SET n = 7 WHERE ctid IN (SELECT min(ctid) FROM duplicates WHERE body IS NOT NULL);
INSERT INTO duplicates (n) VALUES (NULL), (NULL), (NULL);
DELETE FROM duplicates WHERE ctid IN (SELECT min(ctid) FROM duplicates WHERE n IS NULL);
UPDATE objects SET n = 3 WHERE n = 1;
UPDATE keyed_by_nan SET part = 0 WHERE key = 0;
UPDATE keyed_by_nan SET value = value + 1;
UPDATE keyed_by_address SET value = 2;
UPDATE keyed_late SET id = id + 1;
UPDATE renamed SET "Name" = 'uno' WHERE "a.b" = 1;
DELETE FROM renamed WHERE "a.b" = 2;
UPDATE parted SET region = 'us' WHERE id = 2;
INSERT INTO "Odd, 'Näme'" VALUES (1, 2, 'op', 'two'), (2, 3, NULL, NULL);
"""
DDL = """
ALTER TABLE typed ADD COLUMN added text DEFAULT 'constant';
ALTER TABLE duplicates ADD COLUMN added text DEFAULT 'constant';
DELETE FROM duplicates WHERE ctid IN (SELECT min(ctid) FROM duplicates GROUP BY n);
ALTER TABLE duplicates ALTER COLUMN n TYPE bigint;
UPDATE duplicates SET added = NULL WHERE ctid IN (SELECT min(ctid) FROM duplicates GROUP BY part);
ALTER TABLE duplicates RENAME COLUMN part TO share;
ALTER TABLE typed ADD COLUMN stamped numeric(10,2) DEFAULT 1.25;
ALTER TABLE typed RENAME COLUMN name TO label;
ALTER TABLE typed DROP COLUMN fixed;
ALTER TABLE typed ALTER COLUMN small TYPE int;
ALTER TABLE typed ALTER COLUMN amount TYPE numeric(14,2);
UPDATE typed SET added = 'changed' WHERE id = 3;
ALTER TABLE toasted ADD COLUMN random float8 DEFAULT random();
UPDATE toasted SET counter = -1 WHERE id = 10;
ALTER TABLE by_index RENAME TO by_index_renamed;
CREATE TABLE born AS SELECT n AS id, 'x' || n AS v FROM generate_series(1, 50) n;
ALTER TABLE born ADD PRIMARY KEY (id);
UPDATE born SET v = 'y' WHERE id < 5;
ALTER TYPE mood RENAME VALUE 'ok' TO 'fine';
UPDATE keyed_by_mood SET value = 4 WHERE mood = 'fine';
DELETE FROM keyed_by_mood WHERE mood = 'sad';
TRUNCATE keyed_by_bytes;
ALTER TABLE renamed RENAME COLUMN "Name" TO name;
UPDATE renamed SET name = 'eins';
DELETE FROM keyed_by_nan WHERE key = 'NaN';
INSERT INTO keyed_by_bytes VALUES ('\\x01', 9);
ALTER TABLE "Odd, 'Näme'" ALTER COLUMN id TYPE text;
ALTER TABLE "Odd, 'Näme'" RENAME "two words" TO "_old";
CREATE TABLE gone (id int PRIMARY KEY);
INSERT INTO gone VALUES (1);
DROP TABLE keyed_by_array;
VACUUM FULL typed;
ALTER TABLE empty_one ALTER COLUMN v TYPE int USING v::int;
ALTER TABLE parted ADD COLUMN note text DEFAULT 'p';
"""
LAST = """
BEGIN; INSERT INTO born VALUES (100, 'kept'); SAVEPOINT s; INSERT INTO born VALUES (101, 'not'); ROLLBACK TO s;
UPDATE toasted SET body = body || '!' WHERE id = 6; COMMIT;
BEGIN; DROP TABLE gone; ROLLBACK;
BEGIN; ALTER TABLE full_identity ALTER COLUMN id TYPE bigint; INSERT INTO full_identity VALUES (77, 'z');
UPDATE full_identity SET body = 'zz' WHERE id = 77; COMMIT;
BEGIN; TRUNCATE born; INSERT INTO born VALUES (1, 'after'); COMMIT;
DROP TABLE gone;
BEGIN; SAVEPOINT s; DELETE FROM duplicates; ROLLBACK TO s;
DELETE FROM duplicates WHERE ctid IN (SELECT min(ctid) FROM duplicates GROUP BY doc); COMMIT;
UPDATE keyless SET note = 'which?' WHERE n = 3;
"""


def run_script(cluster: Cluster, database: str, script: str) -> None:
    with cluster.connect(database) as session:
        session.execute("SET client_encoding = 'UTF8'")
        for statement in script.split(";\n"):
            if statement.strip():
                session.execute(statement.encode())


class SourceToLake:
    """A source, a sidecar and a lake."""

    def __init__(self, cluster: Cluster, database: str, sidecar: Sidecar, root: Path, spark: SparkSession) -> None:
        self.cluster, self.database, self.sidecar, self.spark = cluster, database, sidecar, spark
        self.lake = root / "lake"
        self.checkpoint = root / "checkpoint"

    def sql(self, script: str) -> None:
        run_script(self.cluster, self.database, script)

    def land(self) -> None:
        """Write all changes so far into the lake."""
        folder = self.sidecar.folder
        with self.cluster.connect(self.database) as session:
            found = session.execute("SELECT pg_logical_emit_message(true, 'landing', '')").fetchone()
        assert found is not None
        lsn = parse_lsn(found[0])
        with StateStore.open(folder) as store:
            wait_for(lambda: reached(store, lsn), "the sidecar to deliver")
        land(self.spark, folder, self.lake, self.checkpoint)

    def differences(self, least: int = 10) -> list[str]:
        """Compare; return the tables that differ, after a check that tables exist."""
        _, tables = compare(self.cluster.dsn(self.database), self.sidecar.folder, str(self.lake), WAIT_S)
        assert len(tables) >= least, tables
        return [str(table) for table in tables if not table.identical]

    def states(self) -> dict[str, TableState]:
        with StateStore.open(self.sidecar.folder) as store:
            positions = Positions(str(self.lake), store.identity)
        return {table.name: table.state for table in positions.tables.values()}


class NewSourceToLake(Protocol):
    """Creates a stand over a new database."""

    def __call__(self, schema: str, encoding: str, /, **options: str) -> SourceToLake:
        """Run `schema` there first; `options` are the sidecar's environment."""


def reached(store: StateStore, lsn: Lsn) -> bool:
    delivered = store.view().delivered
    return delivered is not None and delivered.pointer.position.commit_lsn >= lsn


@pytest.fixture
def new_source_to_lake(cluster: Cluster, tmp_path: Path, spark: SparkSession) -> Iterator[NewSourceToLake]:
    with ExitStack() as stack:

        def start(schema: str, encoding: str, /, **options: str) -> SourceToLake:
            reported = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
            database = stack.enter_context(database_in(cluster, f"lake_{uuid.uuid4().hex[:8]}", options=reported))
            run_script(cluster, database, schema)
            sidecar = stack.enter_context(running(cluster, database, tmp_path, copy=True, **options))
            return SourceToLake(cluster, database, sidecar, tmp_path, spark)

        yield start


@pytest.mark.feature("P21")
@pytest.mark.feature("P22")
@pytest.mark.feature("P27")
@pytest.mark.feature("X24")
@pytest.mark.feature("X23")
def test_the_lake_equals_the_source_through_changes_and_ddl(new_source_to_lake: NewSourceToLake) -> None:
    source_to_lake = new_source_to_lake(SCHEMA, "UTF8")
    source_to_lake.land()
    assert source_to_lake.differences() == []
    source_to_lake.sql(FIRST)
    source_to_lake.land()
    assert source_to_lake.differences() == []
    source_to_lake.sql(DDL)
    source_to_lake.land()
    assert source_to_lake.differences() == []
    source_to_lake.sql(LAST)
    source_to_lake.land()
    assert source_to_lake.differences() == []
    states = source_to_lake.states()
    assert states["gone"] is states["keyed_by_array"] is TableState.DROPPED
    assert {name for name, state in states.items() if state is TableState.BLOCKED} == {*("keyless", "objects")}
    assert states["by_index_renamed"] is TableState.LIVE
    assert "parted" not in states


def test_the_lake_equals_the_source_for_the_less_common_types(new_source_to_lake: NewSourceToLake) -> None:
    source_to_lake = new_source_to_lake(RARER, "UTF8")
    source_to_lake.land()
    assert source_to_lake.differences(least=5) == []
    source_to_lake.sql(RARER_CHANGES)
    source_to_lake.land()
    assert source_to_lake.differences(least=5) == []
    assert TableState.BLOCKED not in source_to_lake.states().values()


@pytest.mark.feature("P13")
def test_the_lake_equals_the_source_in_other_forms(new_source_to_lake: NewSourceToLake) -> None:
    source_to_lake = new_source_to_lake(SCHEMA, "UTF8", **OTHER_FORMS)
    source_to_lake.sql(FIRST)
    source_to_lake.land()
    assert source_to_lake.differences() == []
    source_to_lake.sql(DDL)
    source_to_lake.land()
    assert source_to_lake.differences() == []
    (typed,) = source_to_lake.lake.glob("*/*/typed/replica")
    row = DeltaTable(str(typed)).to_pyarrow_table(columns=["amount", "data", "span", "day"], filters=[("id", "=", 7)])
    assert row.to_pylist() == [{"amount": 7.07, "data": "AP8=", "span": 2_764_800_000_000, "day": date(2020, 1, 8)}]


def test_the_lake_of_a_database_in_another_encoding_is_in_utf8(new_source_to_lake: NewSourceToLake) -> None:
    source_to_lake = new_source_to_lake(
        "CREATE TABLE café (id int PRIMARY KEY, \"größe\" text);\nINSERT INTO café VALUES (1, 'ñ')", "LATIN1"
    )
    source_to_lake.land()
    source_to_lake.sql("ALTER TABLE café ADD COLUMN prix text DEFAULT '12 £';\nINSERT INTO café VALUES (2, 'ö', 'é')")
    source_to_lake.land()
    assert source_to_lake.differences(least=1) == []
    (folder,) = source_to_lake.lake.glob("*/*/*/replica")
    assert [row["prix"] for row in DeltaTable(str(folder)).to_pyarrow_table().sort_by("id").to_pylist()] == [
        "12 £",
        "é",
    ]
