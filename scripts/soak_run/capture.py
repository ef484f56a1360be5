"""The capture of a soak: a server with the demonstration's tables, its archive, sidecar, archiver and Spark pipeline.

The configuration is the default one, unlike the demonstration's, so the bounds are those of a user.
"""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.demo_run import server as embedded
from scripts.demo_run.archiving import archive_program
from scripts.demo_run.own_capture import ROLE, SPARK_S_MAX, SPARK_STARTED, OwnCapture
from scripts.demo_run.processes import tail
from scripts.soak_run.jvm import NATIVE_MEMORY_TRACKING
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder

COPY_S_MAX = 240.0
POLL_S = 0.5
CONFIG = """\
[capture]
dsn = {dsn}
group = {group}

[select]
tables = ["app.*"]

[archive]
folder = {spool}
program = {program}

[metrics]
port = {port}
archiver_port = {archiver_port}
"""


@dataclass(kw_only=True)
class SoakCapture(OwnCapture):
    """The processes, their checks, and the load."""

    @property
    def log_bytes(self) -> int:
        """The size of the processes' logs."""
        return sum(process.log.stat().st_size for process in self.processes)

    def begin(self, rate: float) -> None:
        """Create the state as a user would, start everything, wait for the first copy, and start the load, if any."""
        self.create_database()
        self.config.write_text(self._configuration())
        self.create_state()
        os.environ["JAVA_TOOL_OPTIONS"] = NATIVE_MEMORY_TRACKING + " " + os.environ.get("JAVA_TOOL_OPTIONS", "")
        self.sidecar.start()
        self.archiver.start()
        self.pipeline.start()
        self._until(lambda: self.pipeline.log_contains(SPARK_STARTED), "Spark's start", SPARK_S_MAX)
        self._until(self._is_drained, "the first copy in the lake", COPY_S_MAX)
        if rate > 0:
            self.work.pace(rate)
            self.work.start()

    def check(self) -> None:
        """End the soak if a process ended unexpectedly, or a client of the load failed."""
        for process in self.processes:
            process.check()
        if self.work.failure is not None:
            raise SystemExit(f"a client of the load failed: {self.work.failure}")

    def stop(self) -> None:
        """Stop everything."""
        self.work.stop()
        for process in reversed(self.processes):
            process.stop()
        self.server.stop()

    def _is_drained(self) -> bool:
        try:
            reported: dict[str, int] = json.loads((self.state / "pipeline-spark.json").read_text())
        except FileNotFoundError:
            return False
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            return reported["sequence"] == outbox.head()

    def _until(self, condition: Callable[[], bool], what: str, within_s: float) -> None:
        end_s = time.monotonic() + within_s
        while not condition():
            self.check()
            if time.monotonic() > end_s:
                logs = "\n".join(f"--- {process.name}\n{tail(process.log)}" for process in self.processes)
                raise SystemExit(f"not within {within_s:.0f} s: {what}\n{logs}")
            time.sleep(POLL_S)

    def _configuration(self) -> str:
        ports = [_free_port() for _ in range(2)]
        return CONFIG.format(
            dsn=json.dumps(self.server.dsn(ROLE)),
            group=json.dumps(self.server.group or ""),
            spool=json.dumps(str(self.spool)),
            program=json.dumps(archive_program(self.server, self.folder / "program")),
            port=ports[0],
            archiver_port=ports[1],
        )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def started(folder: Path, rate: float, pipeline_options: tuple[str, ...]) -> Iterator[SoakCapture]:
    """Start everything; at the end stop it, and remove its folder unless something failed."""
    folder.chmod(0o755)  # the server's user must be able to reach its folders
    capture = SoakCapture(folder=folder, server=embedded.start(folder), pipeline_options=pipeline_options)
    try:
        capture.begin(rate)
        yield capture
    finally:
        capture.stop()
    shutil.rmtree(folder, ignore_errors=True)
