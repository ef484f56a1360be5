"""The demonstration's processes: started in groups of their own, killed without mercy, restarted."""

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
    """Run a program of ours to its end; end the demonstration if it fails."""
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
class Process:
    """A `cdcctl` command that runs on, its output in a log file."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    _running: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it, or start it again; the log goes on."""
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
        """How it ended; None while it runs, and before."""
        return self._running.poll() if self._running is not None else None

    def has_said(self, text: str) -> bool:
        """Tell if its log has a line with this in it."""
        return text in self.log.read_text(errors="replace")

    def check(self) -> None:
        """End the demonstration if the process ended by itself."""
        if self.ended is not None:
            raise SystemExit(f"{self.name} ended by itself with {self.ended}:\n{tail(self.log)}")

    def kill(self) -> None:
        """SIGKILL it and all that it started."""
        assert self._running is not None
        os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()
        self._running = None

    def stop(self) -> None:
        """Ask it to stop, and kill it when it does not."""
        if self._running is None or self.ended is not None:
            return
        self._running.terminate()
        try:
            self._running.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
