"""A capture, running or stopped, does not impede the node: no slot, no xmin, no WAL, no shutdown, no speed."""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.io.node.replication import WAL_SENDER_TIMEOUT_S

MB = 1 << 20
MAX_WAL_MB = 32
SMALL_WAL: dict[str, str | int] = {
    "wal_keep_size": 0,
    "max_wal_size": f"{MAX_WAL_MB}MB",
    "min_wal_size": f"{MAX_WAL_MB}MB",
}
SEGMENTS = 8  # of 16 MB: four times the WAL that the node may keep
SHUTDOWN_S = 30  # of the node alone, on a busy machine; without a time-out it would wait for ever
ROUNDS = 3
ROUND_S = 2


@contextmanager
def node_without_slots(**settings: str | int) -> Iterator[Cluster]:
    """Return a node without replication slots, which logs every attempt to create one."""
    frugal: dict[str, str | int] = {
        "max_replication_slots": 0,
        "log_replication_commands": "on",
        "log_statement": "all",
    }
    with new_cluster(15, {**frugal, **settings}) as made:
        made.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        yield made


@contextmanager
def stopped(sidecar: Sidecar) -> Iterator[None]:
    """Stop a sidecar, as a swapping machine or a debugger does."""
    assert sidecar.process is not None
    sidecar.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        sidecar.process.send_signal(signal.SIGCONT)


@pytest.mark.feature("N01")
def test_a_capture_survives_kills_on_a_node_that_has_no_slots_and_requests_none(tmp_path: Path) -> None:
    with node_without_slots() as node:
        sidecar = Sidecar(node, "postgres", tmp_path, copy=True)
        node.sql("INSERT INTO account VALUES (0, 'old')")
        sidecar.init()
        try:
            for number in range(1, 4):
                sidecar.start()
                node.sql(f"INSERT INTO account VALUES ({number}, 'x')")
                sidecar.catch_up()
                assert sidecar.walsender("backend_xmin") == (None,)
                sidecar.kill()
            sidecar.start()
            assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {0, 1, 2, 3}
        finally:
            sidecar.close()
        asked = [line for line in node.log.splitlines() if "replication command" in line or "statement:" in line]
        assert any("START_REPLICATION PHYSICAL" in line for line in asked)
        assert not [line for line in asked if "slot" in line.lower()]


@pytest.mark.feature("I03")
@pytest.mark.feature("N01")
def test_a_stopped_sidecar_keeps_no_wal_and_delays_a_fast_shutdown_by_its_timeout_at_most(tmp_path: Path) -> None:
    """The node's own `wal_sender_timeout` is off, so a stopped client could delay a shutdown for ever."""
    with node_without_slots(wal_sender_timeout=0, **SMALL_WAL) as node:
        sidecar = Sidecar(node, "postgres", tmp_path)
        sidecar.init()
        try:
            sidecar.start()
            with stopped(sidecar):
                use_segments(node)
                assert kept_wal(node) <= (MAX_WAL_MB + 16) * MB
                began_s = time.monotonic()
                node.stop()
                assert time.monotonic() - began_s < WAL_SENDER_TIMEOUT_S + SHUTDOWN_S
        finally:
            sidecar.close()


@pytest.mark.feature("I03")
@pytest.mark.feature("N01")
def test_a_consumer_that_accepts_nothing_keeps_no_wal_and_delays_no_shutdown(tmp_path: Path) -> None:
    """It writes into a pipe without a reader: the group queue is full, then the ring, and the stream is closed."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    held_open = os.open(pipe, os.O_RDWR)
    options = {
        "TIDEMARK_DELIVER__CONSUMER": "jsonl",
        "TIDEMARK_DELIVER__JSONL_FILE": str(pipe),
        "TIDEMARK_RING__BYTES_MAX": str(MB),
        "TIDEMARK_DECODE__QUEUE_BYTES": str(MB),
    }
    with node_without_slots(wal_sender_timeout=0, **SMALL_WAL) as node:
        sidecar = Sidecar(node, "postgres", tmp_path, copy=False, **options)
        sidecar.init()
        try:
            sidecar.start()
            # NB: several transactions: the rows of one are kept by the decoder, and nothing after it fills the ring.
            for first in range(1000, 50000, 5000):
                rows = f"generate_series({first}, {first + 4999}) n"
                node.sql(f"INSERT INTO account SELECT n, repeat('x', 200) FROM {rows}")
            sidecar.wait_for_event("ring is full, capture pauses")
            use_segments(node)
            assert kept_wal(node) <= (MAX_WAL_MB + 16) * MB
            assert sidecar.running
            # NB: while the decoder still reads from the ring, the sidecar returns, and fills it again.
            sidecar.wait_until(lambda: node.sql("SELECT FROM pg_stat_replication") == [], "a full ring to stay so")
            node.stop()
        finally:
            sidecar.close()
            os.close(held_open)


def test_an_unread_slot_would_keep_the_wal_of_the_same_work() -> None:
    """Otherwise the two tests above might pass because there is nothing to observe."""
    with new_cluster(15, SMALL_WAL) as node:
        node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        node.sql("SELECT pg_create_physical_replication_slot('forgotten', true)")
        use_segments(node)
        assert kept_wal(node) >= SEGMENTS * 16 * MB


def use_segments(node: Cluster) -> None:
    """Begin so many segments, each with a row, and let the node remove WAL."""
    for number in range(SEGMENTS):
        node.sql(f"INSERT INTO account VALUES ({number}, 'x'); SELECT pg_switch_wal(); CHECKPOINT")


def kept_wal(node: Cluster) -> int:
    """Return the size of pg_wal."""
    return sum(path.stat().st_size for path in (node.data / "pg_wal").iterdir() if path.is_file())


@pytest.mark.feature("I03")
def test_a_node_is_as_fast_with_a_stopped_capture_as_with_none(tmp_path: Path) -> None:
    """Compare the CPU time of a transaction, which other load changes little, with a node without a capture."""
    settings: dict[str, str | int] = {"log_statement": "none", "wal_keep_size": "2GB"}
    with node_without_slots(**settings) as node, node_without_slots(**settings) as other:
        for each in (node, other):
            each.client("pgbench", "--initialize", "--quiet", "postgres")
        sidecar = Sidecar(node, "postgres", tmp_path)
        sidecar.init()
        beside, alone = HeavyWork(), HeavyWork()
        try:
            for _ in range(ROUNDS):
                sidecar.start()
                with stopped(sidecar), ThreadPoolExecutor(2) as pool:
                    rounds = pool.map(work, (node, other))
                beside, alone = (sofar.plus(more) for sofar, more in zip((beside, alone), rounds, strict=True))
                sidecar.kill()
        finally:
            sidecar.close()
        assert beside.cpu_s / beside.transactions < alone.cpu_s / alone.transactions / 0.6, (beside, alone)
        assert beside.transactions > 0.1 * alone.transactions, "none of them waits for the capture"


@dataclass(frozen=True)
class HeavyWork:
    """Transactions, and the CPU time of all of a server's processes for them."""

    transactions: int = 0
    cpu_s: float = 0.0

    def plus(self, more: "HeavyWork") -> "HeavyWork":
        return HeavyWork(self.transactions + more.transactions, self.cpu_s + more.cpu_s)


def work(node: Cluster) -> HeavyWork:
    """Run pgbench for a round."""
    before_s = cpu_s(node)
    said = node.client("pgbench", "--time", str(ROUND_S), "--client", "2", "--no-vacuum", "postgres")
    (line,) = [line for line in said.splitlines() if "number of transactions actually processed" in line]
    return HeavyWork(int(line.rpartition(":")[2].split("/")[0]), cpu_s(node) - before_s)


def cpu_s(node: Cluster) -> float:
    """Return the CPU time of a server: of its processes, and of those that have ended."""
    postmaster = psutil.Process(node.pid)
    before = None
    while before != (of_ended := cpu_s_of_ended(postmaster)):  # one that ends in between would be missed
        before = of_ended
        taken_s = of_ended
        for process in (postmaster, *postmaster.children()):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                taken_s += times.user + times.system
    return taken_s


def cpu_s_of_ended(postmaster: psutil.Process) -> float:
    times = postmaster.cpu_times()
    return float(times.children_user + times.children_system)


@pytest.mark.feature("I41")
def test_status_shows_mode_pointers_and_lag_with_daemon_and_node_both_dead(tmp_path: Path) -> None:
    with node_without_slots() as node:
        sidecar = Sidecar(node, "postgres", tmp_path)
        sidecar.init()
        try:
            sidecar.start()
            node.sql("INSERT INTO account VALUES (1, 'x')")
            sidecar.catch_up()
            alive = json.loads(succeeded(cdcctl("status", "--json", "--state", sidecar.folder.root)).out)
            assert sidecar.process is not None
            assert alive["sidecar"]["pid"] == sidecar.process.pid
            running = sidecar.status()
            sidecar.kill()
        finally:
            sidecar.close()
    reported = json.loads(succeeded(cdcctl("status", "--json", "--state", sidecar.folder.root)).out)
    assert reported["sidecar"] == "not running"
    assert reported["mode"] == "realtime"
    assert reported["delivered"]["position"] == running["delivered"]
    assert reported["delivered"]["commit_age_s"] > 0
    assert reported["outbox"]["head"] == alive["outbox"]["head"] > reported["outbox"]["trimmed"]
    assert reported["catalog_bases"]
