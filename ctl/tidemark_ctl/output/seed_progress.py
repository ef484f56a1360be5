"""The progress of a seed on standard error."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

import click

from tidemark.io.node.node import Blocker
from tidemark.model.errors import NodeUnreachable, TidemarkError
from tidemark.model.lsn import FullXid, Lsn

QUIET_S = 2.0  # a shorter replay prints no line
TERMINAL_S = 0.2  # between updates of the line on a terminal
LOG_S = 5.0  # between lines elsewhere
BYTES_PER_MB = 1 << 20
ADVICE = (
    "WAL is read from the node's last checkpoint on; to shorten this, interrupt the command, run CHECKPOINT on "
    "the node and start again"
)


@dataclass(frozen=True, slots=True)
class ReadingProgress:
    """The WAL that is read before the first output, and a hint to make that shorter."""

    what: str
    advice: str


SINCE_CHECKPOINT = ReadingProgress("WAL since the last checkpoint", ADVICE)
OF_BACKUP = ReadingProgress(
    "WAL of the backup",
    "the WAL that the server wrote during the backup is read, since the catalogs are exact at its end; to "
    "shorten this, interrupt the command and use a backup that took less time",
)
BEFORE_FROM = ReadingProgress(
    "WAL before --from",
    "transactions that are open at --from began before it, so WAL is read from an earlier catalog base on; to "
    "shorten this, interrupt the command and give a later --from, or none",
)


class SeedProgress:
    """Prints the progress of a seed (`SeedObserver`), and interruptions of the stream."""

    def __init__(
        self,
        output: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
        reading: ReadingProgress = SINCE_CHECKPOINT,
    ) -> None:
        self._reported: tuple[FullXid, ...] | None = None
        self._replay = _ReplayLine(output or sys.stderr, now, reading)

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        """Name the transactions that the seed waits for, whenever they change."""
        del waited_s
        waited_for = tuple(blocker.xid for blocker in blockers)
        if waited_for != self._reported:
            self._reported = waited_for
            names = "; ".join(map(str, blockers)) or "none that this role can see"
            self._echo(f"waiting for older transactions to end: {names}")

    def replaying(self, start_lsn: Lsn, lsn: Lsn, end_lsn: Lsn) -> None:
        """Show how much of the WAL before the requested range has been read."""
        self._replay.show(lsn - start_lsn, end_lsn - start_lsn)

    def repeating(self, error: TidemarkError, attempt: int, attempts_max: int) -> None:
        """Print why the catalogs are read again."""
        self._echo(f"attempt {attempt} of {attempts_max} to read the catalogs failed, retrying: {error}")
        self._replay.restart()

    def on_disconnect(self, error: NodeUnreachable) -> None:
        """Print that the stream broke and is opened again."""
        self._echo(f"the stream was interrupted, reconnecting: {error}")

    def _echo(self, line: str) -> None:
        self._replay.clear()
        click.echo(line, err=True)


class _ReplayLine:
    """The progress in reading WAL: a line updated in place on a terminal, else lines at intervals."""

    def __init__(self, output: TextIO, now: Callable[[], float], reading: ReadingProgress) -> None:
        self._output = output
        self._reading = reading
        self._now = now
        self._in_place = output.isatty()
        self._advised = False
        self._shown = False  # on a terminal: the line is visible
        self.restart()

    def restart(self) -> None:
        """Restart at the first byte."""
        self._started_s: float | None = None
        self._written_s = 0.0
        self._start_bytes = 0

    def show(self, read_bytes: int, total_bytes: int) -> None:
        """Write the line if the interval has passed."""
        now_s = self._now()
        if self._started_s is None:
            self._started_s, self._start_bytes = now_s, read_bytes
            self._written_s = now_s + QUIET_S - self._every_s
        if read_bytes >= total_bytes:
            self.clear()
        elif now_s - self._written_s >= self._every_s:
            self._written_s = now_s
            self._write(self._line(read_bytes, total_bytes, now_s - self._started_s))

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._shown:
            self._shown = False
            self._output.write("\r\033[K")
            self._output.flush()

    @property
    def _every_s(self) -> float:
        return TERMINAL_S if self._in_place else LOG_S

    def _line(self, read_bytes: int, total_bytes: int, taken_s: float) -> str:
        rate = (read_bytes - self._start_bytes) / taken_s
        left = f", {(total_bytes - read_bytes) / rate:.0f} s left" if rate > 0 else ""
        done = f"{read_bytes // BYTES_PER_MB} of {total_bytes // BYTES_PER_MB} MB"
        return f"reading {self._reading.what}: {done}, {rate / BYTES_PER_MB:.0f} MB/s{left}"

    def _write(self, line: str) -> None:
        if not self._advised:
            self._advised = True
            self._output.write(f"{self._reading.advice}\n")
        self._output.write(f"\r{line}\033[K" if self._in_place else f"{line}\n")
        self._output.flush()
        self._shown = self._in_place
