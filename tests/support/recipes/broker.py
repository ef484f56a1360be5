"""A broker of Kafka on a port of 127.0.0.1, from the jars that `scripts/recipes` resolves."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.processes.waiting import wait_until

START_S, END_S = 120.0, 60.0
CLUSTER = "tidemarkrecipes1234567"  # 22 characters
HEAP = "-Xmx400m"
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/log
num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


@contextmanager
def running_broker(jars: Path, folder: Path) -> Iterator[str]:
    """Run a broker; yield its address."""
    port, controller = _free_ports()
    settings = folder / "server.properties"
    settings.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder))
    java = ["java", HEAP, "-cp", f"{jars}/*"]
    format_log = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)]
    subprocess.run(format_log, check=True, capture_output=True)
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(port), "the broker", within_s=START_S, reported=(folder / "broker.log").read_text)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        process.wait()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        for opened in (one, two):
            opened.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def _answers(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False
