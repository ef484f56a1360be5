"""SIGKILL of Spark between two durable writes: the log holds every change once, the replicas are equal.

`test_kills` kills at random moments, over a real server; here the moments are chosen.
"""

from pathlib import Path

import pytest

from tests.support.faults.spark_campaign import SparkCampaign, run
from tests.support.lakes.stored_lake import StoredLake
from tests.support.processes.spark import SparkJvm
from tests.support.processes.spark_process import DELETED, wait_for
from tests.support.servers.object_store import object_store
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.landing.settings import LakeFormat

# Each batch hits these once a table, so they are hit in the first one.
FAILPOINTS = [Failpoint.REPLICA_CHANGED, Failpoint.LOG_APPENDED]
pytestmark = pytest.mark.usefixtures("forked")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.feature("X02")
def test_nothing_is_lost_or_doubled_when_spark_dies_between_writes_and_its_checkpoint_is_deleted(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, seed=3, groups=80, failpoints=FAILPOINTS, victims=[])
    assert all(done.kills[f"at {point.value}"] == 1 for point in FAILPOINTS), done.kills
    assert done.kills[DELETED] >= 1, done.kills


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.feature("L14")
def test_a_lake_of_iceberg_tables_has_each_change_once_after_a_kill_between_writes(
    tmp_path: Path, jvm: SparkJvm
) -> None:
    done = run(
        tmp_path,
        seed=6,
        groups=40,
        failpoints=[Failpoint.LOG_APPENDED],
        victims=[],
        lake_format=LakeFormat.ICEBERG,
        jvm=jvm,
    )
    assert done.kills[f"at {Failpoint.LOG_APPENDED.value}"] == 1, done.kills
    assert done.kills[DELETED] == 1, done.kills


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_pipeline_survives_the_death_of_a_jvm_that_starts(tmp_path: Path) -> None:
    fed_with_deaths_of_the_jvm(SparkCampaign(tmp_path, seed=5, groups=10), "Unable to load native-hadoop library")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("L07")
def test_a_lake_in_an_object_store_has_each_change_once_after_kills_of_spark(tmp_path: Path, jvm: SparkJvm) -> None:
    with object_store() as server:
        server.create_bucket("lakes")
        campaign = SparkCampaign(tmp_path, seed=4, groups=6, store=StoredLake(server, "s3://lakes/killed"), jvm=jvm)
        fed_with_deaths_of_the_jvm(campaign, "", Failpoint.LOG_APPENDED)
    assert campaign.kills[f"at {Failpoint.LOG_APPENDED.value}"] == 1, campaign.kills


def fed_with_deaths_of_the_jvm(campaign: SparkCampaign, said: str, failpoint: Failpoint | None = None) -> None:
    """Kill a pipeline at a failpoint, then the JVM of the next one when it has said something, and check the lake."""
    make_state(campaign.state)
    feed(campaign.state, RandomTables(campaign.seed).groups(campaign.groups))
    if failpoint is not None:
        campaign.kill_at(failpoint, 2)
    campaign.spark.jvm = None  # the next one is killed
    campaign.spark.start("--once")
    try:
        wait_for(lambda: said in campaign.spark.log() and campaign.spark.kill_jvm(), "the JVM", campaign.spark.log)
        campaign.spark.wait()
    finally:
        campaign.spark.end_all()
    campaign.check()
