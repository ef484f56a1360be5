"""A real standalone master without workers: it is reported, waited for, and does not prevent a stop."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pyspark
import pytest

from tests.support.faults.spark_campaign import SparkCampaign
from tests.support.processes.spark_process import wait_for
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.pipeline.driver.executors import NO_EXECUTORS
from tidemark.pipeline.driver.java import java_home

SPARK_HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
LOG_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")
AT = re.compile(r"Starting Spark master at (spark://\S+)")
STOP_S = 60


def logged_at(log: Path, event: str) -> datetime:
    """Return the time of the first line with an event."""
    line = next(line for line in log.read_text().splitlines() if event in line)
    found = LOG_TIME.search(line)
    assert found is not None, line
    return datetime.fromisoformat(found[0])


@contextmanager
def master_without_workers(folder: Path) -> Iterator[str]:
    """Run a master; yield its URL."""
    log = folder / "master.log"
    variables = {"SPARK_HOME": str(SPARK_HOME), "JAVA_HOME": str(java_home(os.environ, folder))}
    options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with log.open("wb") as out:
        master = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", MASTER, *options],
            stdout=out,
            stderr=out,
            env={**os.environ, **variables, "SPARK_NO_DAEMONIZE": "1"},
        )
    try:
        wait_for(lambda: AT.search(log.read_text()) is not None, "the master", log.read_text)
        found = AT.search(log.read_text())
        assert found is not None
        yield found[1]
    finally:
        master.terminate()
        master.wait(STOP_S)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pipeline_without_executors_reports_that_waits_and_can_be_stopped(tmp_path: Path) -> None:
    campaign = SparkCampaign(tmp_path, seed=7, groups=5)
    make_state(campaign.state)
    feed(campaign.state, RandomTables(campaign.seed).groups(campaign.groups))
    spark = campaign.spark
    with master_without_workers(tmp_path) as url:
        spark.start("--master", url)
        try:
            wait_for(lambda: NO_EXECUTORS in spark.log_path.read_text() or not spark.running, NO_EXECUTORS, spark.log)
            assert spark.running, spark.log()
            begun, reported = (logged_at(spark.log_path, event) for event in ("query starts", NO_EXECUTORS))
            assert begun < reported
            spark.stop()
        finally:
            spark.end_all()
    assert campaign.spark.sequence == 0
