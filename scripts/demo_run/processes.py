"""The demonstration's processes: each started in a separate process group, killed by SIGKILL, and restarted."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

CTL = "tidemark_ctl"
STOP_DEADLINE_S = 40
TAIL_LINES = 12


def run(module: str, *arguments: str, fine: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
    """Run a program of Tidemark to its end; end the demonstration if it fails."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], check=False, capture_output=True, text=True)
    if done.returncode not in fine:
        raise SystemExit(f"{module} {arguments[0]} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
    except OSError as error:
        return f"({error.strerror})"


@dataclass
class DemoProcess:
    """A long-running `cdcctl` command with its output in a log file."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    _running: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start or restart the process; the log is continued."""
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                [sys.executable, "-m", CTL, *self.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id; 0 before the first start."""
        return self._running.pid if self._running else 0

    @property
    def ended(self) -> int | None:
        """The exit status; None while it runs, and before its first start."""
        return self._running.poll() if self._running is not None else None

    def log_contains(self, text: str) -> bool:
        """Return whether a line of its log contains this text."""
        return text in self.log.read_text(errors="replace")

    def check(self) -> None:
        """End the demonstration if the process ended unexpectedly."""
        if self.ended is not None:
            raise SystemExit(f"{self.name} ended by itself with {self.ended}:\n{tail(self.log)}")

    def kill(self) -> None:
        """SIGKILL the process and all its children."""
        assert self._running is not None
        os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()
        self._running = None

    def stop(self) -> None:
        """Stop the process; kill it if it does not end."""
        if self._running is None or self.ended is not None:
            return
        self._running.terminate()
        try:
            self._running.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
