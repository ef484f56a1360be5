"""`cdcctl run server` as a process."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOP_S = 60.0


@contextmanager
def served_outbox(state: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the outbox server of a state on its unix socket, from when it serves until the end."""
    command = [sys.executable, "-m", "tidemark_ctl", "run", "server", "--state", str(state)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("serving the outbox" in line for line in lines), "it ended"
        try:
            yield process
        finally:
            process.terminate()
            process.wait(STOP_S)
