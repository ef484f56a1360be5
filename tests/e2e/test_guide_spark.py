"""The programs of docs/spark.md run exactly as printed, against a real state and its lake."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.lakes.lakes import feed_by_hand, folder_of, replica_rows
from tests.support.processes.guide import programs
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch
from tidemark.pipeline.lake.report import reading_lines
from tidemark.wire.values import ValueKind

ROOT = Path(__file__).parents[2]
GROUPS = 30
PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")  # set by the Spark of all tests, for itself
RUN_S = 300
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(tmp_path: Path, program: str, *arguments: Path) -> list[str]:
    """Run a program in a separate process; return its lines."""
    file = tmp_path / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, file, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if name not in PYTHONS},
            "PYTHONPATH": str(ROOT),
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def test_a_users_own_query_counts_what_a_trimmed_outbox_still_contains(tmp_path: Path) -> None:
    state, groups = tmp_path / "state", list(RandomTables(3).groups(GROUPS))
    make_state(state)
    for third in range(3):  # the second and the third trim confirmed values
        feed(state, groups[third * GROUPS // 3 : (third + 1) * GROUPS // 3])
        with OutboxReader.open(StateFolder(state)) as outbox:
            outbox.register("spark")
            if third < 2:
                outbox.confirm("spark", outbox.head(), outbox.head())
    expected: Counter[str] = Counter()
    with OutboxReader.open(StateFolder(state)) as outbox:
        ledger = outbox.ledger()
        assert 0 < ledger.trimmed < ledger.head
        for value in outbox.read(ledger.trimmed, ledger.head):
            item = value.item() if value.header.kind is not ValueKind.TRANSACTIONS else None
            if isinstance(item, ChangeBatch):
                ops = item.rows.column("_op").to_pylist()
                expected.update(f"{item.relation.namespace}.{item.relation.name} {op}" for op in ops)
        said = run(tmp_path, programs("spark.md")["All tables as values"], state, tmp_path / "checkpoint")
        assert dict(line.rsplit(" ", 1) for line in said) == {name: str(count) for name, count in expected.items()}
        assert outbox.register("count_changes").applied == ledger.head


def test_the_tables_are_read_as_in_the_guide(tmp_path: Path, spark: SparkSession) -> None:
    state, lake, world = tmp_path / "state", tmp_path / "lake", RandomTables(3)
    make_state(state)
    feed(state, world.groups(GROUPS))
    feed_by_hand(StateFolder(state), lake, "spark")
    known = {table.name: table for table in world.tables if table.items}
    with_delta_rs, with_spark = (programs("spark.md")[name] for name in ("Reading the tables", "Reading the tables #2"))
    said = run(tmp_path, with_delta_rs.replace("LAKE", str(lake)))
    assert sorted(said) == sorted(f"public {name} {len(table.rows)}" for name, table in known.items())
    (table, *_) = known.values()
    folder = lake / folder_of(table.relation)
    given = {"spark": spark}
    exec(with_spark.replace("LAKE/shop/public/orders", str(folder)), given)
    rows = [row.asDict() for row in given["orders"].collect()]  # type: ignore[attr-defined]
    imports, _, reading = str(reading_lines(f"{folder}/replica")["spark_without_connector"]).partition("; ")
    exec(imports, given)
    assert sorted((row.asDict() for row in eval(reading, given).collect()), key=repr) == sorted(rows, key=repr)
    assert sorted(rows, key=repr) == replica_rows(lake, str(folder.relative_to(lake)))
