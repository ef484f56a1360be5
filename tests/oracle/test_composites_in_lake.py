"""A composite type that changes its attributes under stored rows: the replica has the server's text."""

from pathlib import Path

import pytest

from tests.support.lakes.lakes import IDENTITY
from tests.support.lakes.routed import Routing, lake_rows
from tests.support.servers.postgres import Cluster, database_in
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.sinks.lake import Lake

DATABASE = "composites_in_lake"
SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'so, so');
CREATE TYPE inner_row AS (x int, y text);
CREATE TYPE outer_row AS (a int, "in" inner_row, m mood, t text);
CREATE DOMAIN checked AS outer_row CHECK (true);
CREATE DOMAIN some_rows AS inner_row[];
CREATE DOMAIN moods AS mood[];
CREATE TYPE holder AS (n int, rows inner_row[], moods mood[], deep outer_row[], c checked, s some_rows, ss some_rows[]);
CREATE TYPE span AS RANGE (SUBTYPE = mood);
CREATE TYPE spans AS (s span, m span_multirange);
CREATE TABLE t (id int PRIMARY KEY, o outer_row, many outer_row[], d checked, i inner_row,
  s span, m span_multirange, r spans);
CREATE TABLE held (id int PRIMARY KEY, h holder, hs holder[], ss some_rows[], ms moods[]);
"""
FILL = r"""
INSERT INTO t (id, o, many, d, i) VALUES
  (1, ROW(1, ROW(2, 'a "b" \c'), 'so, so', 'x,y'), ARRAY[ROW(1, NULL, 'sad', '')::outer_row, NULL], NULL, ROW(1, '')),
  (2, ROW(NULL, NULL, NULL, NULL), '{}', ROW(3, ROW(NULL, '()'), 'sad', '"'), ROW(NULL, NULL)),
  (3, NULL, NULL, ROW(4, ROW(4, E'\\'), NULL, E'a\nb'), NULL);
INSERT INTO held VALUES
  (1, ROW(
    1, ARRAY[ROW(1, 'a "b" \c {,}'), NULL, ROW(NULL, NULL), ROW(2, 'NULL')]::inner_row[], '{sad,NULL,"so, so"}',
    ARRAY[ROW(1, ROW(2, '\'), 'so, so', 'x')]::outer_row[], ROW(3, ROW(3, ''), 'so, so', NULL),
    ARRAY[ROW(5, '"')]::inner_row[], ARRAY['{"(7,x)",NULL}', NULL]::some_rows[]
  ), NULL, ARRAY['{"(8,NULL)",NULL}', '{}', NULL]::some_rows[], ARRAY['{"so, so",NULL,sad}', '{}']::moods[]),
  (2, ROW(
    2, '[0:1][2:3]={{"(1,one)",NULL},{"(,)","(2,\"two, 2\")"}}', '[5:5]={"so, so"}', '{}', NULL, '{}', '{}'
  ), ARRAY[ROW(3, ARRAY[ROW(9, 'deep')]::inner_row[], NULL, NULL, NULL, NULL, NULL), NULL]::holder[], NULL, NULL),
  (3, NULL, '{}', '{}', '{}');
UPDATE t SET s = '["so, so",]', m = '{[sad,sad],["so, so",)}', r = ROW('(,sad]', '{["so, so","so, so"]}') WHERE id = 1;
UPDATE t SET s = 'empty', m = '{}' WHERE id = 2
"""
STEPS = (
    "ALTER TYPE inner_row ADD ATTRIBUTE z int",
    "ALTER TYPE inner_row DROP ATTRIBUTE x",
    "ALTER TYPE outer_row ADD ATTRIBUTE later inner_row",
    "ALTER TYPE outer_row RENAME ATTRIBUTE a TO first",
    "ALTER TYPE mood RENAME VALUE 'so, so' TO 'fine'",
    "ALTER TYPE outer_row DROP ATTRIBUTE a, ADD ATTRIBUTE e mood",
    (
        "BEGIN; ALTER TYPE outer_row DROP ATTRIBUTE t; SAVEPOINT s; ALTER TYPE outer_row ADD ATTRIBUTE never int;"
        " ROLLBACK TO s; UPDATE t SET id = id + 1000 WHERE id % 10 = 2; COMMIT"
    ),
    "ALTER TYPE inner_row DROP ATTRIBUTE y, DROP ATTRIBUTE z",
    "ALTER TYPE inner_row ADD ATTRIBUTE w int",
    "ALTER TYPE holder DROP ATTRIBUTE n, ADD ATTRIBUTE again inner_row[]",
)
SHOWN = """
SELECT id, o::text, ARRAY(SELECT many[n]::text FROM generate_subscripts(many, 1) n), many IS NULL, d::text, i::text,
  s::text, m::text, r::text FROM t
"""


LIST = "coalesce((SELECT json_agg({0}[n]::text ORDER BY n) FROM generate_subscripts({0}, 1) n), '[]')"
LISTS = f"""
    {{0}} IS NULL, coalesce((SELECT json_agg(CASE WHEN one IS NOT NULL THEN {LIST.format("one")} END ORDER BY m)
    FROM (SELECT m, {{0}}[m] AS one FROM generate_subscripts({{0}}, 1) m) s), '[]')
"""
HELD = f"SELECT id, h::text, hs IS NULL, {LIST.format('hs')}, {LISTS.format('ss')}, {LISTS.format('ms')} FROM held"


def held_rows(cluster: Cluster) -> list[str]:
    """Return the rows with arrays of rows within rows, as SQL prints them."""
    found = []
    for key, h, *lists in cluster.sql(HELD, DATABASE):
        reported = [None if lists[at] else lists[at + 1] for at in (0, 2, 4)]
        found.append(repr(dict(zip(("id", "h", "hs", "ss", "ms"), (key, h, *reported), strict=True))))
    return found


def test_stored_rows_follow_their_type_as_the_server_prints_them(oracle_cluster: Cluster, tmp_path: Path) -> None:
    with database_in(oracle_cluster, DATABASE):
        ours = Routing(oracle_cluster, [DATABASE])
        ours.settle()
        oracle_cluster.sql(SETUP, DATABASE)
        for number, step in enumerate(("SELECT", *STEPS)):
            oracle_cluster.sql(step.replace("ATTRIBUTE a,", "ATTRIBUTE first,"), DATABASE)
            if number == 0:
                oracle_cluster.sql(FILL, DATABASE)
            ours.feed(tmp_path)
            names = ("id", "o", "many", "d", "i", "s", "m", "r")
            shown = [
                repr(dict(zip(names, (key, o, None if no_array else many, *rest), strict=True)))
                for key, o, many, no_array, *rest in oracle_cluster.sql(SHOWN, DATABASE)
            ]
            assert lake_rows(tmp_path, "t") == sorted(shown), step
            assert lake_rows(tmp_path, "held") == sorted(held_rows(oracle_cluster)), step
        ours.changes.close()


def test_rows_of_a_transaction_during_which_a_type_changed_are_reported_like_the_others(
    oracle_cluster: Cluster, tmp_path: Path
) -> None:
    with database_in(oracle_cluster, DATABASE):
        ours = Routing(oracle_cluster, [DATABASE])
        ours.settle()
        oracle_cluster.sql(
            "CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE pair AS (x int, y text);"
            " CREATE TABLE open (id int PRIMARY KEY, p pair, m mood);"
            " INSERT INTO open SELECT n, ROW(n, 'y')::pair, 'sad' FROM generate_series(1, 3) n",
            DATABASE,
        )
        ours.feed(tmp_path)
        with oracle_cluster.connect(DATABASE, autocommit=False) as session:
            session.execute("UPDATE open SET m = m WHERE id = 2")
            session.execute("INSERT INTO open VALUES (4, '(4,y)', 'sad')")
            oracle_cluster.sql("ALTER TYPE pair DROP ATTRIBUTE x, ADD ATTRIBUTE z int, ADD ATTRIBUTE w int", DATABASE)
            oracle_cluster.sql("ALTER TYPE mood RENAME VALUE 'sad' TO 'glad'", DATABASE)
        for ddl in ("SELECT", "ALTER TYPE pair ADD ATTRIBUTE v int"):
            oracle_cluster.sql(ddl, DATABASE)
            ours.feed(tmp_path)
            shown = oracle_cluster.sql("SELECT id, p::text, m::text FROM open", DATABASE)
            rows = [repr(dict(zip(("id", "p", "m"), row, strict=True))) for row in shown]
            assert lake_rows(tmp_path, "open") == sorted(rows), ddl
        ours.changes.close()


@pytest.mark.parametrize("goes_on", [True, False])
def test_rows_in_the_older_form_in_a_batch_after_the_types_change_are_converted(
    oracle_cluster: Cluster, tmp_path: Path, *, goes_on: bool
) -> None:
    lake = Lake(str(tmp_path), IDENTITY, shape_of, constants_of) if goes_on else None
    with database_in(oracle_cluster, DATABASE):
        ours = Routing(oracle_cluster, [DATABASE])
        ours.settle()
        oracle_cluster.sql(
            "CREATE TYPE pair AS (x int, y text); CREATE TABLE open (id int PRIMARY KEY, p pair);"
            " INSERT INTO open VALUES (1, '(1,y)')",
            DATABASE,
        )
        with oracle_cluster.connect(DATABASE, autocommit=False) as session:
            session.execute("INSERT INTO open VALUES (2, '(2,y)')")
            oracle_cluster.sql("ALTER TYPE pair ADD ATTRIBUTE z int", DATABASE)
            ours.feed(tmp_path, lake)
        ours.feed(tmp_path, lake)
        if goes_on:
            assert lake_rows(tmp_path, "open") == ["{'id': 1, 'p': '(1,y,)'}", "{'id': 2, 'p': '(2,y,)'}"]
        oracle_cluster.sql("ALTER TYPE pair ADD ATTRIBUTE w int", DATABASE)
        ours.feed(tmp_path, lake)
        assert lake_rows(tmp_path, "open") == ["{'id': 1, 'p': '(1,y,,)'}", "{'id': 2, 'p': '(2,y,,)'}"]
        ours.changes.close()
