"""The pipeline as a separate process: it is started, its child processes are found and killed, its status is read."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.support.processes.forking import StartedProgram, start_program
from tests.support.processes.waiting import wait_until
from tidemark.io.host.failpoints import VARIABLE
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder

if TYPE_CHECKING:
    from tests.support.processes.spark import SparkJvm

ROOT = Path(__file__).parents[3]
DEADLINE_S = 180.0
DRIVER, JVM, HELPER = VICTIMS = ("driver", "jvm", "python helper")
PROGRAMS = {JVM: "java", HELPER: "python"}
DELETED = "checkpoints deleted"  # counted in addition to the kills


class SparkProcess:
    """A pipeline from a state folder to a lake, sometimes running."""

    def __init__(self, state: Path, lake: Path, log_path: Path, *, batch_bytes: int) -> None:
        self.state = state
        self.lake = lake
        self.log_path = log_path
        self._batch_bytes = batch_bytes
        self.options: tuple[str, ...] = ()  # of each start
        self.environment: Mapping[str, str] = {}
        self.jvm: SparkJvm | None = None  # lent to each start; else the JVM is a child process of it
        self.store_root = ""  # the URL of a lake in an object store, in place of the folder
        self._process: StartedProgram | None = None
        self._orphans: list[psutil.Process] = []

    @property
    def checkpoint(self) -> Path:
        return self.state / "spark"

    def start(self, *options: str, failpoint: str = "", **variables: str) -> None:
        """Start it, or start it again, in a separate process group; the log is continued."""
        command = [
            *(sys.executable, "-m", "tidemark.pipeline", "--master", "local[2]", "--driver-memory", "700m"),
            *("--state", str(self.state), "--lake", self.store_root or str(self.lake)),
            *("--batch-bytes", str(self._batch_bytes), *self.options, *options),
        ]
        environment = {**os.environ, **self.environment, **variables, **({VARIABLE: failpoint} if failpoint else {})}
        if self.jvm is not None:
            environment |= self.jvm.lend()
        with self.log_path.open("ab") as log:
            self._process = start_program(command, environment, log, log, own_group=True)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def family(self, program: str = "") -> list[psutil.Process]:
        """Return its child processes whose names begin so, without zombies."""
        assert self._process is not None
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [child for child in children if _name(child).startswith(program)]

    def kill_jvm(self) -> bool:
        """SIGKILL the JVM; return whether there was one."""
        found = self.family(PROGRAMS[JVM])
        for jvm in found:
            jvm.kill()
        return bool(found)

    def kill_driver(self) -> None:
        """SIGKILL of the process itself; its child processes run for a moment longer."""
        assert self._process is not None
        self._orphans += self.family()
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def end_all(self) -> None:
        """End the process, all processes that it ever started, also those that outlive it, and Spark in a lent JVM."""
        if self.running:
            self.kill_driver()
        for member in self._orphans:
            if member.is_running():
                member.send_signal(signal.SIGKILL)
        psutil.wait_procs(self._orphans, DEADLINE_S)
        self._orphans.clear()
        if self.jvm is not None:
            self.jvm.end()

    def stop(self) -> None:
        """SIGTERM; check that it succeeds."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self.wait()

    def stop_group(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to all of its processes at once, as systemd and terminals do; check that it succeeds."""
        assert self._process is not None
        os.killpg(self._process.pid, number)
        self.wait()

    def wait(self) -> None:
        """Wait for its end; check that it succeeded."""
        assert self._process is not None
        assert self._process.wait(DEADLINE_S) == 0, self.log()

    def reported(self) -> dict[str, int]:
        """Return its status; nothing before the first batch."""
        try:
            reported: dict[str, int] = json.loads((self.state / "pipeline-spark.json").read_text())
        except FileNotFoundError:
            return {}
        return reported

    @property
    def sequence(self) -> int:
        """The sequence of the last value that it wrote into the lake."""
        return self.reported().get("sequence", 0)

    def batches(self) -> int:
        """Return how many batches this process wrote into the lake."""
        reported = self.reported()
        return reported["batches"] if reported and self._process and reported["pid"] == self._process.pid else 0

    def is_drained(self) -> bool:
        """Return whether the lake contains all values of the outbox."""
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            return 0 < self.sequence == outbox.head()

    def log(self) -> str:
        """Return the end of its log."""
        return self.log_path.read_text(errors="replace")[-6000:]


def _name(process: psutil.Process) -> str:
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.NoSuchProcess:
        return ""


def wait_for(is_so: Callable[[], bool], what: str, log: Callable[[], str] = str) -> None:
    """Wait until `is_so` holds; fail at the deadline."""
    wait_until(is_so, what, within_s=DEADLINE_S, reported=log)
