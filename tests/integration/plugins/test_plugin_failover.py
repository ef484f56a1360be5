"""A consumer that is a plug-in, in both daemons: kills and a failover lose nothing and repeat nothing confirmed."""

from pathlib import Path

from tests.support.faults.plugin_campaign import kill_with_plugin
from tests.support.servers.archiving import ArchivingServer

KILLS = 8  # scripts/plugin_kills: 50
SEED = 20261127


def test_a_plugin_consumer_survives_kills_of_the_sidecar_and_a_failover(node: ArchivingServer, tmp_path: Path) -> None:
    assert kill_with_plugin(node, tmp_path, kills=KILLS, seed=SEED) > KILLS
