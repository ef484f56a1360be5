"""Values in Debezium's JSON, compared with SQL, from a real server through `cdcctl tail`.

The expected forms are those of the connector's documentation (`time.precision.mode=adaptive`,
`decimal.handling.mode=string`, `binary.handling.mode=bytes`, `interval.handling.mode=numeric`), each as an expression
of SQL, so that the server itself computes the value.
"""

import json
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.oracles.oracle import ROLE, ensure_role
from tests.support.processes.cdcctl import running
from tests.support.samples.type_samples import SAMPLES
from tests.support.servers.postgres import Cluster, Session, sql

FOLLOWING = "changes follow from here on"
RANGE = ("0001-01-01", "9999-12-31")  # the years of an Arrow column: others are clamped
USECS = "(extract(epoch FROM {v}) * 1000000)::bigint"
ZONED = "to_char({v} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
BASE64 = "replace(encode({v}, 'base64'), E'\\n', '')"
MONTH_USECS = 2_629_800_000_000
PARTS = "extract(year FROM {v}) * 12 + extract(month FROM {v})"
INTERVAL = (
    f"(({PARTS}) * {MONTH_USECS} + extract(day FROM {{v}}) * 86400000000"
    " + extract(hour FROM {v}) * 3600000000 + extract(minute FROM {v}) * 60000000"
    " + extract(microseconds FROM {v}))::bigint"
)
EACH = "CASE WHEN {v} IS NOT NULL THEN ARRAY(SELECT {form} FROM unnest({v}) u) END"
NUMERIC = (
    "CASE {v}::text WHEN 'NaN' THEN 'NAN' WHEN 'Infinity' THEN 'POSITIVE_INFINITY'"
    " WHEN '-Infinity' THEN 'NEGATIVE_INFINITY' ELSE {v}::text END"
)
POINT = (
    "CASE WHEN {v} IS NOT NULL THEN json_build_object('x', {v}[0], 'y', {v}[1], 'srid', NULL, 'wkb',"
    " encode('\\x0101000000' || reversed(float8send({v}[0])) || reversed(float8send({v}[1])), 'base64')) END"
)
REVERSED = """CREATE FUNCTION reversed(bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS
    $$ SELECT string_agg(substr($1, n, 1), '' ORDER BY n DESC) FROM generate_series(1, length($1)) n $$"""
# By declaration: the SQL expression for a value `{v}`, and the values where not all samples of the type fit.
EXPECTED: dict[str, tuple[str, list[str] | None]] = {
    "boolean": ("{v}", None),
    "smallint": ("{v}", None),
    "integer": ("{v}", None),
    "bigint": ("{v}", None),
    "oid": ("{v}::bigint", None),
    "real": ("{v}", None),
    "double precision": ("{v}", None),
    "numeric": (NUMERIC, ["0", "0.00", "-1", "0.10", "12345.6789", "NaN", "9" * 300]),
    "numeric(10,2)": (NUMERIC, None),
    "money": ("{v}::numeric::text", None),
    "text": ("{v}", None),
    "character varying(20)": ("{v}", None),
    "character(5)": ("rpad({v}::text, 5)", None),
    '"char"': ("{v}::text", ["a", " ", "\\"]),
    "bytea": (BASE64, None),
    "date": ("{v} - date '1970-01-01'", ["2000-01-01", "1999-12-31", "2024-02-29", *RANGE]),
    "time": (USECS, None),
    "time(3)": ("(extract(epoch FROM {v}) * 1000)::bigint", ["12:34:56.789", "00:00:00"]),
    "timestamp": (USECS, ["2000-01-01 00:00:00", "1969-12-31 23:59:59.999999", *RANGE]),
    "timestamp(3)": (
        "(extract(epoch FROM {v}) * 1000)::bigint",
        ["2024-01-01 12:34:56.789", "1969-12-31 23:59:59.999"],
    ),
    "timestamp(6)[]": (EACH.format(form=USECS.format(v="u"), v="{v}"), ["{2024-01-01,1960-01-01,NULL}"]),
    "timestamp with time zone": (ZONED, ["2000-01-01 00:00:00+00", "2024-03-31 02:30:00.5+02", *RANGE]),
    "interval": (INTERVAL, ["0", "1 year -1 day", "-13 mons", "1 mon -1 day 01:02:03", "100:00:00", "00:00:00.000001"]),
    "uuid": ("{v}", None),
    "json": ("{v}::text", None),
    "jsonb": ("{v}::text", ["{}", "1.50", '{"b": 1, "a": [1, {"c": null}], "aa": ""}', '"\\u0001\\n\\t\\"\\\\ /é😀"']),
    "inet": ("{v}::text", ["10.1.2.3/8", "::/0"]),
    "cidr": ("{v}::text", None),
    "macaddr": ("{v}::text", None),
    "tsvector": ("{v}::text", None),
    "int4range": ("{v}::text", None),
    "tsrange": ("{v}::text", None),
    "point": (POINT, ["(1,2)", "(-0.5,1e300)"]),
    "integer[]": ("{v}", ["{}", "{1,2,3}", "{NULL,1}"]),
    "text[]": ("{v}", ["{}", '{"",a,NULL,"NULL"}', '{"a b","c,d","e\\"f","g\\\\h"}', '{"\\n\\t","ä"}']),
    "boolean[]": ("{v}", None),
    "numeric(10,2)[]": ("{v}::text[]", ["{1.50,NULL,-2.25}"]),
    "bytea[]": (EACH.format(form=BASE64.format(v="u"), v="{v}"), ['{"\\\\x00ff",NULL,""}']),
    "mood": ("{v}::text", ["sad", "so so"]),
    "small": ("{v}::integer", ["5", "0"]),
    "hstore": (
        "replace(hstore_to_json({v})::text, '\": ', '\":')",
        ["", "a=>1", '"a b"=>"quote \\\\\\" x"', "k=>NULL"],
    ),
    "citext": ("{v}::text", ["MiXeD"]),
}
MADE = """CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('sad', 'so so');
    CREATE DOMAIN small AS integer CHECK (VALUE < 10)"""


def name_of(declaration: str) -> str:
    return "of_" + "".join(letter if letter.isalnum() else "_" for letter in declaration)


def expected(session: Session, declaration: str) -> list[object]:
    """Return the server's results for the values of a table, in order."""
    form, _ = EXPECTED[declaration]
    query = f"SELECT to_json({form.format(v='value')})::text FROM {name_of(declaration)} ORDER BY id"
    return [None if text is None else json.loads(text) for (text,) in sql(session, query)]


@pytest.mark.feature("P14")
def test_values_are_what_sql_makes_of_them(cluster: Cluster, database: str, tmp_path: Path) -> None:
    ensure_role(cluster)
    with cluster.connect(database) as session:
        sql(session, MADE)
        sql(session, REVERSED)
        sql(session, "SET timezone = 'UTC'")
        for declaration in EXPECTED:
            sql(session, f"CREATE TABLE {name_of(declaration)} (id serial PRIMARY KEY, value {declaration})")
        sql(session, "CHECKPOINT")
        with running(tmp_path, "tail", cluster.dsn(database, ROLE), "--format", "debezium") as tail:
            tail.wait_for_err(FOLLOWING)
            count = 0
            for declaration, (_, values) in EXPECTED.items():
                for value in [*(SAMPLES[declaration] if values is None else values), None]:
                    session.execute(f"INSERT INTO {name_of(declaration)} (value) VALUES (%s)", (value,))
                    count += 1
            events = [json.loads(line) for line in tail.wait_for_lines(count)]
            tail.stop()
        reported: dict[str, list[object]] = {}
        for event in events:
            reported.setdefault(event["source"]["table"], []).append(event["after"]["value"])
        for declaration in EXPECTED:
            assert reported[name_of(declaration)] == expected(session, declaration), declaration


@pytest.mark.feature("P14")
def test_an_event_has_the_connectors_fields(cluster: Cluster, database: str, tmp_path: Path) -> None:
    ensure_role(cluster)
    with cluster.connect(database) as session:
        sql(session, "CREATE TABLE account (id int PRIMARY KEY, note text); CHECKPOINT")
        with running(tmp_path, "tail", cluster.dsn(database, ROLE), "--format", "debezium") as tail:
            tail.wait_for_err(FOLLOWING)
            sql(session, "INSERT INTO account VALUES (1, 'x')")
            ((xmin, moment),) = sql(
                session, "SELECT xmin::text::bigint, (extract(epoch FROM now()) * 1000)::bigint FROM account"
            )
            (event,) = (json.loads(line) for line in tail.wait_for_lines(1))
            tail.stop()
    assert list(event) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    source = event["source"]
    assert list(source) == [
        *("version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns"),
        *("schema", "table", "txId", "lsn", "xmin", "origin", "origin_lsn"),
    ]
    assert (source["connector"], source["snapshot"], source["db"], source["table"]) == (
        *("postgresql", "false", database, "account"),
    )
    assert source["txId"] == xmin
    assert abs(source["ts_ms"] - moment) < 60_000, "the commit, and not years away from it"
    assert source["ts_us"] // 1000 == source["ts_ms"]
    assert source["ts_ns"] == source["ts_us"] * 1000
    assert json.loads(source["sequence"])[1] == str(source["lsn"])
    assert event["transaction"] is None


@pytest.mark.feature("P14")
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_text_of_other_encodings_is_sound_json(new_cluster: NewCluster, encoding: str, tmp_path: Path) -> None:
    cluster = new_cluster(15)
    ensure_role(cluster)
    cluster.sql(f"CREATE DATABASE coded ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with cluster.connect("coded") as session:
        sql(session, f"SET client_encoding = '{encoding}'")
        sql(session, 'CREATE TABLE said (id int PRIMARY KEY, "no""te" text); CHECKPOINT')
        with running(tmp_path, "tail", cluster.dsn("coded", ROLE), "--format", "debezium") as tail:
            tail.wait_for_err(FOLLOWING)
            sql(session, r"""INSERT INTO said VALUES (1, E'caf\351 "\\ \n')""")
            (event,) = (json.loads(line) for line in tail.wait_for_lines(1))
            tail.stop()
    letter = "é" if encoding == "LATIN1" else "\ufffd"
    assert event["after"] == {"id": 1, 'no"te': f'caf{letter} "\\ \n'}
