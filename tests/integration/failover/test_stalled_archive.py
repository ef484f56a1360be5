"""A stalled archive: realtime returns without it, by the node's own WAL (I17)."""

import signal
from pathlib import Path

import pytest

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.failover import Pair, paired
from tests.support.servers.archiving import ArchivingServer
from tidemark.engine.handover import Event
from tidemark.io.node.wal_end import node_identity, streams_from
from tidemark.io.state.state import StateStore
from tidemark.model.mode import Stage

BROKEN = "false"
WAIT_S = {"TIDEMARK_REALTIME__ARCHIVE_WAIT_S": "1"}


def delivered(pair: Pair) -> list[object]:
    """Return the keys in the outbox, up to the last written one; raise if one is there twice."""
    return list(replayed(change_log(pair.catch_up(), "account")))


@pytest.mark.feature("I17")
def test_realtime_returns_without_the_archive_and_later_hand_overs_use_it(
    node: ArchivingServer, tmp_path: Path
) -> None:
    ((archive_command,),) = node.node.sql("SHOW archive_command")
    with paired(node, tmp_path, options=WAIT_S) as pair:
        pair.insert(1)
        assert delivered(pair) == [1]
        node.node.configure(archive_command=BROKEN)
        with pair.node.connect("postgres") as session, session.transaction():
            session.execute("INSERT INTO account VALUES (2, 'open from before the kill on')")
            pair.sidecar.kill()
            pair.insert(3)
            pair.wait_for_stage(Stage.ARCHIVE)
            pair.sidecar.start()
            pair.wait_for_stage(Stage.RETURNING)
            assert pair.archiver.process is not None
            pair.archiver.process.send_signal(signal.SIGSTOP)  # it will find that it is fenced when it continues
            pair.wait_for_stage(Stage.REALTIME)
            pair.insert(4)
            assert delivered(pair) == [1, 3, 4]
        assert pair.switches()[-1].reason == Event.ARCHIVE_STALLED.value
        pair.insert(5)
        assert delivered(pair) == [1, 3, 4, 2, 5]

        node.node.configure(archive_command=str(archive_command))
        pair.switch_off()
        pair.wait_for_stage(Stage.HELD)
        pair.archiver.process.send_signal(signal.SIGCONT)
        pair.insert(6)
        assert delivered(pair) == [1, 3, 4, 2, 5, 6]
        pair.switch_on()
        pair.wait_for_stage(Stage.REALTIME)
        assert pair.switches()[-1].reason == Event.TAKEN_OVER.value
        pair.insert(7)
        assert delivered(pair) == [1, 3, 4, 2, 5, 6, 7]
        assert pair.sidecar.running, pair.reported()
        assert pair.archiver.running, pair.reported()


@pytest.mark.feature("I17")
def test_on_continues_from_the_nodes_own_wal_where_no_archiver_runs(node: ArchivingServer, tmp_path: Path) -> None:
    with paired(node, tmp_path, options=WAIT_S) as pair:
        pair.insert(1)
        pair.switch_off()
        pair.wait_for_stage(Stage.HELD)
        pair.archiver.stop()
        pair.insert(2)
        done = succeeded(cdcctl("realtime", "on", "--state", pair.sidecar.folder.root, **pair.sidecar.options))
        assert "the node has the WAL: the sidecar continues from it after 1 s" in done.err
        assert delivered(pair) == [1, 2]


def test_delivery_does_not_continue_from_wal_that_the_node_has_removed(node: ArchivingServer, tmp_path: Path) -> None:
    pair = Pair(node, tmp_path)
    pair.sidecar.init()
    with StateStore.open(pair.sidecar.folder) as store:
        node_of = (pair.sidecar.config.capture.dsn, store.identity.system_identifier)
        before = node_identity(*node_of).flush_lsn
        assert streams_from(*node_of, before)
        node.node.configure(wal_keep_size="0")
        for _ in range(2):
            node.switch(3)
            node.wait_until_archived()
            node.node.sql("CHECKPOINT")
        node.node.configure(wal_keep_size="256MB")
        assert not streams_from(*node_of, before)
        assert streams_from(*node_of, node_identity(*node_of).flush_lsn)
