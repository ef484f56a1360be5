"""The requirements on the node: each missing one is found before anything starts, and named."""

import pytest

from tests.conftest import NewCluster
from tests.support.servers.postgres import HBA_REPLICATION, Cluster
from tests.support.servers.servers import MAJORS
from tests.support.servers.standby import promote, standby_of, wait_until_replayed
from tidemark.io.node.node import FullPageWritesOff, Node, RoleLacksReplication, WalLevelTooLow
from tidemark.io.node.node_errors import (
    AuthenticationFailed,
    DatabaseMissing,
    NoHbaLine,
    PermissionMissing,
    QueryTimedOut,
    WrongNode,
)
from tidemark.model.errors import ExitCode, NodeUnreachable
from tidemark.model.lsn import FullXid, SystemIdentifier
from tidemark.model.snapshot import parse_snapshot


@pytest.mark.parametrize("major", MAJORS)
def test_a_plain_replication_role_is_all_that_is_needed(new_cluster: NewCluster, major: int) -> None:
    made = new_cluster(major)
    made.sql("CREATE ROLE cdc LOGIN REPLICATION")
    with Node(made.dsn(user="cdc")) as node:
        facts = node.check_fitness()
        assert (facts.major, facts.timeline, facts.segment_bytes, facts.role) == (major, 1, 16 << 20, "cdc")
        assert made.sql("SELECT system_identifier FROM pg_control_system()") == [(facts.system_identifier,)]
        redo = node.redo_point()
        assert redo.redo_lsn <= node.flush_lsn() <= node.insert_lsn()
        assert redo.next_xid <= node.snapshot().xmax
        node.check_same_node(facts.system_identifier)
        with pytest.raises(WrongNode):
            node.check_same_node(SystemIdentifier(5))


def test_each_requirement_that_a_node_lacks_is_reported_by_name(new_cluster: NewCluster) -> None:
    made = new_cluster(15, wal_level="replica")
    made.sql("CREATE ROLE plain LOGIN")
    with Node(made.dsn()) as node, pytest.raises(WalLevelTooLow, match="wal_level = replica") as caught:
        node.check_fitness()
    assert caught.value.exit_code == ExitCode.NODE_UNFIT
    assert "wal_level = logical" in caught.value.hint
    made.configure(reload=False, max_wal_senders="0")
    made.restart()
    with Node(made.dsn(user="plain")) as node, pytest.raises(WalLevelTooLow) as all_faults:
        node.check_fitness()
    for text in ("wal_level = replica", "max_wal_senders = 0", "the role plain", "lacks REPLICATION"):
        assert text in str(all_faults.value)
    for text in ("wal_level = logical", "max_wal_senders in", "ALTER ROLE"):
        assert text in all_faults.value.hint
    made.configure(reload=False, max_wal_senders="10", wal_level="logical", full_page_writes="off")
    made.restart()
    with Node(made.dsn()) as node, pytest.raises(FullPageWritesOff):
        node.check_fitness()
    made.configure(full_page_writes="on")
    made.sql("CHECKPOINT")
    with Node(made.dsn()) as node:
        node.check_fitness()
    with Node(made.dsn(user="plain")) as node, pytest.raises(RoleLacksReplication, match="plain"):
        node.check_fitness()
    with Node(made.dsn(user="plain")) as node, pytest.raises(PermissionMissing):
        node.query("SELECT * FROM pg_authid")


def test_connections_that_fail_report_the_reason(new_cluster: NewCluster) -> None:
    made = new_cluster()
    with pytest.raises(DatabaseMissing):
        Node(made.dsn("nowhere"))
    with pytest.raises(AuthenticationFailed):
        Node(made.dsn(user="nobody_of_ours"))
    made.hba(HBA_REPLICATION)
    with pytest.raises(NoHbaLine):
        Node(made.dsn())


def test_blockers_are_named_with_their_process_or_their_gid(new_cluster: NewCluster) -> None:
    made = new_cluster()
    made.sql("CREATE ROLE cdc LOGIN REPLICATION")
    with Node(made.dsn(user="cdc")) as node, made.connect(autocommit=False) as open_session:
        open_session.execute("SELECT pg_current_xact_id()")
        with made.connect(autocommit=False) as preparing:
            preparing.execute("CREATE TABLE t (a int)")
            preparing.execute("PREPARE TRANSACTION 'the gid'")
        made.sql("CREATE TABLE u (a int)")  # xmax is one after the last that ended
        session, prepared = node.blockers(node.snapshot().xmax)
        assert session.pid == open_session.info.backend_pid
        assert f"process {session.pid}" in str(session)
        assert prepared.gid == "the gid"
        assert "'the gid' (in database postgres" in str(prepared)
        assert session.xid < prepared.xid
        assert node.blockers(prepared.xid) == [session]
        made.sql("ROLLBACK PREPARED 'the gid'")
        assert len(node.blockers(node.snapshot().xmax)) == 1


def test_a_lock_on_a_catalog_ends_a_statement_in_time(cluster: Cluster) -> None:
    with Node(cluster.dsn()) as node, cluster.connect(autocommit=False) as session:
        node.query("SET lock_timeout = '50ms'")
        session.execute("LOCK TABLE pg_enum IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(QueryTimedOut):
            node.query("SELECT count(*) FROM pg_enum")


@pytest.mark.feature("P22")
def test_a_snapshot_reads_as_the_server_prints_it(cluster: Cluster) -> None:
    with Node(cluster.dsn()) as node, cluster.connect(autocommit=False) as session:
        ((xid,),) = session.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
        later = cluster.sql("SELECT pg_current_xact_id()::text::bigint")[0][0]
        snapshot = node.snapshot()
        assert not snapshot.sees(xid)
        assert snapshot.sees(later)
        assert not snapshot.sees(snapshot.xmax)
        assert parse_snapshot(str(snapshot)) == snapshot


@pytest.mark.feature("P22")
@pytest.mark.parametrize("text", ["10:20:10,14", "10:20:", "10:10:", "10:11:10", "10:20:10,11,12,13,14,15,16,17,18,19"])
def test_a_snapshot_sees_what_the_server_sees_in_it(cluster: Cluster, text: str) -> None:
    query = f"SELECT n FROM generate_series(1, 30) n WHERE pg_visible_in_snapshot(n::text::xid8, '{text}')"
    snapshot = parse_snapshot(text)
    seen = [xid for xid in range(1, 31) if snapshot.sees(FullXid(xid))]
    assert seen == [xid for (xid,) in cluster.sql(f"{query} ORDER BY n")]


def test_a_standby_reports_what_it_has_replayed_and_nothing_is_written_to_it(new_cluster: NewCluster) -> None:
    primary = new_cluster()
    with standby_of(primary) as standby:
        primary.sql("CREATE TABLE t (a int)")
        wait_until_replayed(standby, primary)
        with Node(standby.dsn()) as node, Node(primary.dsn()) as other:
            node.check_fitness()
            assert (node.is_in_recovery(), other.is_in_recovery()) == (True, False)
            assert other.replayed_lsn() is None
            replayed = node.replayed_lsn()
            assert replayed == node.flush_all() == node.flush_lsn() == node.insert_lsn() == other.flush_lsn()
            assert node.received_lsn() == replayed
            promote(standby)
            assert not node.is_in_recovery()
            assert node.replayed_lsn() is None
            assert node.flush_all() > replayed


def test_a_session_whose_settings_are_refused_is_closed_at_once(cluster: Cluster) -> None:
    """A caller that waits before a retry keeps the error, but no session remains in the database."""
    name = "own_mule"
    options = "TEMPLATE template0 ENCODING 'MULE_INTERNAL' LC_COLLATE 'C' LC_CTYPE 'C'"  # no conversion to UTF-8
    cluster.sql(f"CREATE DATABASE {name} {options}")
    with pytest.raises(NodeUnreachable) as caught:
        Node(cluster.dsn(name))
    cluster.sql(f"DROP DATABASE {name}")  # the server waits for sessions that are ending
    assert name in str(caught.value)
