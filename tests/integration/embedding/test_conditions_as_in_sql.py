"""Conditions of Filter compared with WHERE of a real server, on edge values of each type: the same rows, or refused."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, Session, database_in, sql
from tidemark import Batch, Engine, Filter, Route
from tidemark.decode.types.registry import arrow_struct
from tidemark.transforms.expressions.sql_expression import BadExpression
from tidemark.transforms.plan import TransformPlans

SAMPLES = Path(__file__).parents[2] / "support" / "samples" / "conditions"
ANSWERED = (SAMPLES / "answered.txt").read_text().splitlines()
REFUSED = (SAMPLES / "refused.txt").read_text().splitlines()
CHANGES = 9
pytestmark = pytest.mark.feature("P15")
SETUP = (
    "CREATE EXTENSION citext",
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
    "CREATE DOMAIN code AS char(4)",
    """CREATE TABLE edges (
        id int PRIMARY KEY, s smallint, b bigint, r real, d double precision, m numeric(10, 2), n numeric,
        t text, v varchar(20), c char(5), e code, nm name, ch "char", ci citext, mo mood, f boolean,
        da date, ts timestamp, tz timestamptz, ti time, iv interval, u uuid, ip inet, ci2 cidr, mac macaddr,
        bi bit(3), by bytea, j jsonb, js json, ra int4range, ar int[], mn money, tt timetz, o oid)""",
    "SET timezone = 'UTC'",
    r"""INSERT INTO edges VALUES
    (1, 1, 1, 0.1, 0.1, 0.10, 1.50, 'ab', 'ab', 'ab', 'ab', 'ab', 'a', 'AbC', 'sad', true,
     '2024-01-01', '2024-01-01', '2024-01-01 00:00+02', '12:00', '1 day', '00000000-0000-0000-0000-00000000000a',
     '1.2.3.4', '10.0.0.0/8', '08:00:2b:01:02:03', B'101', '\x00ff', '{"a": 2, "b": 1}', '{"a":1}', '[1,10)', '{1,2}',
     1.5, '12:00+02', 1),
    (2, -7, 9007199254740993, 'NaN', 'NaN', -2.50, 1e20, 'AB ', 'AB ', 'AB', 'AB', 'B', 'b', 'abc', 'ok', false,
     '1969-12-31', '1969-12-31 23:59:59.5', '1969-12-31 23:59:59.5+00', '23:59:59.999999', '24:00',
     'ffffffff-ffff-ffff-ffff-ffffffffffff', '1.2.3.10/24', '10.0.0.0/16', '08:00:2b:01:02:04', B'011', '\x',
     '{"a": 2.0}', '1', 'empty', '{}', -0.5, '13:00+03', 4294967295),
    (3, 7, -9223372036854775808, 'Infinity', 'Infinity', 2.50, 'NaN', '', '', '', '', '', '', '', 'happy', NULL,
     '9999-12-30', '2000-02-29 12:30:00.123456', '2000-02-29 12:30:00.123456+00', '00:00', '1 mon', NULL, '::1',
     '::/0', NULL, B'000', '\x61', 'null', 'null', '(,)', '{NULL}', 0, NULL, 0),
    (4, 32767, 9223372036854775807, '-Infinity', '-Infinity', 99999999.99, '-Infinity', E'a\nb', E'a\nb', 'a b', 'b',
     'é', 'z', 'É', 'sad', true, '0001-01-02', '0001-01-02', '0001-01-02 00:00+00', '00:00:01', '30 days',
     '0000000a-0000-0000-0000-000000000000', '1.2.3.4/32', '1.2.3.4', NULL, B'111', '\x5c78', '[1]', '[]', '[1,2)',
     '{2}', 100, NULL, 5),
    (5, 0, 0, '-0', '-0', 0.00, 0, 'a_b%c\d', 'a%', E'a\t', '    ', 'a', 'a', 'ABC', 'ok', false,
     '2024-02-29', '2024-01-01 00:00:00.1', '2024-01-01 00:00:00.1+00', '12:00', '0', NULL, NULL, NULL, NULL, NULL,
     '\x20', '"x"', '""', NULL, NULL, NULL, NULL, NULL),
    (6, 2, 5, 1e-5, 1e15, 0.05, 'Infinity', 'été ÉCLAIR', 'ÀB', 'é', 'é', 'Z', 'Z', 'été', 'happy', true,
     '2024-01-02', '2024-01-02', '2024-01-02 00:00+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL, NULL, NULL, NULL),
    (7, 3, 3, 16777216, 123456789012345680, 1.00, 0.000000000000000000001, '12', '-3.5', '1', '1', 'x', NULL,
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL),
    (8, 5, 5, 2.5, 2.5, 12.00, 12.0000, ' ', ' ', ' ', ' ', ' ', ' ', ' ', NULL, NULL, NULL, NULL, NULL,
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)""",
    "INSERT INTO edges (id) VALUES (9)",
)


@dataclass(frozen=True)
class EdgeRows:
    """The rows in the server, and the same ones in batches of their changes."""

    session: Session
    batches: list[Batch]

    def in_server(self, condition: str) -> list[object]:
        return [row[0] for row in sql(self.session, f"SELECT id FROM edges WHERE {condition} ORDER BY id")]

    def kept(self, condition: str) -> list[object]:
        plans = TransformPlans([Filter(condition)], lambda relation: arrow_struct(relation.live_columns))
        kept = [each for batch in self.batches for each in plans.plan(batch.database, batch.relation).apply(batch)]
        return [change.after["id"] for batch in kept for change in batch if change.after is not None]


@pytest.fixture(scope="module")
def rows(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeRows]:
    batches: list[Batch] = []
    with database_in(cluster, "conditions") as database, closing(cluster.connect(database)) as session:
        *schema, inserts, last = SETUP
        for statement in schema:
            sql(session, statement)
        with Engine(
            cluster.dsn(database),
            state=tmp_path_factory.mktemp("conditions") / "state",
            handler=batches.append,
            tables=["public.edges"],
            settings={"copy": {"enabled": False}},
        ) as engine:
            sql(session, inserts)
            sql(session, last)
            wait_until(lambda: sum(map(len, batches)) == CHANGES or engine.wait(0))
        yield EdgeRows(session, batches)


@pytest.mark.parametrize("condition", ANSWERED)
def test_a_condition_keeps_the_rows_that_the_server_selects(rows: EdgeRows, condition: str) -> None:
    assert rows.kept(condition) == rows.in_server(condition)


@pytest.mark.parametrize("condition", REFUSED)
def test_a_condition_whose_result_would_differ_is_refused_before_a_row(rows: EdgeRows, condition: str) -> None:
    with pytest.raises(BadExpression):
        rows.kept(condition)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("c", {"ab": [1], "AB": [2], "a\t": [5], "a b": [4], "é": [6], "1": [7], "public.edges": [3, 8, 9]}),
        ("d::text", {"0.1": [1], "NaN": [2], "Infinity": [3], "-Infinity": [4], "-0": [5], "1e+15": [6]}),
    ],
)
def test_a_route_by_a_value_has_its_text_in_the_server(
    rows: EdgeRows, by: str, expected: dict[str, list[object]]
) -> None:
    plans = TransformPlans([Route("{value}", by=by)], lambda relation: arrow_struct(relation.live_columns))
    found: dict[str, list[object]] = {}
    for batch in rows.batches:
        for each in plans.plan(batch.database, batch.relation).apply(batch):
            found.setdefault(each.table, []).extend(change.after["id"] for change in each if change.after is not None)
    assert {name: found.get(name) for name in expected} == expected
