"""The companions of the load: none, pg_receivewal, the sidecar and a pgoutput slot, also in faulty conditions.

*Busy* is the control: it uses half a CPU and has no connection. The server loses as much to any neighbour on the same
CPUs, and would not lose it to a sidecar on another host.

*As a unit* is the sidecar with the `Nice` of its systemd unit; the unit's `CPUWeight` is not applied.

A *stopped* companion is stopped by SIGSTOP once it streams, like a process in a swapping machine, a debugger or a
frozen container. A sidecar whose consumer *hangs* continues to run: its consumer writes JSON lines into a pipe that is
never read. After a few seconds pipe, decoded queue and ring are full, and the sidecar closes its connection.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tests.support.processes.captures import Sidecar
from tests.support.processes.forking import StartedProgram
from tests.support.servers.postgres import SUPERUSER, Cluster, Session, sql
from tidemark.model.lsn import Lsn, parse_lsn

DATABASE = "postgres"
UNIT = Path(__file__).parents[3] / "conf/systemd/tidemark-sidecar@.service"
SLOT = PUBLICATION = "bench"
POLL_S = 0.05
STREAMING_S_MAX = 30.0
CAUGHT_UP_S_MAX = 300.0
GONE_S_MAX = 90.0  # longer than the node's wal_sender_timeout
SMALL_BOUNDS = {  # small, so that a hanging consumer affects the connection within a trial
    "TIDEMARK_RING__BYTES_MAX": str(1 << 20),
    "TIDEMARK_DECODE__QUEUE_BYTES": str(1 << 20),
}
BUSY = """
import time
while True:
    until = time.monotonic() + 0.0005
    while time.monotonic() < until:
        pass
    time.sleep(0.0005)
"""
SENT = "SELECT sent_lsn FROM pg_stat_replication"


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """The server, a session of the benchmark on it, and a folder for the readers' files."""

    cluster: Cluster
    session: Session
    scratch: Path


@dataclass(frozen=True, slots=True)
class RunningReader:
    """A running reader: its process and its position; None for a reader that does not keep up by design."""

    pid: int | None = None
    place: Callable[[], Lsn] | None = None

    def cpu_s(self) -> float:
        """Return the CPU seconds on the reader's host so far, without the server's."""
        return cpu_s(psutil.Process(self.pid)) if self.pid is not None else 0.0

    def catch_up(self, lsn: Lsn) -> float:
        """Wait until the reader has caught up; return the seconds."""
        started = time.monotonic()
        if self.place is not None:
            wait_for(lambda: self.place is None or self.place() >= lsn, CAUGHT_UP_S_MAX, "a reader that catches up")
        return time.monotonic() - started


Companion = Callable[[MeasuredNode], AbstractContextManager[RunningReader]]


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its ended children."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition; end the benchmark if it does not occur."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come within {seconds:.0f} s")
        time.sleep(POLL_S)


@contextmanager
def nothing(_node: MeasuredNode) -> Iterator[RunningReader]:
    """Run no reader."""
    yield RunningReader()


@contextmanager
def busy(_node: MeasuredNode) -> Iterator[RunningReader]:
    """Use half a CPU and no connection."""
    with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
        try:
            yield RunningReader(process.pid)
        finally:
            process.kill()


@contextmanager
def pg_receivewal(node: MeasuredNode) -> Iterator[RunningReader]:
    """Write the WAL to files, as a backup does."""
    with (
        tempfile.TemporaryDirectory(dir=node.scratch) as folder,
        _client(node, "pg_receivewal", "--directory", folder, "--no-loop") as process,
    ):
        yield _streaming(node, process)


@contextmanager
def sidecar(node: MeasuredNode) -> Iterator[RunningReader]:
    """Decode everything and discard it."""
    with _sidecar(node, {"TIDEMARK_DELIVER__CONSUMER": "null"}) as (running, process):
        yield RunningReader(process.pid, lambda: parse_lsn(str(running.status()["decoded_lsn"])))


@contextmanager
def sidecar_of_unit(node: MeasuredNode) -> Iterator[RunningReader]:
    """Decode everything and discard it, with the priority of the systemd unit."""
    with sidecar(node) as reader:
        for thread in Path(f"/proc/{reader.pid}/task").iterdir():  # a new thread inherits the priority
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _unit_nice())
        yield reader


@contextmanager
def stopped_sidecar(node: MeasuredNode) -> Iterator[RunningReader]:
    """Stream, then stop."""
    with _sidecar(node, {"TIDEMARK_DELIVER__CONSUMER": "null"}) as (_, process), _held(process):
        yield RunningReader(process.pid)


@contextmanager
def hung_consumer(node: MeasuredNode) -> Iterator[RunningReader]:
    """Stream and decode while there is space; the consumer accepts nothing."""
    with ExitStack() as stack:
        pipe = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=node.scratch))) / "pipe"
        os.mkfifo(pipe)
        stack.callback(os.close, os.open(pipe, os.O_RDWR))  # held open, never read
        into_pipe = {"TIDEMARK_DELIVER__CONSUMER": "jsonl", "TIDEMARK_DELIVER__JSONL_FILE": str(pipe)}
        _, process = stack.enter_context(_sidecar(node, {**into_pipe, **SMALL_BOUNDS}))
        yield RunningReader(process.pid)


@contextmanager
def pgoutput(node: MeasuredNode) -> Iterator[RunningReader]:
    """Make the server decode for a slot; discard its output."""
    with _recvlogical(node) as process:
        yield _streaming(node, process)


@contextmanager
def stopped_pgoutput(node: MeasuredNode) -> Iterator[RunningReader]:
    """Make the server decode for a slot whose client is stopped."""
    with _recvlogical(node) as process:
        reader = _streaming(node, process)
        with _held(process):
            yield RunningReader(reader.pid)


COMPANIONS: dict[str, Companion] = {
    "nothing": nothing,
    "nothing again": nothing,
    "busy": busy,
    "pg_receivewal": pg_receivewal,
    "tidemark": sidecar,
    "tidemark, as a unit": sidecar_of_unit,
    "tidemark, stopped": stopped_sidecar,
    "tidemark, consumer hangs": hung_consumer,
    "pgoutput": pgoutput,
    "pgoutput, stopped": stopped_pgoutput,
}


def _unit_nice() -> int:
    found = re.search(r"^Nice=(\d+)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{UNIT} sets no Nice")
    return int(found.group(1))


@contextmanager
def _sidecar(node: MeasuredNode, options: dict[str, str]) -> Iterator[tuple[Sidecar, StartedProgram]]:
    """Run a sidecar with a new state, and wait until it streams."""
    with tempfile.TemporaryDirectory(dir=node.scratch) as folder:
        running = Sidecar(node.cluster, DATABASE, Path(folder), copy=False, **options)
        running.init()
        try:
            running.start()
            assert running.process is not None
            _wait_for_stream(node)
            yield running, running.process
        finally:
            running.close()


@contextmanager
def _recvlogical(node: MeasuredNode) -> Iterator[subprocess.Popen[bytes]]:
    sql(node.session, f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    options = ("-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}")
    to_nowhere = ("--dbname", DATABASE, "--slot", SLOT, "--start", "--no-loop", "--file", "-", *options)
    try:
        with _client(node, "pg_recvlogical", *to_nowhere) as process:
            yield process
    finally:
        _wait_for_no_stream(node)
        sql(node.session, f"SELECT pg_drop_replication_slot('{SLOT}')")


@contextmanager
def _client(node: MeasuredNode, program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of PostgreSQL's readers; kill it at the end."""
    cluster = node.cluster
    where = ["-h", str(cluster.folder), "-p", str(cluster.port), "-U", SUPERUSER]
    command: Sequence[str] = [str(cluster.server.client(program)), *where, *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def _streaming(node: MeasuredNode, process: StartedProgram) -> RunningReader:
    """Return the reader with the only walsender, once it streams."""
    _wait_for_stream(node)
    return RunningReader(process.pid, partial(_sent_lsn, node))


def _sent_lsn(node: MeasuredNode) -> Lsn:
    ((sent,),) = sql(node.session, SENT)
    return parse_lsn(str(sent))


def _wait_for_stream(node: MeasuredNode) -> None:
    streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
    wait_for(lambda: sql(node.session, streaming) == [(1,)], STREAMING_S_MAX, "the stream")


def _wait_for_no_stream(node: MeasuredNode) -> None:
    """End the remaining walsender: it does not notice immediately that its client was killed."""
    sql(node.session, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
    wait_for(lambda: sql(node.session, SENT) == [], GONE_S_MAX, "the end of a stream")


@contextmanager
def _held(process: StartedProgram) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.kill()
