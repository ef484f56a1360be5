"""Segment switches on the archiver's request, at a node where another session commits at the worst moment (I31)."""

from pathlib import Path

import pytest

from tests.support.processes.captures import config_for
from tests.support.processes.failover import archiving_node
from tests.support.servers.postgres import Cluster
from tidemark.io.host.log_output import get_log
from tidemark.io.process.marker_key import load_marker_key
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings
from tidemark.runtime.seed.initialise import initialise

DEADLINE_S = 120.0
COMMITS_BEHIND_THE_SWITCH = """
    SET allow_system_table_mods = on;
    CREATE TABLE late (id int PRIMARY KEY);
    ALTER FUNCTION pg_catalog.pg_switch_wal() RENAME TO switch_alone;
    CREATE FUNCTION pg_catalog.pg_switch_wal() RETURNS pg_lsn LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_catalog.switch_alone();
        INSERT INTO public.late VALUES (1) ON CONFLICT DO NOTHING;
        RETURN NULL;
    END $$;
"""


def segment_in_hand(node: Cluster) -> str:
    """Return the name of the node's current segment."""
    return str(node.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")[0][0])


@pytest.mark.feature("I31")
def test_a_commit_just_after_a_switch_forces_the_next_one_and_then_nothing_does(tmp_path: Path) -> None:
    with archiving_node() as node:
        node.node.sql(COMMITS_BEHIND_THE_SWITCH)
        config = config_for(node.node, "postgres")
        folder = StateFolder(tmp_path / "state")
        initialise(config, folder)
        with StateStore.open(folder) as store:
            node_requests = NodeRequests(
                NodeSettings.of(config),
                store,
                load_marker_key(config, folder),
                counts=Metrics("main"),
                log=get_log("test"),
            )
            try:
                mark = node_requests.switch_if_moved(None).result(DEADLINE_S)
                files = [segment_in_hand(node.node)]
                for _ in range(3):
                    mark = node_requests.switch_if_moved(mark).result(DEADLINE_S)
                    files.append(segment_in_hand(node.node))
            finally:
                node_requests.close()
    first, second, third, fourth = files
    assert first != second, "the row was inserted behind the first switch"
    assert second == third == fourth
