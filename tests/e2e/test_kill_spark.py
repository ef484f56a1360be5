"""SIGKILL of Spark's processes while changes come in: the log holds every change once, the replicas are equal."""

from pathlib import Path

import pytest

from tests.support.spark_campaign import run
from tidemark.pipeline.failpoints import Failpoint


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.feature("X02")
def test_nothing_is_lost_or_doubled_when_spark_is_killed_and_its_checkpoint_deleted(tmp_path: Path) -> None:
    done = run(tmp_path, seed=3, groups=300, failpoints=[Failpoint.REPLICA_CHANGED], victims=["driver", "jvm"])
    assert done.kills["driver"] == done.kills["jvm"] == done.kills["at replica-changed"] == 1
    assert done.kills["checkpoints deleted"] >= 1
