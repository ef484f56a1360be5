"""A table that the pipeline cannot write is paused, shown, and resumed by an operator, also through a SIGKILL."""

import json
from pathlib import Path

import pytest

from tests.support.faults.spark_campaign import SparkCampaign
from tests.support.lakes.lakes import feed_by_hand, folder_of
from tests.support.processes.cdcctl import Done, cdcctl, succeeded
from tests.support.processes.spark import SparkJvm
from tests.support.processes.spark_process import wait_for
from tests.support.servers.small_disk import needs_mount, read_only
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup
from tidemark.model.errors import ExitCode
from tidemark.pipeline.failpoints import Failpoint

pytestmark = [needs_mount, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("forked")]
GROUPS = 60


def resume(state: Path, *more: str) -> Done:
    return cdcctl("table", "resume", "public.table 0", "--state", state, *more)


def half_fed(campaign: SparkCampaign) -> tuple[list[ChangeGroup], Path]:
    """Write half of the groups into the lake; return the others, and the replica of the first table."""
    tables = RandomTables(campaign.seed)
    groups = list(tables.groups(GROUPS))
    make_state(campaign.state)
    feed(campaign.state, groups[: GROUPS // 2])
    feed_by_hand(StateFolder(campaign.state), campaign.lake, "spark")  # in this process: no start of Spark
    return groups[GROUPS // 2 :], campaign.lake / folder_of(tables.tables[0].relation) / "replica"


@pytest.mark.feature("N16")
def test_a_paused_table_is_shown_and_resumed_through_a_kill_between_catching_up_and_rejoining(
    tmp_path: Path, jvm: SparkJvm
) -> None:
    campaign = SparkCampaign(tmp_path, seed=9, groups=GROUPS, jvm=jvm)
    state, spark = campaign.state, campaign.spark
    later, replica = half_fed(campaign)
    assert resume(state).code == ExitCode.CONFIG, "it is not paused"
    try:
        with read_only(replica):
            feed(state, later)
            spark.start()
            wait_for(spark.is_drained, "the other tables", spark.log)
            (line,) = json.loads(succeeded(cdcctl("status", "--json", "--state", state)).out)["lake"]["spark"][
                "not_written"
            ]
            assert line.startswith("public.table 0 replica: paused after ")
            assert "Read-only file system" in line
            assert '"event": "table paused"' in spark.log_path.read_text()
            with OutboxReader.open(StateFolder(state)) as outbox:
                assert outbox.register("spark").applied < outbox.head()
            failed = resume(state)
            assert (failed.code, "Read-only file system" in failed.err) == (ExitCode.CONSUMER_FAILED, True), failed.err
        succeeded(resume(state))
        spark.stop()
        campaign.check()
        with OutboxReader.open(StateFolder(state)) as outbox:
            assert outbox.register("spark").applied == outbox.head()
    finally:
        spark.end_all()


@pytest.mark.feature("N16")
def test_a_kill_between_catching_up_and_rejoining_loses_and_doubles_nothing(tmp_path: Path, jvm: SparkJvm) -> None:
    campaign = SparkCampaign(tmp_path, seed=10, groups=GROUPS, jvm=jvm)
    state, spark = campaign.state, campaign.spark
    later, replica = half_fed(campaign)
    with read_only(replica):
        feed(state, later)
        campaign.drain()
    succeeded(resume(state, "--no-wait"))
    for failpoint in (Failpoint.TABLE_CAUGHT_UP, Failpoint.TABLE_RESUMED):  # the request is open until the second
        spark.start(failpoint=failpoint.value)
        try:
            wait_for(lambda: not spark.running, f"failpoint {failpoint.value}", spark.log)
        finally:
            spark.end_all()
    campaign.drain()
    campaign.check()
    assert not spark.reported()["faults"]
