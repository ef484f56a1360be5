"""Values of `jsonl` and `FlatJson` from a real server: numbers as it prints them, and one form for each type."""

import json
from collections import defaultdict
from pathlib import Path

from tests.support.oracles.oracle import ROLE, ensure_role
from tests.support.processes.cdcctl import running
from tests.support.processes.waiting import wait_until
from tests.support.samples.type_samples import SAMPLES
from tests.support.servers.postgres import Cluster, sql
from tidemark import Change, Engine, FlatJson, SerializedChange

FOLLOWING = "changes follow from here on"
NUMERICS = ("0", "0.0000000001", "-0.0000000012", "1.5", "-123456789.0123456789", "99999999")
DECLARATIONS = (
    *("boolean", "bigint", "oid", "xid8", "real", "double precision"),
    *("numeric", "numeric(10,2)", "numeric(38,10)", "numeric(38,38)", "money"),
    *("text", "character(5)", "bytea", "uuid", "jsonb"),
    *("date", "time", "time with time zone", "timestamp", "timestamp with time zone", "interval"),
)


def test_an_element_of_an_array_has_the_form_of_a_column_of_its_type(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    ensure_role(cluster)
    with cluster.connect(database) as session:
        for number, declaration in enumerate(DECLARATIONS):
            sql(session, f"CREATE TABLE t{number} (value {declaration}, list {declaration}[])")
        sql(session, "CHECKPOINT")
        with running(tmp_path, "tail", cluster.dsn(database, ROLE)) as tail:
            tail.wait_for_err(FOLLOWING)
            for number, declaration in enumerate(DECLARATIONS):
                for value in SAMPLES[declaration]:
                    session.execute(
                        f"INSERT INTO t{number} SELECT v, ARRAY[v, NULL] FROM (SELECT %s::{declaration}) s(v)", (value,)
                    )
            lines = tail.wait_for_lines(sum(len(SAMPLES[each]) for each in DECLARATIONS))
            tail.stop()
    found = defaultdict[str, list[dict[str, object]]](list)
    for line in lines:
        event = json.loads(line)
        found[DECLARATIONS[int(event["table"][1:])]].append(event["after"])
    assert len(found) == len(DECLARATIONS)
    for declaration, rows in found.items():
        assert [row["list"] for row in rows] == [[row["value"], None] for row in rows], declaration


def test_numbers_are_those_that_postgresql_prints_in_values_keys_and_arrays(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    records: list[tuple[dict[str, object], dict[str, object]]] = []

    def handle(change: Change | SerializedChange) -> None:
        assert isinstance(change, SerializedChange)
        records.append((json.loads(change.key or b""), json.loads(change.value or b"")))

    cluster.sql("CREATE TABLE amount (id numeric(38, 10) PRIMARY KEY, list numeric(38, 10)[], single real)", database)
    with Engine(
        cluster.dsn(database), state=tmp_path / "state", change_handler=handle, serializer=FlatJson()
    ) as engine:
        for value in NUMERICS:
            cluster.sql(f"INSERT INTO amount VALUES ({value}, ARRAY[{value}], 0.1)", database)
        wait_until(lambda: len(records) == len(NUMERICS) or engine.wait(0))
    with cluster.connect(database) as session:
        printed = [text for value in NUMERICS for (text,) in sql(session, f"SELECT '{value}'::numeric(38, 10)::text")]
    assert [key for key, _ in records] == [{"id": text} for text in printed]
    assert [(value["id"], value["list"]) for _, value in records] == [(text, [text]) for text in printed]
    assert {value["single"] for _, value in records} == {0.1}


def test_the_key_of_a_flat_record_has_the_forms_of_its_value(cluster: Cluster, database: str, tmp_path: Path) -> None:
    records: list[tuple[dict[str, object], dict[str, object] | None]] = []

    def handle(change: Change | SerializedChange) -> None:
        assert isinstance(change, SerializedChange)
        records.append((json.loads(change.key or b""), None if change.value is None else json.loads(change.value)))

    columns = {"day": "date", "at": "timestamptz", "blob": "bytea", "span": "interval", "clock": "time", "one": "real"}
    declared = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    cluster.sql(f"CREATE TABLE event ({declared}, note text, PRIMARY KEY ({', '.join(columns)}))", database)
    first = "'2024-02-29', '2024-02-29 12:00:00.5Z', '\\xc3a9', '1 day 02:03', '23:59:59.25', 0.1, 'a'"
    with Engine(
        cluster.dsn(database),
        state=tmp_path / "state",
        change_handler=handle,
        serializer=FlatJson(),
        settings={"copy": {"enabled": False}},
    ) as engine:
        for statement in (
            f"INSERT INTO event VALUES ({first})",
            "UPDATE event SET day = '2024-03-01', blob = '\\x00'",
            "DELETE FROM event",
        ):
            cluster.sql(statement, database)
        wait_until(lambda: len(records) == 6 or engine.wait(0))
    keys, values = zip(*records, strict=True)
    assert [value and value["__op"] for value in values] == ["i", "d", None, "i", "d", None]
    assert [key["day"] for key in keys] == ["2024-02-29"] * 3 + ["2024-03-01"] * 3
    for key, value in records:
        assert [*key] == [*columns]
        assert value is None or key == {name: value[name] for name in columns}
