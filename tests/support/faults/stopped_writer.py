"""A process that stops at a chosen point of a write transaction, as by SIGSTOP or a hung disk."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.io.host.failpoints import VARIABLE
from tidemark.io.state.environment import WritePoint
from tidemark.io.state.state_folder import StateFolder

ROOT = Path(__file__).parents[3]
DEADLINE_S = 120.0
PROGRAM = """
import contextlib, sys, pathlib
from tidemark.io.host import failpoints
from tidemark.io.state.environment import Environment, WritePoint
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state_folder import StateFolder
folder = StateFolder(pathlib.Path(sys.argv[1]))
with contextlib.ExitStack() as stack:
    environment = Environment.open(folder)
    if sys.argv[2]:
        stack.enter_context(RoleLock.acquire(folder, sys.argv[2]))
        environment.heartbeat.beat(Slot[sys.argv[2].upper()])
    failpoints.arm_from_environment(WritePoint)
    with environment.write() as transaction:
        transaction.put(b"of the stopped writer", b"1", db=environment.database("state"))
print("written")
"""


class StoppedWriter:
    """The process, after it has stopped."""

    def __init__(self, folder: StateFolder, point: WritePoint = WritePoint.INSIDE, *, role: str = "") -> None:
        """Start it; return when it has stopped. With a role it has acquired its lock and written one heartbeat."""
        command = [sys.executable, "-c", PROGRAM, str(folder.root), role]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: f"{point.value}:1:stop"}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        pid, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert pid == self.process.pid
        assert os.WIFSTOPPED(status), f"the writer ended before it could stop: {status}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def resume(self) -> None:
        """SIGCONT; it ends its transaction."""
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """Wait for the end; return the exit status."""
        return self.process.wait(DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
