"""SIGKILL of Spark between two durable writes: the log holds every change once, the replicas are equal.

What dies at random moments, over a real server, is `test_kills`'s matter; here the moments are chosen.
"""

from pathlib import Path

import pytest

from tests.support.spark_campaign import run
from tests.support.spark_process import DELETED
from tidemark.pipeline.failpoints import Failpoint

# Each batch passes these once a table, so they are met in the first one.
FAILPOINTS = [Failpoint.REPLICA_CHANGED, Failpoint.LOG_APPENDED]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.feature("X02")
def test_nothing_is_lost_or_doubled_when_spark_dies_between_writes_and_its_checkpoint_is_deleted(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, seed=3, groups=150, failpoints=FAILPOINTS, victims=[])
    assert all(done.kills[f"at {point.value}"] == 1 for point in FAILPOINTS), done.kills
    assert done.kills[DELETED] >= 1, done.kills
