"""A full disk under the lake or the state while the pipeline runs, or before it starts: it waits for space."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from tests.e2e.test_spark_pipeline import GROUPS, SEED, Place
from tests.support.lakes.lakes import CAPTURE
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.spark import land
from tests.support.processes.spark_process import SparkProcess, wait_for
from tests.support.servers.small_disk import needs_mount, small_disk
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.process.metrics import CAPTURE_LABEL, DISK_FULL
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.landing.metrics import RESTARTS, PipelineMetrics

pytestmark = [needs_mount, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("forked")]
MB = 1 << 20
DISK_BYTES = 96 * MB  # of which a state keeps 64 free
WAITS = "the disk is full: waiting for space"


@pytest.mark.feature("I40")
@pytest.mark.parametrize("full", ["lake", "state"])
def test_a_pipeline_waits_for_space_on_a_full_disk_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, full: str
) -> None:
    groups = list(RandomTables(SEED).groups(GROUPS))
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        place = Place(tmp_path)
        if full == "lake":
            place.lake = disk.root / "lake"
        else:
            place.state, place.checkpoint = disk.root / "state", disk.root / "checkpoint"
        make_state(place.state)
        folder, metrics, stop = StateFolder(place.state), PipelineMetrics(CAPTURE), threading.Event()
        feed(place.state, groups[:1])
        place.run(spark)
        feed(place.state, groups[1:])
        disk.fill()
        with capture_logs() as reported, ThreadPoolExecutor(1) as pool:
            done = pool.submit(land, spark, folder, place.lake, place.checkpoint, stop=stop, metrics=metrics)

            def waited() -> float:
                assert not done.done(), done.result()
                return metrics.registry.get_sample_value(DISK_FULL, {CAPTURE_LABEL: CAPTURE}) or 0.0

            def is_drained() -> bool:
                with StateStore.open(folder) as store:
                    view = store.view()
                return view.readers["spark"].applied == view.ledger.head

            try:
                wait_for(lambda: waited() > 0, "waiting")
                if full == "lake":
                    wait_for(lambda: '"waits_for_room"' in shown(place), "the pipeline's file")
                    assert "No space left on device" in shown(place)
                disk.empty()
                wait_for(is_drained, "the outbox in the lake")
            finally:
                stop.set()
        place.check()
        assert metrics.registry.get_sample_value(DISK_FULL, {CAPTURE_LABEL: CAPTURE}) == 0
        assert metrics.registry.get_sample_value(RESTARTS, {CAPTURE_LABEL: CAPTURE}) == 0
        assert '"waits_for_room"' not in shown(place)
    events = [line["event"] for line in reported]
    assert WAITS in events
    assert "query failed" not in events


def shown(place: Place) -> str:
    """Return the lake's part of `cdcctl status`."""
    return succeeded(cdcctl("status", "--json", "--state", place.state)).out.decode()


@pytest.mark.feature("I40")
def test_a_stop_ends_the_wait_of_a_pipeline_that_starts_on_a_full_disk(tmp_path: Path) -> None:
    make_state(tmp_path / "state")
    with small_disk(tmp_path / "disk", MB) as disk:
        disk.fill()
        spark = SparkProcess(tmp_path / "state", disk.root / "lake", tmp_path / "log", batch_bytes=MB)
        spark.start()
        try:
            wait_for(lambda: WAITS in spark.log(), "waiting", spark.log)
            assert str(disk.root) in spark.log()
            spark.stop()
        finally:
            spark.end_all()
    with StateStore.open(StateFolder(tmp_path / "state")) as store:
        assert store.processes().ends["pipeline-spark"].exit_code == 0


@pytest.mark.feature("I40")
def test_a_pipeline_waits_for_space_in_sparks_local_folders_before_spark_starts(tmp_path: Path) -> None:
    make_state(tmp_path / "state")
    with small_disk(tmp_path / "disk", MB, files_max=3) as disk:
        for name in ("a", "b"):
            (disk.root / name).touch()
        spark = SparkProcess(tmp_path / "state", tmp_path / "lake", tmp_path / "log", batch_bytes=MB)
        spark.start(SPARK_LOCAL_DIRS=str(disk.root))
        try:
            wait_for(lambda: WAITS in spark.log(), "waiting", spark.log)
            disk.resize(MB * 64, files_max=1000)
            wait_for(lambda: "query starts" in spark.log(), "Spark", spark.log)
            spark.stop()
        finally:
            spark.end_all()
