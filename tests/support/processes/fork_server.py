"""A process that has imported Tidemark's programs, and forks one for each request.

`python -m tests.support.processes.fork_server DESCRIPTOR`: `forking` starts it, and sends requests on that socket.
"""

import atexit
import gc
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from typing import NoReturn

from tests.support.processes.forked_reports import import_for, report_programs, requested_program

PACKAGES = ("tidemark_sidecar", "tidemark_archiver", "tidemark_ctl")
IMPORTED_LATER = {"tidemark.pipeline": "tidemark.pipeline.driver.program"}  # by the first start: it imports PySpark
MESSAGE_BYTES_MAX = 128 << 10
OUTPUTS = 2  # standard output and standard error


@dataclass(frozen=True, slots=True)
class Start:
    """A program to run in a new process."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    own_group: bool
    umask: int


def serve(requests: socket.socket) -> Start | None:
    """Answer requests; return in each forked process with its program, and with None at the end of the requests."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES_MAX, OUTPUTS)
        if not message:
            return None
        request = json.loads(message)
        if isinstance(request, int):
            ended, status = os.waitpid(request, os.WNOHANG)
            requests.send(json.dumps(os.waitstatus_to_exitcode(status) if ended else None).encode())
            continue
        start = Start(**request)
        programs = report_programs(start.module, start.arguments)
        if import_for(programs) or _import_later(start.module):
            gc.freeze()  # what is imported is never garbage: a collection would copy its pages
        if pid := os.fork():
            if start.own_group:
                os.setpgid(pid, pid)
            for descriptor in descriptors:
                os.close(descriptor)
            requests.send(json.dumps(pid).encode())
            continue
        requests.close()
        _become(start, descriptors)
        if programs and (program := requested_program()) is not None:
            return _replaced(start, *program)
        return start


def _import_later(program: str) -> bool:
    """Import what a program imports when it runs; return whether it was new."""
    module = IMPORTED_LATER.get(program, "")
    if not module or module in sys.modules:
        return False
    import_module(module)
    return True


def _replaced(start: Start, module: str, *arguments: str) -> Start:
    sys.argv[1:] = arguments
    return replace(start, module=module, arguments=list(arguments))


def _become(start: Start, outputs: list[int]) -> None:
    """Give this process what a program that is executed has from its parent, and the signals."""
    for output, descriptor in enumerate(outputs, start=1):
        os.dup2(descriptor, output)
        os.close(descriptor)
    os.umask(start.umask)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.argv[1:] = start.arguments
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(start: Start, codes: list[int]) -> NoReturn:
    """Run a program to its end, and add its exit code."""
    try:
        runpy.run_module(start.module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, int):
            codes.append(ended.code)
        raise
    codes.append(os.EX_OK)
    sys.exit()


def _exit_at_once(codes: list[int]) -> None:
    """End without the release of all imported objects: it copies their pages, which takes longer than most programs."""
    if codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])


def main() -> None:
    """Import the programs, and answer requests until the socket is closed."""
    codes: list[int] = []
    atexit.register(_exit_at_once, codes)  # before all imports: it runs as the last one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the test run ends it by the closed socket
    for package in map(import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__"):
                import_module(module.name)
    import_module("tidemark.runtime.daemon.service")
    gc.freeze()
    if (start := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _run(start, codes)


if __name__ == "__main__":
    main()
