"""A real standalone master without workers: the pipeline runs no Spark job, so it needs none."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.support.faults.spark_campaign import SparkCampaign
from tests.support.processes.spark_process import wait_for
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.pipeline.driver.java import java_home

SPARK_HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
AT = re.compile(r"Starting Spark master at (spark://\S+)")
STOP_S = 60


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
def test_a_pipeline_whose_cluster_has_no_workers_writes_every_change_once(tmp_path: Path) -> None:
    campaign = SparkCampaign(tmp_path, seed=7, groups=10)
    make_state(campaign.state)
    feed(campaign.state, RandomTables(campaign.seed).groups(campaign.groups))
    spark = campaign.spark
    with master_without_workers(tmp_path) as url:
        spark.start("--master", url)
        try:
            wait_for(lambda: spark.is_drained() or not spark.running, "all changes in the lake", spark.log)
            spark.stop()
        finally:
            spark.end_all()
    campaign.check()
