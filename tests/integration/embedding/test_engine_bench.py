"""The programs of `scripts/bench/engine`: each handles every row, so that what it measures is the whole work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench.embedding.engine_bench import PROGRAM, WORKERS
from scripts.bench.embedding.pool_trials import json_rows, opened_context, transformed_batches
from tests.support.forged.groups import batch, group
from tests.support.servers.postgres import Cluster
from tidemark import DebeziumJson, Engine, Order, SerializedBatch

pytestmark = pytest.mark.feature("A40")
GROUPS = 20
ROWS = 3  # of a group
LIVE_ROWS = 2000
TABLE = "CREATE TABLE narrow (id int PRIMARY KEY, account int, label text)"
INSERT = f"INSERT INTO narrow SELECT n, n % 7, 'label ' || n FROM generate_series(1, {LIVE_ROWS}) n"


def test_precomputed_groups_are_serialized_as_a_whole_with_any_number_of_workers_and_order() -> None:
    groups = [group(100 + 8 * number, [batch(100 + 8 * number, range(ROWS))]) for number in range(GROUPS)]
    with opened_context() as context:
        handled = {
            (workers, order): json_rows(context, groups, workers, order) for workers in WORKERS for order in Order
        }
        assert set(handled.values()) == {GROUPS * ROWS}
        assert len(handled) == len(WORKERS) * len(Order)
        calls: list[None] = []
        assert transformed_batches(context, groups, lambda: calls.append(None), 2) == GROUPS * ROWS
    assert len(calls) == GROUPS


def test_the_live_engine_gets_one_transaction_as_a_whole(cluster: Cluster, database: str, tmp_path: Path) -> None:
    def refuse(batch: SerializedBatch) -> None:
        raise AssertionError(batch.table)

    dsn, state = cluster.dsn(database), tmp_path / "state"
    cluster.sql(TABLE, database)
    with Engine(dsn, state=state, serializer=DebeziumJson(), handler=refuse, settings={"copy": {"enabled": False}}):
        pass
    cluster.sql(INSERT, database)
    command = [sys.executable, "-m", PROGRAM, "--dsn", dsn, "--state", str(state), "--rows", str(LIVE_ROWS)]
    done = subprocess.run(
        [*command, "--workers", "2", "--order", Order.TOTAL.value], capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["complete"]
    assert said["rows"] == LIVE_ROWS
    assert 0 < said["first_s"] <= said["last_s"]
