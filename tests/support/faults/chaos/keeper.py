"""A service manager for a daemon, as systemd is: restarts a daemon that ended, and reports how it ended.

It reads the shipped units: the delay of a restart, and the exit codes after which a daemon is not restarted. An exit
with such a code fails the campaign, whatever fault is in progress: systemd would not start the daemon again.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from tests.support.processes.captures import Sidecar
from tidemark.io.host.failpoints import LOG_VARIABLE, VARIABLE
from tidemark.runtime.daemon.stage_transition import HandoverPoint

UNITS = Path("conf/systemd")
LOG_END_CHARACTERS = 6000
Report = Callable[[str], object]
Does = Literal["kill", "stop", "wait"]


@dataclass(frozen=True, slots=True)
class Unit:
    """The restart settings of a shipped unit."""

    restart_s: float  # RestartSec
    ends_by: frozenset[int]  # RestartPreventExitStatus

    @classmethod
    def of(cls, role: str) -> Self:
        """Read the unit of a role."""
        lines = (UNITS / f"tidemark-{role}@.service").read_text().splitlines()
        said = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        assert said["Restart"] == "on-failure", said["Restart"]
        codes = frozenset(int(code) for code in said["RestartPreventExitStatus"].split())
        return cls(float(said["RestartSec"]), codes)


class Keeper:
    """Keeps one daemon running."""

    def __init__(self, process: Sidecar, root: Path, print_progress: Report) -> None:
        self.process = process
        self.ends: Counter[str] = Counter()
        self.hit: Counter[HandoverPoint] = Counter()  # failpoints at which it died or stopped
        self._unit = Unit.of(process.role)
        self.on_death: Callable[[], None] = lambda: None
        self._print_progress = print_progress
        self._points = root / f"{process.role}.points"
        self._points.touch()
        self._began_at = 0  # offset in the log of failpoints at which the last process began
        self._armed: HandoverPoint | None = None
        self._does: Does = "kill"
        self._is_armed = False  # if the last process was started with a failpoint
        self._expected = ""  # reason of the next exit, if we cause it
        self._is_judged = True
        self._start_at_s = 0.0

    @property
    def pid(self) -> int:
        """The process id of the last process."""
        assert self.process.process is not None
        return self.process.process.pid

    @property
    def options(self) -> dict[str, str]:
        """The complete configuration with which it is started."""
        ours = (VARIABLE, LOG_VARIABLE)
        return {name: value for name, value in self.process.options.items() if name not in ours}

    @property
    def armed(self) -> HandoverPoint | None:
        """The failpoint that the daemon has not hit yet."""
        return self._armed

    @property
    def is_armed(self) -> bool:
        """Return whether the last process still has a failpoint to hit."""
        return self._is_armed and self._armed is not None and self.process.running

    def start(self) -> None:
        """Start it without waiting."""
        self.process.options[LOG_VARIABLE] = str(self._points)
        self._began_at = self._points.stat().st_size
        self.process.options.pop(VARIABLE, None)
        if self._armed is not None:  # until one process has hit it
            self.process.options[VARIABLE] = f"{self._armed.value}:1:{self._does}"
        self.process.start(wait=False)
        self._expected, self._is_judged, self._is_armed = "", False, self._armed is not None

    def maintain(self) -> None:
        """Check how it ended, if it did, and start it again when the delay is over."""
        if self.process.running:
            return
        if not self._is_judged:
            self._is_judged = True
            self._judge()
            self.on_death()
            self._start_at_s = max(self._start_at_s, time.monotonic() + self._unit.restart_s)
        elif time.monotonic() >= self._start_at_s:
            self.start()

    def kill(self, back_after_s: float = 0.0) -> None:
        """SIGKILL; it is started again after the delay."""
        self._end(signal.SIGKILL, back_after_s)

    def stop(self, back_after_s: float = 0.0) -> None:
        """SIGTERM; it is started again after the delay."""
        self._end(signal.SIGTERM, back_after_s)

    def back_now(self) -> None:
        """Start it as soon as it has ended."""
        self._start_at_s = 0.0

    def freeze(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT, unless it was killed meanwhile."""
        self._signal(signal.SIGCONT)

    def arm(self, point: HandoverPoint, does: Does = "kill") -> None:
        """Let the next process die, stop, or block one thread at a failpoint."""
        self._armed, self._is_armed, self._does = point, False, does

    def met(self) -> HandoverPoint | None:
        """Return the armed failpoint if it was hit, and disarm it."""
        armed = self._armed
        if armed is None or not self._is_armed:
            return None
        with self._points.open() as points:
            points.seek(self._began_at)
            if f"{armed.value}\n" not in points:
                return None
        self.hit[armed] += 1
        self._armed = None
        return armed

    def disarm(self) -> None:
        """Disarm the next process; a process that was started armed stays armed."""
        self._armed = None

    def log_end(self) -> str:
        """Return the end of its log."""
        path = self.process.log_path
        return f"--- {self.process.role}\n{path.read_text()[-LOG_END_CHARACTERS:] if path.exists() else ''}"

    def close(self) -> None:
        """Stop everything."""
        self.thaw()
        self.process.close()

    def _end(self, number: signal.Signals, back_after_s: float) -> None:
        self._start_at_s = time.monotonic() + back_after_s
        if self.process.running:
            self._expected = number.name
            self._signal(number)
            if number is not signal.SIGKILL:
                self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.process.running:
            os.kill(self.pid, number)

    def _judge(self) -> None:
        assert self.process.process is not None
        code = self.process.process.wait()
        role = self.process.role
        if code == -signal.SIGKILL:
            point = self.met()
            how = f"failpoint {point.value}" if point is not None else self._expected or "the watch"
        elif code in (0, -signal.SIGTERM):  # by a signal: before it had installed its handler
            assert self._expected == "SIGTERM", f"{role} ended by itself"
            how = "SIGTERM"
        else:
            assert code > 0, f"{role} died of signal {-code}"
            how = f"exit {code}"
            assert code not in self._unit.ends_by, f"{role} ended with code {code}: {self.log_end()}"
        self.ends[how] += 1
        self._print_progress(f"  {role} ended: {how}")
