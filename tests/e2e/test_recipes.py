"""The recipes of docs/recipes that need no jar run as they are; SQL on the source gives the expected results."""

import json
import runpy
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Protocol

import pytest
from psycopg.rows import TupleRow
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.processes.captures import running
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster, database_in
from tests.support.workloads.orders import COPIED, EMPTIED, MISSED, change_orders, create_orders
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.driver.runner import register_source

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
WATERMARK = "SELECT max(placed_at) - interval '10 minutes' FROM audit WHERE op = 'INSERT'"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("forked")]


class Recipe(Protocol):
    """Runs a recipe, with the state, a checkpoint and further arguments."""

    def __call__(self, name: str, *arguments: Path) -> None:
        """Run it to its end."""


@dataclass(frozen=True, slots=True)
class Source:
    """A database with a capture whose outbox has all of its changes."""

    cluster: Cluster
    database: str
    state: Path

    def rows(self, query: str) -> list[TupleRow]:
        with self.cluster.connect(self.database) as session:
            return session.execute(query).fetchall()


@pytest.fixture(scope="module")
def source(cluster: Cluster, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    register_source(spark)
    with database_in(cluster, "recipes") as database:
        create_orders(cluster, database)
        with running(cluster, database, tmp_path_factory.mktemp("recipes")) as sidecar:
            change_orders(cluster, database)
            sidecar.catch_up()
            sidecar.stop()
        yield Source(cluster, database, sidecar.folder.root)


@pytest.fixture
def run_recipe(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Return what runs a recipe as a program, on the Spark of all tests."""

    def run(name: str, *arguments: Path) -> None:
        given = [source.state, tmp_path / "checkpoint", *arguments]
        monkeypatch.setattr(sys, "argv", [name, *map(str, given)])
        runpy.run_path(str(RECIPES / name), run_name="__main__")

    return run


@pytest.mark.parametrize("name", [file.name for file in sorted(RECIPES.glob("*.py")) if file.name != "auto_cdc.py"])
def test_a_recipe_without_its_arguments_says_which_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "only one"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(RECIPES / name), run_name="__main__")
    assert f"python {name} STATE CHECKPOINT " in str(ended.value)


@pytest.mark.feature("L12")
def test_filtered_rows_are_those_of_the_source(source: Source, run_recipe: Recipe, tmp_path: Path) -> None:
    run_recipe("filter.py", tmp_path / "out")
    lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    found = sorted((row["id"], row["customer"], Decimal(str(row["total"]))) for row in map(json.loads, lines))
    assert found == source.rows(
        "SELECT id, customer, total FROM audit WHERE op <> 'DELETE' AND total >= 100 ORDER BY 1, 2, 3"
    )


def test_new_rows_are_joined_with_a_static_table(
    source: Source, run_recipe: Recipe, spark: SparkSession, tmp_path: Path
) -> None:
    countries = [(customer, f"country {customer}") for customer in range(5)]
    spark.createDataFrame(countries, "customer INT, country STRING").write.parquet(str(tmp_path / "customers"))
    run_recipe("join.py", tmp_path / "out", tmp_path / "customers")
    lines = [line for file in (tmp_path / "out").glob("*.csv") for line in file.read_text().splitlines()]
    named = "CASE WHEN customer < 5 THEN 'country ' || customer ELSE '' END"
    wanted = source.rows(f"SELECT concat_ws(',', id, {named}, total) FROM audit WHERE op = 'INSERT'")
    assert sorted(lines) == sorted(line for (line,) in wanted)


def test_windows_that_are_over_have_the_totals_of_the_source(
    source: Source, run_recipe: Recipe, spark: SparkSession, tmp_path: Path
) -> None:
    run_recipe("aggregate.py", tmp_path / "out")
    hours = spark.read.parquet(str(tmp_path / "out")).selectExpr("unix_timestamp(hour)", "orders", "total")
    wanted = source.rows(
        "SELECT extract(epoch FROM hour)::bigint, count(*), sum(total) FROM ("
        "  SELECT date_trunc('hour', placed_at) AS hour, total FROM audit WHERE op = 'INSERT') one "
        f"GROUP BY hour HAVING hour + interval '1 hour' <= ({WATERMARK}) ORDER BY hour"
    )
    assert len(wanted) > 10
    assert sorted(map(tuple, hours.collect())) == wanted


def test_all_changes_are_in_parquet_once(
    source: Source, run_recipe: Recipe, spark: SparkSession, tmp_path: Path
) -> None:
    run_recipe("to_parquet.py", tmp_path / "out")
    changes = spark.read.parquet(str(tmp_path / "out"))
    names = {"i": "INSERT", "u": "UPDATE", "d": "DELETE"}
    found = Counter((names[row["_op"]], row.id, row.total) for row in changes.select("_op", "id", "total").collect())
    assert found == Counter(source.rows("SELECT op, id, total FROM audit"))


def test_messages_for_kafka_have_the_microseconds_of_the_source(
    source: Source, run_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of JSON take the place of the topic, which needs jars (`scripts/recipes`)."""
    choose = DataStreamWriter.format

    def to_files(writer: DataStreamWriter, name: str) -> DataStreamWriter:
        assert name == "kafka"
        return choose(writer, "json").option("path", str(tmp_path / "out"))

    monkeypatch.setattr(DataStreamWriter, "format", to_files)
    run_recipe("to_kafka.py", Path("servers"), Path("orders"), tmp_path)
    lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    rows = [json.loads(json.loads(line)["value"])["after"] for line in lines]
    found = {(row["id"], datetime.fromisoformat(row["placed_at"])) for row in rows if row is not None}
    wanted = source.rows("SELECT DISTINCT id, placed_at FROM audit WHERE op <> 'DELETE'")
    assert found == set(wanted)
    assert any(placed_at.microsecond % 1000 for _, placed_at in found)


def test_a_target_of_its_own_has_each_batch_once(source: Source, run_recipe: Recipe, tmp_path: Path) -> None:
    run_recipe("foreach_batch.py", tmp_path / "totals.sqlite")
    shutil.rmtree(tmp_path / "checkpoint")
    with StateStore.open(StateFolder(source.state)) as store, store.transaction(None) as transaction:
        transaction.drop_reader("customer_totals")
    run_recipe("foreach_batch.py", tmp_path / "totals.sqlite")  # the same batch comes again
    with closing(sqlite3.connect(tmp_path / "totals.sqlite")) as target:
        found = target.execute("SELECT * FROM totals WHERE orders <> 0 ORDER BY customer").fetchall()
    wanted = "SELECT customer, count(*), sum(total * 100)::bigint FROM orders GROUP BY customer ORDER BY customer"
    assert found == source.rows(wanted)


def test_a_target_of_its_own_follows_copies_and_truncations(
    cluster: Cluster, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_source(spark)
    totals = tmp_path / "totals.sqlite"
    wanted = "SELECT customer, count(*), sum(total * 100)::bigint FROM orders GROUP BY customer ORDER BY customer"
    with database_in(cluster, "recipes_again") as database:
        create_orders(cluster, database)
        with running(cluster, database, tmp_path) as sidecar:
            monkeypatch.setattr(sys, "argv", ["", *map(str, (sidecar.folder.root, tmp_path / "checkpoint", totals))])
            for changes in (EMPTIED[:1], EMPTIED[1:], (COPIED, *MISSED), ()):
                change_orders(cluster, database, changes)
                if not changes:
                    with sqlite3.connect(totals) as target:
                        target.execute("UPDATE totals SET orders = orders + 1")  # as after missed deletes
                    succeeded(cdcctl("table", "recopy", "--state", sidecar.folder.root, "orders", **sidecar.options))
                sidecar.catch_up()
                runpy.run_path(str(RECIPES / "foreach_batch.py"), run_name="__main__")
                with closing(sqlite3.connect(totals)) as target:
                    found = target.execute("SELECT * FROM totals WHERE orders <> 0 ORDER BY customer").fetchall()
                source = Source(cluster, database, sidecar.folder.root)
                assert found == source.rows(wanted)
