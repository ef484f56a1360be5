"""A real standalone master without workers: the driver writes all changes, so the pipeline needs none."""

import os
from pathlib import Path

import pytest

from tests.support.faults.spark_campaign import SparkCampaign
from tests.support.processes.spark import SparkJvm
from tests.support.processes.spark_process import wait_for
from tests.support.servers.spark_cluster import SparkCluster
from tests.support.workloads.feeder import RandomTables, feed, make_state


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked")
def test_a_pipeline_whose_cluster_has_no_workers_writes_every_change_once(tmp_path: Path, jvm: SparkJvm) -> None:
    campaign = SparkCampaign(tmp_path, seed=7, groups=10, jvm=jvm)
    make_state(campaign.state)
    feed(campaign.state, RandomTables(campaign.seed).groups(campaign.groups))
    spark = campaign.spark
    with SparkCluster(tmp_path, os.environ) as cluster:
        spark.start("--master", cluster.url)
        try:
            wait_for(lambda: spark.is_drained() or not spark.running, "all changes in the lake", spark.log)
            spark.stop()
        finally:
            spark.end_all()
    campaign.check()
