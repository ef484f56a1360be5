"""An archive that pg_receivewal fills: both processes read it, and write nothing there."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.ending import ended
from tests.support.processes.failover import Pair
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.postgres import SUPERUSER, Cluster, new_cluster
from tidemark.io.archive.spool import Spool
from tidemark.model.mode import Stage

MB = 1 << 20


@contextmanager
def receiving(node: Cluster, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run pg_receivewal, from the node's flushed WAL on."""
    place = ["--host", str(node.folder), "--port", str(node.port), "--username", SUPERUSER]
    program = node.server.client("pg_receivewal")
    with ended(subprocess.Popen([program, *place, "--directory", str(folder), *options])) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)


@pytest.mark.parametrize("options", [(), ("--compress", "gzip:1")], ids=["plain", "gzip"])
def test_a_folder_of_pg_receivewal_is_an_archive_for_both_processes(tmp_path: Path, options: tuple[str, ...]) -> None:
    folder = tmp_path / "wal"
    folder.mkdir()
    with new_cluster(15, initdb=["--wal-segsize=1"]) as node, receiving(node, folder, *options):
        node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        pair = Pair(ArchivingServer(node, Spool(folder)), tmp_path)
        pair.sidecar.init()
        try:
            pair.start()
            pair.insert(1)
            pair.catch_up()
            pair.switch_off()
            pair.insert(2)
            node.sql("INSERT INTO account SELECT n, repeat('x', 1000) FROM generate_series(10, 3009) n")
            pair.catch_up()
            assert pair.stage is Stage.HELD
            pair.insert(4)
            pair.wait_for(lambda: any(".partial" in path.name for path in folder.iterdir()), "a segment in hand")
            names = {path.name for path in folder.iterdir()}
            pair.switch_on()
            pair.wait_for_stage(Stage.REALTIME)
            pair.sidecar.kill()
            pair.insert(3)
            pair.wait_for_stage(Stage.ARCHIVE)
            pair.catch_up()
            pair.sidecar.start()
            pair.wait_for_stage(Stage.REALTIME)
            assert set(replayed(change_log(pair.catch_up(), "account"))) == {1, 2, 3, 4, *range(10, 3010)}
            assert {path.name.partition(".")[0] for path in folder.iterdir()} >= {
                name.partition(".")[0] for name in names
            }, "nothing is removed there"
        finally:
            pair.close()
