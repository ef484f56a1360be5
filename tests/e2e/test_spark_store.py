"""The pipeline with a lake in an object store: through an outage, refused credentials and a younger pipeline."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from tests.support.lakes.lakes import CAPTURE, IDENTITY, folder_of
from tests.support.lakes.stored_lake import StoredLake
from tests.support.processes.spark import land
from tests.support.processes.spark_process import wait_for
from tests.support.servers.object_store import Answer, ConnectionCut, Forward, StoreRequest, object_store, refusal
from tests.support.servers.outbox_server import outbox_server, token_file
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.process.metrics import CAPTURE_LABEL
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.driver.capture_place import ServerPlace
from tidemark.pipeline.landing.lake_epoch import LakeEpoch, LakeTaken, hold_lake
from tidemark.pipeline.landing.metrics import RESTARTS, STORE_WAIT_SECONDS, PipelineMetrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEED, GROUPS = 11, 6


@pytest.fixture(scope="module")
def stored() -> Iterator[StoredLake]:
    with object_store() as server:
        server.create_bucket("lakes")
        yield StoredLake(server, "s3://lakes/of/spark")


def unavailable(request: StoreRequest, _forward: Forward) -> Answer:
    """Break off writes, and refuse the rest."""
    if request.method == "PUT":
        raise ConnectionCut
    return refusal(403, "ExpiredToken")


@pytest.mark.feature("L07")
def test_a_pipeline_continues_after_an_outage_of_the_store_and_ends_when_a_younger_one_starts(
    spark: SparkSession, tmp_path: Path, stored: StoredLake
) -> None:
    folder, metrics, stop = StateFolder(tmp_path / "state"), PipelineMetrics(CAPTURE), threading.Event()
    make_state(folder.root)
    world = RandomTables(SEED)
    groups = list(world.groups(GROUPS))
    feed(folder.root, groups[:1])
    hold = LakeEpoch.take(stored.root, IDENTITY, folder.root, "spark", ())

    def sample(name: str) -> float:
        return metrics.registry.get_sample_value(name, {CAPTURE_LABEL: CAPTURE}) or 0.0

    def is_drained() -> bool:
        with StateStore.open(folder) as store:
            view = store.view()
        return "spark" in view.readers and view.readers["spark"].applied == view.ledger.head

    with capture_logs() as reported, ThreadPoolExecutor(1) as pool:
        done = pool.submit(
            land, spark, folder, stored.root, tmp_path / "checkpoint", stop=stop, metrics=metrics, hold=hold
        )
        try:
            wait_for(lambda: done.done() or is_drained(), "the first batch")
            with stored.server.failing(unavailable):
                feed(folder.root, groups[1:])
                wait_for(lambda: done.done() or sample(STORE_WAIT_SECONDS) > 0, "waiting")
                (file,) = folder.root.glob("pipeline-spark.json")
                wait_for(lambda: "waits_for_store" in file.read_text(), "the reason in the pipeline's file")
            wait_for(lambda: done.done() or is_drained(), "the outbox in the lake")
            assert not done.done(), done.result()
            assert sample(STORE_WAIT_SECONDS) == 0
            assert sample(RESTARTS) == 0
            LakeEpoch.take(stored.root, IDENTITY, tmp_path / "younger", "spark", ())
            wait_for(done.done, "the end of the older pipeline")
        finally:
            stop.set()
    with pytest.raises(LakeTaken, match=f"was taken over by the pipeline 'spark' .*{tmp_path}/younger"):
        done.result()
    events = [line["event"] for line in reported]
    assert "the object store is not available: waiting" in events
    assert "query failed" not in events
    check(stored, world)


def test_a_pipeline_at_an_outbox_server_writes_into_an_object_store(
    spark: SparkSession, tmp_path: Path, stored: StoredLake
) -> None:
    folder, served = StateFolder(tmp_path / "state"), StoredLake(stored.server, "s3://lakes/of/served")
    make_state(folder.root)
    world = RandomTables(SEED)
    groups = list(world.groups(GROUPS))
    for part in (groups[:3], groups[3:]):
        feed(folder.root, part)
        with outbox_server(folder.root) as (_, url):
            place = ServerPlace(url, token_file(tmp_path), None, tmp_path / "runner", "pipeline-spark")
            with place.open() as found:
                hold = hold_lake(served.root, IDENTITY, found.capture.facts(), "spark")
            land(spark, folder, served.root, tmp_path / "checkpoint", hold=hold, place=place)
    check(served, world)
    assert json.loads((folder.root / "pipeline-spark.json").read_text())["lake"] == served.root


def check(stored: StoredLake, world: RandomTables) -> None:
    """Check that each replica equals its source, and that each log has each change once."""
    for table in (one for one in world.tables if one.changes):
        of = folder_of(table.relation)
        assert sorted(stored.rows(f"{of}/replica").to_pylist(), key=repr) == table.expected()
        log = stored.rows(f"{of}/log").select(["_commit_lsn", "_ordinal"]).to_pylist()
        assert len(log) == len({tuple(row.values()) for row in log}) == table.changes
