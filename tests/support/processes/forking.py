"""Tidemark's programs as processes: executed, or forked from a process that has imported them.

The imports of a daemon cost some 0.6 s of a CPU, more than most tests do with it. `forked_programs` spares them to
tests that start many; the other tests execute the programs as users do.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Protocol

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = frozenset({"tidemark_sidecar", "tidemark_archiver", "tidemark_ctl", "tidemark.pipeline"})
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "ARROW_", "COV")  # variables that a forked process would read too late
ANSWER_BYTES_MAX = 64

_servers: list["ForkServer"] = []  # at most one


class StartedProgram(Protocol):
    """A started program: what tests use of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def returncode(self) -> int | None:
        """The exit code once `poll` or `wait` has seen the end."""

    def poll(self) -> int | None:
        """Return the exit code, if the process has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code; raise `subprocess.TimeoutExpired`."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, if the process runs."""

    def kill(self) -> None:
        """Send SIGKILL."""


class ForkedProcess:
    """A program that runs as a child of the fork server."""

    def __init__(self, server: "ForkServer", pid: int, arguments: Sequence[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._arguments = arguments
        self._end = os.pidfd_open(pid)

    def __del__(self) -> None:
        os.close(self._end)

    def poll(self) -> int | None:
        """Return the exit code, if the process has ended."""
        if self.returncode is None:
            self.returncode = self._server.request(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code; raise `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            ends = select.poll()
            ends.register(self._end, select.POLLIN)
            if not ends.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(list(self._arguments), timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, if the process runs."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks programs."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = Lock()
        with theirs:
            command = [sys.executable, "-m", "tests.support.processes.fork_server", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, stdin=subprocess.DEVNULL)

    def close(self) -> None:
        """End the server; the programs that it forked go on."""
        self._socket.close()
        self._process.wait()

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        outputs: Sequence[IO[bytes]],
        *,
        own_group: bool,
    ) -> ForkedProcess:
        """Fork a program; its outputs are standard output and standard error."""
        request = {
            "module": module,
            "arguments": arguments,
            "environment": dict(environment),
            "own_group": own_group,
            "umask": _umask(),
        }
        pid = self.request(request, outputs)
        assert pid is not None
        return ForkedProcess(self, pid, (module, *arguments))

    def request(self, message: object, outputs: Sequence[IO[bytes]] = ()) -> int | None:
        """Return the answer: a process id, or the exit code of an ended process."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(message).encode()], [output.fileno() for output in outputs])
            answer: int | None = json.loads(self._socket.recv(ANSWER_BYTES_MAX))
        return answer


@contextmanager
def forked_programs(server: ForkServer) -> Iterator[None]:
    """Let `start_program` fork programs as long as the context lasts."""
    _servers.append(server)
    try:
        yield
    finally:
        _servers.remove(server)


def start_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes],
    *,
    own_group: bool = False,
) -> StartedProgram:
    """Start a program of this tree, `PYTHON -m MODULE ARGUMENTS...`, or any other; standard input is /dev/null.

    `own_group`: in a separate process group.
    """
    python, option, module = (*command, "", "", "")[:3]
    if _servers and (python, option) == (sys.executable, "-m") and module in PROGRAMS and not _differs(environment):
        return _servers[0].start(module, command[3:], environment, (out, err), own_group=own_group)
    group = 0 if own_group else None
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=group
    )


def _umask() -> int:
    """Return the umask of this process; `os.umask` would change it for a moment, also for other threads."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Umask":
            return int(value, 8)
    raise AssertionError("Linux 4.7 and later report the umask")


def _differs(environment: Mapping[str, str]) -> bool:
    """Return whether a variable that takes effect at a process's start differs from ours."""
    names = {name for name in (*environment, *os.environ) if name.startswith(READ_AT_START)}
    return any(environment.get(name) != os.environ.get(name) for name in names)
