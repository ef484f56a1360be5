"""The socket of the node's stream, which the application thread reads directly while it has nothing else to do."""

import random
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.processes.receiving import Receiver
from tests.support.processes.waiting import let_pass, wait_until
from tests.support.servers.postgres import Cluster, new_cluster
from tests.support.servers.standby import promote, standby_of
from tidemark.engine.progress import Progress
from tidemark.engine.ring import RING_BYTES_MIN, Ring
from tidemark.io.node.replication import StreamEvent, TimelineEnd, WalStream
from tidemark.model.lsn import Lsn, TimelineId, parse_lsn
from tidemark.runtime.capture.network import LEASED_BYTES_MAX, OFFER_BYTES_MAX
from tidemark.runtime.capture.source_thread import Link
from tidemark.runtime.capture.stream_lease import LeaseState, StreamLease
from tidemark.wal.segments import SLICE_BYTES_MAX, WalSlice, first_page_lsn

DEADLINE_S = 60.0
LEASEHOLDER, NETWORK = "leaseholder", "network"
LEASE_S = 0.05
COMMITS = 200
SENT = "SELECT (sent_lsn - '0/0')::bigint FROM pg_stat_replication"
MESSAGE = "SELECT pg_logical_emit_message(true, 'test', repeat('x', {}))"


class ThreadRecordingRing(Ring):
    """Drops each slice, and records the thread that put it; the ring checks that slices are contiguous."""

    def __init__(self, start_lsn: Lsn) -> None:
        super().__init__(RING_BYTES_MIN, start_lsn)
        self.keeps = False
        self.putters: list[str] = []
        self.timelines: list[TimelineId] = []

    def put(self, wal_slice: WalSlice) -> None:
        super().put(wal_slice)
        if wal_slice.timeline not in self.timelines:
            self.timelines.append(wal_slice.timeline)
        self.putters.append(threading.current_thread().name)
        if not self.keeps:
            self.release(self.used_bytes)


class Leaseholder:
    """A thread that reads the socket repeatedly, as the application thread does in a quiet stream."""

    def __init__(self, receiver: Receiver, lease: StreamLease) -> None:
        self._lease = lease
        self.is_away = False
        self.decoding_lasts = False
        self.lease_s = LEASE_S
        self.waits_s = 0.0  # of the present read, or of the last
        self.pauses_s: Callable[[], float] = lambda: 0.0
        self.collect: Callable[[], None] = lambda: None
        self.has_read: Callable[[], None] = lambda: None
        self._receiver = receiver
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=LEASEHOLDER)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._over.is_set():
            self._lease.drained()  # there is no decode thread
            if self.is_away or not self._lease.enter():
                self._over.wait(0.001)
            elif self._reads():
                while self.decoding_lasts and not self._over.is_set():
                    self._over.wait(0.001)
                self._lease.leave()
            else:
                self._lease.give_back()
            self._over.wait(self.pauses_s())

    def _reads(self) -> bool:
        if not self._lease.begin_read():
            return False
        self.waits_s = self.lease_s
        may_continue = self._receiver.read_leased(self.waits_s, self._collect)
        self.has_read()
        return self._lease.end_read() and may_continue

    def _collect(self) -> None:
        self.collect()  # as it is set now, not at the start of the read


@pytest.fixture
def lease() -> StreamLease:
    return StreamLease()


@pytest.fixture
def ring(cluster: Cluster) -> ThreadRecordingRing:
    with WalStream(cluster.dsn()) as stream:
        return ThreadRecordingRing(first_page_lsn(stream.identify().flush_lsn))


@pytest.fixture
def receiver(cluster: Cluster, ring: ThreadRecordingRing, lease: StreamLease) -> Iterator[Receiver]:
    receiver = Receiver(cluster, ring, Progress(received_lsn=ring.write_lsn), lease)
    receiver.start()
    yield receiver
    receiver.stop()


@pytest.fixture
def leaseholder(receiver: Receiver, lease: StreamLease) -> Iterator[Leaseholder]:
    leaseholder = Leaseholder(receiver, lease)
    yield leaseholder
    leaseholder.stop()


def write(cluster: Cluster, ring: ThreadRecordingRing, size: int = 10) -> None:
    """Commit a change, and wait until it has arrived."""
    cluster.sql(MESSAGE.format(size))
    end_lsn = parse_lsn(cluster.sql("SELECT pg_current_wal_flush_lsn()")[0][0] or "")
    wait_until(lambda: ring.write_lsn >= end_lsn)


def is_leased(cluster: Cluster, ring: ThreadRecordingRing) -> bool:
    write(cluster, ring)
    return ring.putters[-1] == LEASEHOLDER


@pytest.mark.usefixtures("leaseholder")
def test_the_application_thread_reads_a_quiet_stream_directly(cluster: Cluster, ring: ThreadRecordingRing) -> None:
    wait_until(lambda: is_leased(cluster, ring))
    ring.putters.clear()
    for _ in range(5):
        write(cluster, ring)
    assert set(ring.putters) == {LEASEHOLDER}


def test_an_application_thread_that_does_not_read_delays_no_wal(
    cluster: Cluster, ring: ThreadRecordingRing, leaseholder: Leaseholder
) -> None:
    wait_until(lambda: is_leased(cluster, ring))
    leaseholder.is_away = True
    write(cluster, ring)  # the message in transit may still arrive this way
    write(cluster, ring)
    assert ring.putters[-1] == NETWORK
    leaseholder.is_away = False
    wait_until(lambda: is_leased(cluster, ring))


def test_an_application_thread_that_decodes_for_long_delays_no_wal(
    cluster: Cluster, ring: ThreadRecordingRing, receiver: Receiver, leaseholder: Leaseholder
) -> None:
    """It may write a catalog base, or wait for the disk of the journal, for longer than the node waits for a reply."""
    wait_until(lambda: is_leased(cluster, ring))
    leaseholder.decoding_lasts = True
    write(cluster, ring)
    write(cluster, ring)
    assert ring.putters[-1] == NETWORK
    leaseholder.decoding_lasts = False
    wait_until(lambda: is_leased(cluster, ring))
    assert receiver.error is None


def test_what_arrives_while_the_first_change_is_collected_is_read_with_it(
    cluster: Cluster, ring: ThreadRecordingRing, leaseholder: Leaseholder
) -> None:
    """The wait for further changes begins with the first one: a wait before it would be a second wake-up."""
    flushed: list[Lsn] = []
    read: list[Lsn] = []

    def collect() -> None:
        leaseholder.collect, leaseholder.has_read = lambda: None, lambda: read.append(ring.write_lsn)
        cluster.sql(MESSAGE.format(10))
        flushed.append(parse_lsn(cluster.sql("SELECT pg_current_wal_flush_lsn()")[0][0] or ""))
        wait_until(lambda: cluster.sql(SENT)[0][0] >= flushed[0])

    wait_until(lambda: is_leased(cluster, ring))
    leaseholder.collect = collect
    cluster.sql(MESSAGE.format(10))
    wait_until(lambda: bool(read))
    assert read[0] >= flushed[0]


def test_a_stop_ends_a_read_that_waits(
    cluster: Cluster, ring: ThreadRecordingRing, receiver: Receiver, leaseholder: Leaseholder
) -> None:
    wait_until(lambda: is_leased(cluster, ring))
    leaseholder.lease_s = 100 * DEADLINE_S
    wait_until(lambda: leaseholder.waits_s == leaseholder.lease_s)
    receiver.stop()
    leaseholder.stop()
    assert receiver.error is None


@pytest.mark.usefixtures("leaseholder")
def test_a_backlog_is_received_by_the_network_thread(cluster: Cluster, ring: ThreadRecordingRing) -> None:
    wait_until(lambda: is_leased(cluster, ring))
    ring.putters.clear()

    def is_backlog_received() -> bool:
        write(cluster, ring, 8 * LEASED_BYTES_MAX)  # a slow server may send less in each lease
        return NETWORK in ring.putters

    wait_until(is_backlog_received)


def test_the_stream_is_not_offered_while_the_decode_thread_has_a_backlog(
    cluster: Cluster, ring: ThreadRecordingRing, receiver: Receiver, lease: StreamLease
) -> None:
    """The network thread would only wait for the decode thread, and the WAL on the node."""
    ring.keeps = True
    write(cluster, ring, 2 * OFFER_BYTES_MAX)
    lease.is_awaited = True
    for _ in range(3):  # the network thread checks after each
        write(cluster, ring)
    assert lease.is_awaited
    ring.keeps = False
    ring.release(ring.used_bytes)
    write(cluster, ring)
    wait_until(lambda: not lease.is_awaited)
    assert receiver.error is None


@pytest.mark.usefixtures("leaseholder")
def test_a_connection_that_breaks_while_the_application_thread_reads_is_opened_again(
    cluster: Cluster, ring: ThreadRecordingRing, receiver: Receiver
) -> None:
    wait_until(lambda: is_leased(cluster, ring))
    for _ in range(3):
        cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        write(cluster, ring)
        wait_until(lambda: is_leased(cluster, ring))
    assert receiver.error is None


@pytest.mark.usefixtures("leaseholder")
def test_it_is_stopped_while_the_application_thread_reads_the_socket(
    cluster: Cluster, ring: ThreadRecordingRing, receiver: Receiver, lease: StreamLease
) -> None:
    wait_until(lambda: is_leased(cluster, ring))
    receiver.stop()
    assert receiver.link.value == "ended"
    assert lease.state is LeaseState.THREADED
    assert not lease.enter()


def test_each_byte_arrives_once_and_in_order_from_either_reading_thread(
    cluster: Cluster, ring: ThreadRecordingRing, receiver: Receiver, leaseholder: Leaseholder
) -> None:
    draw = random.Random(1)
    leaseholder.pauses_s = lambda: draw.choice((0.0, 0.0, 0.001, 0.15))
    with cluster.connect() as session:

        def both_have_read_after(commits: int) -> bool:
            for number in range(commits):
                session.execute(MESSAGE.format(draw.choice((10, 10, 10, 300_000)) if number % 10 == 0 else 10).encode())
                let_pass(draw.choice((0.0, 0.001, 0.01)), "random pauses between commits")
            return {LEASEHOLDER, NETWORK} <= set(ring.putters)

        wait_until(lambda: both_have_read_after(COMMITS))
    write(cluster, ring)
    assert receiver.error is None


@pytest.mark.usefixtures("leaseholder")
def test_a_ring_that_the_application_thread_fills_is_not_used_until_there_is_space(
    cluster: Cluster, ring: ThreadRecordingRing, receiver: Receiver
) -> None:
    wait_until(lambda: is_leased(cluster, ring))
    ring.keeps = True
    while ring.free_bytes >= SLICE_BYTES_MAX:
        write(cluster, ring, SLICE_BYTES_MAX // 4)
    cluster.sql(MESSAGE.format(10 * RING_BYTES_MIN))
    wait_until(lambda: receiver.link is Link.PAUSED)
    assert receiver.error is None
    ring.keeps = False
    ring.release(ring.used_bytes)
    wait_until(lambda: is_leased(cluster, ring))


def test_a_timeline_that_ends_while_the_application_thread_reads_is_followed_by_the_network_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node may take long to report why a stream ended, and the thread has a consumer to serve."""
    followers: list[str] = []

    class ObservedStream(WalStream):
        def read(self, timeout_s: float) -> StreamEvent | None:
            event = super().read(timeout_s)
            if isinstance(event, TimelineEnd):
                followers.append(threading.current_thread().name)
            return event

    monkeypatch.setattr("tidemark.runtime.capture.network.WalStream", ObservedStream)
    with new_cluster() as primary, standby_of(primary) as standby:
        with WalStream(standby.dsn()) as stream:
            ring = ThreadRecordingRing(first_page_lsn(stream.identify().flush_lsn))
        lease = StreamLease()
        receiver = Receiver(standby, ring, Progress(received_lsn=ring.write_lsn), lease)
        receiver.start()
        leaseholder = Leaseholder(receiver, lease)
        try:
            wait_until(lambda: is_leased(primary, ring))
            promote(standby)
            wait_until(lambda: is_leased(standby, ring))
            assert receiver.error is None
            assert ring.timelines == [1, 2]
            assert followers == [NETWORK]
        finally:
            leaseholder.stop()
            receiver.stop()
