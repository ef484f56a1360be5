"""The walsender client against real servers: streams, shutdowns, crashes, and all refusals of a node."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.servers.postgres import HBA, HBA_REPLICATION, Cluster, StopMode, cluster_without_data, new_cluster
from tests.support.servers.servers import MAJORS
from tidemark.io.node.dsn import SecretInDsn
from tidemark.io.node.node import Node
from tidemark.io.node.node_errors import (
    AheadOfNode,
    AuthenticationFailed,
    NoFreeConnection,
    NoHbaLine,
    ReplicationNotPermitted,
    TimelineUnknown,
    WalRemoved,
    WrongNode,
)
from tidemark.io.node.replication import StreamEvent, TimelineEnd, WalStream
from tidemark.model.errors import NodeUnreachable, TidemarkError, WalGap
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId, parse_lsn
from tidemark.wal.segments import WalSlice, segment_name
from tidemark.wire.replication import Keepalive

PAGE = 8192
DEADLINE_S = 120
SEGMENT = 16 << 20


def stream_until(stream: WalStream, end_lsn: int) -> bytes:
    """Receive up to `end_lsn` at least; return everything received."""
    received = bytearray()
    deadline = time.monotonic() + DEADLINE_S
    while stream.received_lsn < end_lsn:
        assert time.monotonic() < deadline
        event = stream.read(1.0)
        if isinstance(event, WalSlice):
            received += event.data
    return bytes(received)


def next_of(stream: WalStream, kind: type[StreamEvent]) -> StreamEvent:
    deadline = time.monotonic() + DEADLINE_S
    while not isinstance(event := stream.read(1.0), kind):
        assert time.monotonic() < deadline, f"no {kind.__name__}"
    return event


def raised_by(action: Callable[[], object]) -> TidemarkError:
    with pytest.raises(TidemarkError) as caught:
        action()
    return caught.value


@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.feature("I01")
def test_the_stream_is_the_segment_file_byte_by_byte_and_needs_no_slot(new_cluster: NewCluster, major: int) -> None:
    node = new_cluster(major)
    node.sql("CREATE ROLE cdc LOGIN REPLICATION")
    with WalStream(node.dsn(user="cdc")) as stream:
        identity = stream.identify()
        assert stream.format.major == major
        start = Lsn(identity.flush_lsn // SEGMENT * SEGMENT)
        node.sql("CREATE TABLE t AS SELECT generate_series(1, 20000) AS a")
        end = parse_lsn(node.flush_lsn())
        assert end < start + SEGMENT
        stream.start(start, identity.timeline)
        received = stream_until(stream, end)
        name = segment_name(identity.timeline, start // SEGMENT, SEGMENT)
        assert (node.data / "pg_wal" / name).read_bytes()[: end - start] == received[: end - start]
        assert node.sql("SELECT count(*) FROM pg_replication_slots") == [(0,)]


@pytest.mark.feature("I01")
def test_a_stream_never_reports_a_flushed_position(cluster: Cluster) -> None:
    with WalStream(cluster.dsn()) as stream:
        identity = stream.identify()
        stream.start(identity.flush_lsn, identity.timeline)
        cluster.sql("SELECT pg_logical_emit_message(true, 'test', 'x')")
        stream_until(stream, identity.flush_lsn + 1)
        stream.send_status()
        query = "SELECT write_lsn::text, flush_lsn, replay_lsn, application_name, sync_state FROM pg_stat_replication"
        deadline = time.monotonic() + DEADLINE_S
        while (row := cluster.sql(query)[0])[0] is None:
            assert time.monotonic() < deadline
        assert row[1:] == (None, None, "tidemark", "async")
        assert parse_lsn(str(row[0])) == stream.received_lsn


def test_a_keepalive_arrives_well_before_our_timeout(cluster: Cluster) -> None:
    with WalStream(cluster.dsn()) as stream:
        identity = stream.identify()
        stream.start(identity.flush_lsn, identity.timeline)
        event = next_of(stream, Keepalive)
        while isinstance(event, Keepalive) and not event.reply_requested:  # the first one is sent at the start
            event = next_of(stream, Keepalive)
        assert event is not None


def test_a_fast_shutdown_does_not_wait_for_us_and_ends_the_stream(new_cluster: NewCluster) -> None:
    node = new_cluster()
    with WalStream(node.dsn()) as stream:
        identity = stream.identify()
        stream.start(identity.flush_lsn, identity.timeline)
        command = [str(node.server.program("pg_ctl")), "-D", str(node.data), "-m", "fast", "-W", "stop"]
        node.run(Path(command[0]), *command[1:])
        error = raised_by(lambda: stream_until(stream, 1 << 63))
        assert isinstance(error, NodeUnreachable)
        assert node.wait_stopped(DEADLINE_S)


def test_a_crash_breaks_the_stream_and_it_continues_where_it_ended(new_cluster: NewCluster) -> None:
    node = new_cluster()
    stream = WalStream(node.dsn())
    identity = stream.identify()
    stream.start(identity.flush_lsn, identity.timeline)
    node.sql("CREATE TABLE t (a int)")
    stream_until(stream, parse_lsn(node.flush_lsn()))
    node.stop(StopMode.IMMEDIATE)
    assert isinstance(raised_by(lambda: stream_until(stream, 1 << 63)), NodeUnreachable)
    assert isinstance(raised_by(lambda: WalStream(node.dsn())), NodeUnreachable)
    node.start()
    with WalStream(node.dsn()) as again:
        again.identify(identity.system_identifier)
        again.start(stream.received_lsn, identity.timeline)
        node.sql("INSERT INTO t VALUES (1)")
        stream_until(again, parse_lsn(node.flush_lsn()))


def test_recycled_wal_is_a_gap_that_names_its_remedy(new_cluster: NewCluster) -> None:
    node = new_cluster(15, wal_keep_size=0, max_wal_size="32MB", min_wal_size="32MB")
    with WalStream(node.dsn()) as stream:
        start = stream.identify()
        for _ in range(4):
            node.sql("SELECT pg_logical_emit_message(true, 'x', 'x'), pg_switch_wal()")
            node.sql("CHECKPOINT")
        stream.start(start.flush_lsn, start.timeline)
        error = raised_by(lambda: stream_until(stream, 1 << 63))
    assert isinstance(error, WalRemoved)
    assert isinstance(error, WalGap)
    assert "already been removed" in str(error)
    assert "wal_keep_size" in error.hint


@pytest.mark.parametrize("major", MAJORS)
def test_wal_removed_while_its_segment_is_sent_is_a_gap_too(new_cluster: NewCluster, major: int) -> None:
    node = new_cluster(major, wal_keep_size=0, max_wal_size="32MB", min_wal_size="32MB", log_error_verbosity="verbose")
    node.sql("SELECT pg_switch_wal()")
    with WalStream(node.dsn()) as stream:
        start = stream.identify()
        node.sql(f"SELECT pg_logical_emit_message(false, 'x', repeat('x', {SEGMENT // 2}))")
        stream.start(start.flush_lsn, start.timeline)
        next_of(stream, WalSlice)  # the server has the segment's file open, and far more to send than buffers hold
        for _ in range(3):
            node.sql("SELECT pg_logical_emit_message(true, 'x', 'x'), pg_switch_wal()")
            node.sql("CHECKPOINT")
            stream.send_status()
        error = raised_by(lambda: stream_until(stream, 1 << 63))
    assert isinstance(error, WalRemoved)
    assert "already been removed" in str(error)
    assert "CheckXLogRemoved, xlog.c" in node.log
    assert "WalSndSegmentOpen" not in node.log


def test_positions_and_clusters_of_another_history_are_refused(cluster: Cluster) -> None:
    with WalStream(cluster.dsn()) as stream:
        identity = stream.identify()
        assert isinstance(raised_by(lambda: stream.identify(SystemIdentifier(1))), WrongNode)
        assert isinstance(raised_by(lambda: stream.start(identity.flush_lsn, TimelineId(9))), TimelineUnknown)
        ahead = Lsn(identity.flush_lsn + (1 << 30))
        assert isinstance(
            raised_by(lambda: (stream.start(ahead, identity.timeline), stream_until(stream, 1 << 63))), AheadOfNode
        )


def only_stream(node: Cluster) -> WalStream:
    """Connect as the only allowed walsender: a refused one frees its slot a little later."""
    while True:
        with suppress(NoFreeConnection):
            return WalStream(node.dsn(user="cdc"))


def refusal(conninfo: str) -> Exception | None:
    """Connect until the refusal has another reason than a slot that an earlier session has not freed yet."""
    while isinstance(error := raised_by(lambda: WalStream(conninfo)), NoFreeConnection):
        pass
    return error


def test_a_refusal_by_the_node_has_a_name_and_a_remedy(new_cluster: NewCluster) -> None:
    node = new_cluster(15, max_wal_senders=1)
    node.sql("CREATE ROLE plain LOGIN")
    node.sql("CREATE ROLE cdc LOGIN REPLICATION PASSWORD 'secret'")
    assert isinstance(refusal(node.dsn(user="plain")), ReplicationNotPermitted)
    assert isinstance(refusal(node.dsn(user="nobody_of_ours")), AuthenticationFailed)
    with only_stream(node):
        assert isinstance(raised_by(lambda: WalStream(node.dsn(user="cdc"))), NoFreeConnection)
    node.hba(HBA)
    assert isinstance(refusal(node.dsn(user="cdc")), NoHbaLine)
    node.hba("host replication cdc 127.0.0.1/32 scram-sha-256\n" + HBA)
    error = refusal(node.url(user="cdc"))
    assert isinstance(error, AuthenticationFailed)
    assert "PGPASSFILE" in error.hint
    assert isinstance(refusal(node.dsn(port=1)), NodeUnreachable)
    node.hba(HBA_REPLICATION + HBA)


def test_a_password_in_a_dsn_is_refused_and_not_repeated() -> None:
    for dsn in ("postgresql://u:hunter2@h/d", "host=h password=hunter2"):
        error = raised_by(lambda dsn=dsn: WalStream(dsn))  # type: ignore[misc]
        assert isinstance(error, SecretInDsn)
        assert "hunter2" not in str(error)
        assert "PGPASSFILE" in error.hint


def test_of_several_hosts_one_that_is_away_counts_before_one_that_rejects_the_connection(cluster: Cluster) -> None:
    rejecting, away = str(cluster.folder), "127.0.0.1"
    for hosts, ports, kind in (
        (f"{away},{rejecting}", f"1,{cluster.port}", NodeUnreachable),
        (rejecting, str(cluster.port), AuthenticationFailed),
        (f"{rejecting},{rejecting}", f"{cluster.port},{cluster.port}", AuthenticationFailed),
    ):
        dsn = f"host={hosts} port={ports} user=nobody_here dbname=postgres"
        for connect in (WalStream, Node):
            assert type(raised_by(lambda connect=connect, dsn=dsn: connect(dsn))) is kind  # type: ignore[misc]


def test_the_end_of_a_timeline_is_reported_and_the_next_continues_contiguously() -> None:
    with new_cluster() as primary, cluster_without_data(15) as standby:
        copy = [str(primary.server.client("pg_basebackup")), "-h", str(primary.folder), "-p", str(primary.port)]
        standby.run(Path(copy[0]), *copy[1:], "-U", "postgres", "-D", str(standby.data), "-R", "-c", "fast")
        standby.configure(
            reload=False, port=standby.port, unix_socket_directories=f"'{standby.folder}'", hot_standby="on"
        )
        standby.start()
        with WalStream(standby.dsn()) as stream:
            first = stream.identify()
            primary.sql("CREATE TABLE t (a int)")
            stream.start(first.flush_lsn, first.timeline)
            stream_until(stream, parse_lsn(primary.flush_lsn()))
            standby.sql("SELECT pg_promote()")
            end = next_of(stream, TimelineEnd)
            assert isinstance(end, TimelineEnd)
            assert end.next_timeline == 2
            assert end.next_start_lsn == stream.received_lsn
            history = stream.timeline_history(end.next_timeline)
            assert history.switch_lsn(1) == end.next_start_lsn
            assert stream.start(end.next_start_lsn, TimelineId(1)) == end
            assert stream.start(end.next_start_lsn, end.next_timeline) is None
            standby.sql("CREATE TABLE u (a int)")
            stream_until(stream, parse_lsn(standby.flush_lsn()))
            assert isinstance(raised_by(lambda: WalStream(primary.dsn()).start(stream.received_lsn, TimelineId(2))),
                              TimelineUnknown)  # fmt: skip
