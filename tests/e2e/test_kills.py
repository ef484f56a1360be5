"""SIGKILL of the sidecar and of Spark's processes over a real server, as `scripts/kills` does it for longer."""

from pathlib import Path

import pytest

from tests.support.faults.kill_campaign import DEATHS, run
from tests.support.servers.postgres import Cluster

SECONDS = 15  # starts, restarts and one kill of each kind take longer
SEED = 5
pytestmark = pytest.mark.usefixtures("forked")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.feature("I18")
@pytest.mark.feature("X02")
def test_the_log_contains_every_change_once_and_replicas_are_equal_whatever_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    done = run(cluster, tmp_path, seconds=SECONDS, seed=SEED)
    assert all(done.kills[death] for death in DEATHS), done
