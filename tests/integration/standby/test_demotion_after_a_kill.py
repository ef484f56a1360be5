"""A killed sidecar's node returns as a standby: the follower continues after what the consumer has confirmed."""

import secrets
from pathlib import Path

from tests.conftest import NewCluster
from tests.support.forged.confirmations import confirm_in_the_file
from tests.support.processes.following import FollowingSidecar
from tests.support.servers.postgres import Cluster, sql
from tidemark.model.lsn import TimelineId, parse_lsn
from tidemark.model.mode import Stage
from tidemark.model.position import Position


def test_a_follower_begins_after_the_last_confirmation_of_the_killed_sidecar(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    node = new_cluster(15, autovacuum="off")
    node.sql("CREATE TABLE account (id int PRIMARY KEY)")
    key = tmp_path / "marker.key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    sidecar = FollowingSidecar(
        node,
        tmp_path / "one",
        key,
        TIDEMARK_DELIVER__CONSUMER="jsonl",
        TIDEMARK_DELIVER__JSONL_FILE=str(tmp_path / "delivered.jsonl"),
    )
    try:
        sidecar.init()
        sidecar.start()
        sidecar.wait_until_delivered()
        sidecar.stop()
        confirmed = written(node)
        confirm_in_the_file(sidecar.folder, confirmed)
        node.stop()
        (node.data / "standby.signal").touch()
        node.start()
        sidecar.start()
        sidecar.wait_for_stage(Stage.FOLLOWER)
        (switch,) = sidecar.view.switches.kept
        assert switch.delivered == str(confirmed)
        followed = sidecar.view.followed
        assert followed is not None
        assert followed.pointer.position >= confirmed
    finally:
        sidecar.close()


def written(node: Cluster) -> Position:
    """Insert a row; return a position before the end of the node's WAL."""
    with node.connect() as session:
        ((text,),) = sql(session, "SELECT pg_current_wal_insert_lsn()")
        sql(session, "INSERT INTO account VALUES (1)")
    return Position(TimelineId(1), parse_lsn(str(text)), 0)
