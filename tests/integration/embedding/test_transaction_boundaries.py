"""Begins and ends of transactions among the events of an engine, and their records in Debezium's transaction topic."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import (
    Batch,
    DebeziumJson,
    Engine,
    EngineEvent,
    LogicalMessage,
    SerializedBatch,
    StopWhen,
    TransactionBoundary,
    TransactionEnd,
)

pytestmark = [pytest.mark.feature("P11"), pytest.mark.feature("P14")]
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "copy": {"enabled": False},
    "deliver": {"transactions": True, "group_rows_max": 100},
}
ROWS = 250  # of a transaction of three groups
Given = list[Batch | SerializedBatch | EngineEvent]


@pytest.fixture
def tables(cluster: Cluster, database: str) -> None:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY); CREATE TABLE person (id int PRIMARY KEY)", database)


def is_over(given: Given) -> bool:
    return any(isinstance(each, LogicalMessage) and each.prefix == "end" for each in given)


def counts(end: TransactionEnd) -> dict[str, int]:
    return {table.name: table.count for table in end.tables or ()}


def boundaries(given: Given) -> list[tuple[str, dict[str, int]]]:
    """Return each begin and end with the counts by table."""
    return [
        ("begin" if each.begin else "end", counts(end))
        for each in given
        if isinstance(each, TransactionBoundary)
        for end in each.transactions
    ]


@pytest.mark.usefixtures("tables")
def test_each_transaction_with_changes_begins_before_them_and_ends_with_its_counts_behind_them(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    given: Given = []
    with Engine(
        cluster.dsn(database),
        state=tmp_path / "state",
        tables=["public.account", "public.person"],
        handler=given.append,
        on_event=given.append,
        settings=SETTINGS,
        workers=2,
    ) as engine:
        cluster.sql(f"INSERT INTO account SELECT generate_series(1, {ROWS})", database)
        cluster.sql("BEGIN; DELETE FROM account WHERE id < 3; INSERT INTO person VALUES (1); COMMIT", database)
        cluster.sql("CREATE TABLE other AS SELECT 1 AS id", database)
        cluster.sql("BEGIN; SAVEPOINT s; INSERT INTO person VALUES (2); ROLLBACK TO s; COMMIT", database)
        cluster.sql("SELECT pg_logical_emit_message(true, 'end', '')", database)
        wait_until(lambda: (is_over(given) and isinstance(given[-1], TransactionBoundary)) or engine.wait(0))
    begun: set[int] = set()
    ended: dict[int, dict[str, int]] = {}
    rows = 0
    for each in given:
        if isinstance(each, TransactionBoundary):
            xids = {end.xid for end in each.transactions}
            assert not (xids & begun if each.begin else xids - begun)
            begun |= xids
            ended |= {} if each.begin else {end.xid: counts(end) for end in each.transactions}
        elif isinstance(each, Batch):
            xids = set(each.arrow.column("_xid").to_pylist())
            assert xids <= begun - ended.keys()
            rows += len(each)
    assert rows == ROWS + 3
    assert [*ended.values()] == [{"account": ROWS}, {"account": 2, "person": 1}, {}]  # the last one: of the message
    assert begun == ended.keys()


@pytest.mark.usefixtures("tables")
def test_after_a_stop_inside_a_transaction_its_end_comes_with_all_counts(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    def engine(given: Given, stop_when: StopWhen | None = None) -> Engine:
        return Engine(
            cluster.dsn(database),
            state=tmp_path / "state",
            serializer=DebeziumJson(),
            handler=given.append,
            on_event=given.append,
            settings=SETTINGS,
            stop_when=stop_when,
        )

    first, second = Given(), Given()
    with engine(first, StopWhen.after_changes(ROWS // 2)) as stopping:
        cluster.sql(f"INSERT INTO account SELECT generate_series(1, {ROWS})", database)
        assert stopping.wait()
    with engine(second) as running:
        wait_until(lambda: bool(boundaries(second)) or running.wait(0))
    assert sum(len(each) for each in (*first, *second) if isinstance(each, SerializedBatch)) == ROWS
    assert boundaries(first) == [("begin", {})]
    assert boundaries(second) == [("end", {"account": ROWS})]
    (end,) = [each for each in second if isinstance(each, TransactionBoundary)]
    (record,) = DebeziumJson().event_records(end, database, now_ns=0)
    assert record.key is not None
    assert record.value is not None
    value = json.loads(record.value)
    assert json.loads(record.key) == {"id": value["id"]}
    assert (value["status"], value["event_count"]) == ("END", ROWS)
    assert value["data_collections"] == [{"data_collection": "public.account", "event_count": ROWS}]
    rows = [json.loads(each.value or b"") for batch in second if isinstance(batch, SerializedBatch) for each in batch]
    assert {row["transaction"]["id"] for row in rows} == {value["id"]}
