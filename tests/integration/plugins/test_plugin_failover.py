"""A plug-in as the consumer of both daemons: kills, a failover and a promotion lose and repeat nothing confirmed."""

from pathlib import Path

import pytest

from tests.support.faults.plugin_campaign import kill_with_plugin
from tests.support.processes.failover import archiving_node

KILLS = 8  # scripts/plugin_kills: 50
KILLS_OF_A_POOL = 1
SEED = 20261127


@pytest.mark.feature("N12")
@pytest.mark.parametrize(("handles", "kills"), [(False, KILLS), (True, KILLS_OF_A_POOL)])
def test_a_plugin_consumer_survives_kills_a_failover_and_a_promotion(
    tmp_path: Path,
    *,
    handles: bool,
    kills: int,
) -> None:
    with archiving_node() as node:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        assert kill_with_plugin(node, tmp_path, kills=kills, seed=SEED, handles=handles) > kills
