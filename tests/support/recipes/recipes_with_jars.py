"""The recipes for Delta and Kafka as programs of their own, compared with SQL on the source."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from psycopg.rows import TupleRow

from tests.support.processes.captures import Sidecar, running
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.recipes.broker import running_broker
from tests.support.servers.postgres import database_in, new_cluster
from tests.support.workloads.orders import CHANGES, COPIED, EMPTIED, MISSED, change_orders, create_orders
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore

ROOT = Path(__file__).parents[3]
RECIPES, JARS = ROOT / "docs" / "recipes", ROOT / "build" / "recipes"
RUN_S = 300
LAST_LSN = 1 << 63
GONE = "SELECT id FROM audit WHERE op = 'DELETE' UNION SELECT n FROM generate_series(1, 40) n"  # these by TRUNCATE
pytestmark = pytest.mark.timeout(900)


class TopicMessage(TypedDict):
    """A message of a topic."""

    partition: int
    offset: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class OrdersCapture:
    """A table of orders with a running capture."""

    sidecar: Sidecar
    folder: Path

    def change(self, *changes: str) -> None:
        change_orders(self.sidecar.cluster, self.sidecar.database, changes)
        self.sidecar.catch_up()

    def recopy(self) -> None:
        """Copy the table again."""
        state, options = self.sidecar.folder.root, self.sidecar.options
        succeeded(cdcctl("table", "recopy", "--state", state, "public.orders", **options))
        self.sidecar.catch_up()

    def rows(self, query: str) -> list[TupleRow]:
        with self.sidecar.cluster.connect(self.sidecar.database) as session:
            return session.execute(query).fetchall()

    def run(self, name: str, *arguments: object) -> None:
        """Run a recipe in a process of its own."""
        given = [RECIPES / name, self.sidecar.folder.root, self.folder / "checkpoint", *arguments]
        python(*map(str, given))

    def forget(self, reader: str) -> None:
        """Let the next run receive all changes again."""
        shutil.rmtree(self.folder / "checkpoint")
        with StateStore.open(self.sidecar.folder) as store, store.transaction(None) as transaction:
            transaction.drop_reader(reader)


def python(*arguments: str) -> str:
    """Run a program; return its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[OrdersCapture]:
    with new_cluster(15) as cluster, database_in(cluster, "recipes") as database:
        create_orders(cluster, database)
        with running(cluster, database, tmp_path) as sidecar:
            yield OrdersCapture(sidecar, tmp_path)


def test_the_current_rows_in_delta_are_those_of_the_source(capture: OrdersCapture, tmp_path: Path) -> None:
    table = tmp_path / "orders"
    wanted = "SELECT id, customer, total, placed_at, note FROM orders ORDER BY id"

    def found() -> list[TupleRow]:
        rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=lambda row: int(row[0]))

    for changes in (CHANGES[:3], CHANGES[3:], EMPTIED, (COPIED, *MISSED), ()):
        capture.change(*changes)
        if not changes:
            schema = pa.schema(DeltaTable(str(table)).schema().to_arrow())
            lost = pa.Table.from_pylist([{"id": 5000, "note": "gone"}], schema)
            write_deltalake(str(table), lost, mode="append")
            capture.recopy()
        capture.run("to_delta_scd1.py", table, JARS / "connectors")
        assert found() == capture.rows(wanted)
    capture.forget("orders_to_delta")
    capture.run("to_delta_scd1.py", table, JARS / "connectors")
    assert found() == capture.rows(wanted)


def test_versions_in_delta_have_no_gap_and_no_overlap_and_the_current_ones_are_the_rows_of_the_source(
    capture: OrdersCapture, tmp_path: Path
) -> None:
    table = tmp_path / "versions"
    wanted = "SELECT id, customer, total, placed_at, note FROM orders ORDER BY id"
    seen: list[dict[str, object]] = []
    for changes in (CHANGES[:3], CHANGES[3:], EMPTIED, (COPIED, *MISSED), ("DELETE FROM orders WHERE id = 4000",), ()):
        if changes:
            capture.change(*changes)
            if len(changes) == 1:
                capture.recopy()
        else:
            capture.forget("versions_to_delta")
        capture.run("to_delta_scd2.py", table, JARS / "connectors")
        stored = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
        versions = sorted(stored, key=lambda row: (row["id"], row["valid_from"]))
        current = [tuple(row.values())[:5] for row in versions if row["valid_to"] is None]
        assert sorted(current, key=lambda row: int(row[0])) == capture.rows(wanted)
        intervals: dict[int, list[tuple[int, int]]] = {}
        for row in versions:
            end = LAST_LSN if row["valid_to"] is None else row["valid_to"]
            intervals.setdefault(row["id"], []).append((row["valid_from"], end))
        deleted = {number for number, *_ in capture.rows(GONE)}
        for number, known in intervals.items():
            known.sort()
            assert all(start < end for start, end in known)
            for (_, end), (start, _) in pairwise(known):
                assert end <= start if number in deleted else end == start, "only a row that was gone has a gap"
        if not changes:
            assert versions == seen, "the same changes again"
        seen = versions


def test_the_messages_in_kafka_are_debezium_events_of_the_source(capture: OrdersCapture, tmp_path: Path) -> None:
    with running_broker(JARS / "broker", tmp_path) as servers:
        capture.change(*CHANGES)
        capture.run("to_kafka.py", servers, "orders", JARS / "connectors")
        messages = read_topic(servers, tmp_path)
    letters = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}
    replayed: dict[int, tuple[int, Decimal]] = {}
    positions: dict[int, int] = {}
    for message in sorted(messages, key=lambda one: (one["partition"], one["offset"])):
        key, event = json.loads(message["key"]), json.loads(message["value"])
        row = event["after"] or event["before"]
        assert key == {"id": row["id"]}
        assert event["source"]["lsn"] > positions.get(row["id"], 0), "a key has the order of the source"
        positions[row["id"]] = event["source"]["lsn"]
        if event["op"] == "d":
            del replayed[row["id"]]
        else:
            assert (event["op"] == "c") == (row["id"] not in replayed)
            replayed[row["id"]] = row["customer"], Decimal(str(row["total"]))
    wanted = capture.rows("SELECT id, customer, total FROM orders")
    assert replayed == {number: (customer, total) for number, customer, total in wanted}
    unmoved = capture.rows("SELECT op, count(*) FROM audit WHERE id NOT BETWEEN 1020 AND 1025 GROUP BY op")
    counted = {op: sum(json.loads(one["value"])["op"] == letter for one in messages) for op, letter in letters.items()}
    moved = 6  # an update of the key is a delete and a create
    expected = Counter({op: int(count) for op, count in unmoved})
    assert counted == expected + Counter(INSERT=moved, DELETE=moved)


def test_a_consumer_of_a_topic_with_many_partitions_has_the_rows_of_the_source_after_copies(
    capture: OrdersCapture, tmp_path: Path
) -> None:
    """Whichever of the partitions it reads first, and last."""
    with OutboxReader.open(capture.sidecar.folder) as outbox:
        outbox.register("orders_to_kafka")
    with running_broker(JARS / "broker", tmp_path) as servers:
        capture.change(*CHANGES[:3])
        capture.recopy()
        capture.change(*EMPTIED, COPIED, MISSED[0], "DELETE FROM orders", *MISSED[3:])
        capture.change(*EMPTIED[2:], COPIED)
        capture.recopy()
        capture.change("DELETE FROM orders WHERE id = 4001")
        capture.run("to_kafka.py", servers, "orders", JARS / "connectors")
        messages = read_topic(servers, tmp_path)
    partitions = {int(one["partition"]) for one in messages}
    assert len(partitions) > 2
    wanted = capture.rows("SELECT id, customer, total FROM orders ORDER BY id")
    for first in sorted(partitions):
        kept: dict[int, tuple[int, TupleRow]] = {}  # with the LSN of the last message
        emptied = 0
        for message in sorted(messages, key=lambda one: ((one["partition"] - first) % 100, one["offset"])):
            event = json.loads(message["value"])
            lsn, row = event["source"]["lsn"], event["after"] or event["before"]
            if event["op"] == "t":
                assert json.loads(message["key"]) == {}
                emptied = max(emptied, lsn)
                kept = {number: known for number, known in kept.items() if known[0] >= lsn}
            elif lsn >= emptied:
                kept.pop(row["id"], None)
                if event["op"] != "d":
                    kept[row["id"]] = lsn, (row["id"], row["customer"], Decimal(str(row["total"])))
        assert [kept[number][1] for number in sorted(kept)] == wanted, f"partition {first} first"


def read_topic(servers: str, folder: Path) -> list[TopicMessage]:
    """Return the messages of the topic."""
    reading = folder / "reading.py"
    reading.write_text(READING)
    return [json.loads(line) for line in python(str(reading), servers, str(JARS / "connectors")).splitlines()]


READING = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession

servers, jars = sys.argv[1:]
jars = ",".join(map(str, Path(jars).glob("*.jar")))
spark = SparkSession.builder.master("local[1]").config("spark.jars", jars).getOrCreate()
messages = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", "orders").load()
texts = messages.selectExpr("partition", "offset", "CAST(key AS STRING) key", "CAST(value AS STRING) value")
for row in texts.collect():
    print(json.dumps(row.asDict()))
"""
