"""`cdcctl run server` as a process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes.ending import ended

STOP_S = 60.0


@contextmanager
def served_outbox(state: Path, *options: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """Run the outbox server of a state, by default on its unix socket, from when it serves until the end."""
    command = [sys.executable, "-m", "tidemark_ctl", "run", "server", "--state", str(state), *options]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **settings})
    with ended(started) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("serving the outbox" in line for line in lines), "it ended"
        try:
            yield process
        finally:
            process.terminate()
            process.wait(STOP_S)
