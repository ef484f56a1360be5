"""The messages of a daemon to systemd, at the socket on which systemd would listen."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar
from tests.support.processes.failover import Archiver
from tests.support.servers.postgres import Cluster
from tidemark.io.host.systemd import ALIVE, READY, STOPPING, notify

DEADLINE_S = 120.0


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """Listen as systemd does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(DEADLINE_S)
        channel.bind(address)
        yield channel


@pytest.mark.parametrize("is_abstract", [False, True])
def test_messages_arrive_at_a_path_and_at_an_abstract_name(tmp_path: Path, *, is_abstract: bool) -> None:
    name = str(tmp_path / "notify")
    with listening("\0" + name if is_abstract else name) as channel:
        notify(READY, {"NOTIFY_SOCKET": "@" + name if is_abstract else name})
        assert channel.recv(100).decode() == READY


def test_a_missing_or_full_or_unset_listener_stops_no_process(tmp_path: Path) -> None:
    notify(ALIVE, {})
    notify(ALIVE, {"NOTIFY_SOCKET": "vsock:2:1234"})
    notify(ALIVE, {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    name = str(tmp_path / "full")
    with listening(name):
        for _ in range(10_000):  # far more than a queue of datagrams can store
            notify(ALIVE, {"NOTIFY_SOCKET": name})


@contextmanager
def reported(kind: type[Sidecar], cluster: Cluster, root: Path) -> Iterator[tuple[Sidecar, socket.socket]]:
    """Start a daemon with systemd's socket."""
    name, archive = str(root / "notify"), root / "wal"
    archive.mkdir()
    daemon = kind(cluster, "postgres", root, NOTIFY_SOCKET=name, WATCHDOG_USEC="2000000")
    daemon.options |= {"TIDEMARK_ARCHIVE__FOLDER": str(archive), "TIDEMARK_METRICS__ARCHIVER_PORT": "0"}
    daemon.init()
    with listening(name) as channel:
        try:
            daemon.start()
            yield daemon, channel
        finally:
            daemon.close()


each_daemon = pytest.mark.parametrize("kind", [Sidecar, Archiver])


@each_daemon
def test_a_daemon_reports_when_it_is_ready_and_when_it_stops(
    cluster: Cluster, tmp_path: Path, kind: type[Sidecar]
) -> None:
    with reported(kind, cluster, tmp_path) as (daemon, channel):
        assert channel.recv(100).decode() == READY
        assert daemon.stop() == 0
        said = ""
        while said != STOPPING:  # whatever it sent while it ran
            said = channel.recv(100).decode()


@each_daemon
def test_a_daemon_answers_the_watchdog_while_it_runs(cluster: Cluster, tmp_path: Path, kind: type[Sidecar]) -> None:
    with reported(kind, cluster, tmp_path) as (_, channel):
        assert [channel.recv(100).decode() for _ in range(3)] == [READY, ALIVE, ALIVE]
