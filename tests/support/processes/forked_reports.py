"""The programs that `cdcctl` starts for a lake, forked beside it: their imports cost 0.7 to 1.3 s of a CPU each.

A forked `cdcctl` that may need such programs forks copies of itself at once, before it has opened anything. Each copy
waits for a request to run a program. It is a child of `cdcctl`, as the executed program would be.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from types import TracebackType
from typing import Self

from tidemark_ctl.requests import report_program

REQUEST_BYTES_MAX = 1 << 16
REPORTS_MAX = 2  # of one command: `lake adopt` lists the lake and checks it
PROGRAMS = {  # of the groups of commands
    "lake": ("tidemark.pipeline.landing.lake_reports", "tidemark.pipeline.driver.table_removal"),
    "replay": ("tidemark.pipeline.replay.program", "pyspark_tidemark.backup_replay"),
    "table": ("pyspark_tidemark.earlier_changes", "pyspark_tidemark.missed_changes"),
}

_imported: set[str] = set()


def report_programs(module: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the programs that a program with these arguments may start."""
    return PROGRAMS.get(arguments[0], ()) if module == "tidemark_ctl" and arguments else ()


def import_for(programs: Sequence[str]) -> bool:
    """Import what these programs import, but not themselves; return whether anything was new."""
    new = [name for name in programs if name not in _imported]
    for name in new:
        import_module(name)
        del sys.modules[name]  # it runs as `__main__`
        _imported.add(name)
    return bool(new)


def requested_program() -> list[str] | None:
    """Fork the copies. Return in each with the requested program and its arguments, and in this process with None."""
    copies: list[ReportProcess] = []
    for _ in range(REPORTS_MAX):
        requests, to_requests = os.pipe()
        report, to_report = os.pipe()
        if pid := os.fork():
            os.close(requests)
            os.close(to_report)
            copies.append(ReportProcess(pid, to_requests, report))
            continue
        os.close(to_requests)
        os.close(report)
        for copy in copies:
            copy.close()
        return _request(requests, to_report)
    report_program.__dict__["subprocess"] = ReportProcesses(copies)
    return None


def _request(requests: int, to_report: int) -> list[str]:
    """Wait for the request; the report is the standard output."""
    request = os.read(requests, REQUEST_BYTES_MAX)
    if not request:  # `cdcctl` has ended
        os._exit(os.EX_OK)
    os.close(requests)
    os.dup2(to_report, 1)
    os.close(to_report)
    program: list[str] = json.loads(request)
    return program


class ReportProcess:
    """A copy, as what `report_program` uses of `subprocess.Popen`."""

    def __init__(self, pid: int, to_requests: int, report: int) -> None:
        self.returncode: int | None = None
        self._pid = pid
        self._to_requests = to_requests
        self._report = report

    def close(self) -> None:
        """Close its pipes: in another copy."""
        os.close(self._to_requests)
        os.close(self._report)

    def request(self, program: Sequence[str]) -> Self:
        """Let it run a program."""
        os.write(self._to_requests, json.dumps(program).encode())
        os.close(self._to_requests)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.wait()

    def communicate(self) -> tuple[str, None]:
        """Return its report when it has ended."""
        with os.fdopen(self._report) as report:
            printed = report.read()
        self.wait()
        return printed, None

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        if self.returncode is None:
            os.kill(self._pid, signal.SIGTERM)

    def wait(self) -> None:
        """Wait for its end."""
        if self.returncode is None:
            _, status = os.waitpid(self._pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)


class ReportProcesses:
    """The copies, as what `report_program` uses of the module `subprocess`."""

    PIPE = subprocess.PIPE

    def __init__(self, copies: list[ReportProcess]) -> None:
        self._copies = copies

    def Popen(self, command: Sequence[str], *, stdout: int, text: bool) -> ReportProcess:  # noqa: N802 - its name there
        """Let the next copy run the program of a command of `python_program`."""
        assert (stdout, text) == (self.PIPE, True)
        python, _, _, *program = command
        assert python == sys.executable
        return self._copies.pop(0).request(program)
