"""The deadline of a start, which its long steps check: the wait for transactions, the replay, attempts to connect."""

from collections.abc import Sequence
from dataclasses import replace

from tidemark.engine.ports import Clock
from tidemark.io.node.dsn import CONNECT_TIMEOUT_S, with_connect_timeout
from tidemark.io.node.node import Blocker
from tidemark.io.process.config import Config
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Lsn, format_lsn

CONNECT_S_MIN = 2  # libpq takes a shorter time-out as this one


class StartTimedOut(TidemarkError):
    """A start that took longer than its limit; everything that it opened is released."""

    hint = "the error names the step that took long; raise start_within_s if it needs the time"


class StartDeadline:
    """Implements `SeedObserver` of `tidemark.runtime.seed.seeding`: a report after the deadline ends the seed."""

    def __init__(self, within_s: float, clock: Clock) -> None:
        self._within_s = within_s
        self._clock = clock
        self._until_s = clock.monotonic_s() + within_s

    def bounded(self, config: Config) -> Config:
        """Return the configuration of the start: no connection attempt outlasts the deadline."""
        connect_s = max(CONNECT_S_MIN, int(min(CONNECT_TIMEOUT_S, self._within_s)))
        dsn = with_connect_timeout(config.capture.dsn, connect_s)
        return replace(config, capture=replace(config.capture, dsn=dsn))

    def check(self, step: str) -> None:
        """Raise `StartTimedOut` after the deadline."""
        if self._clock.monotonic_s() >= self._until_s:
            raise StartTimedOut(f"the start took longer than {self._within_s:g} s: {step}")

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        """Check the deadline once a second, during a wait for older transactions."""
        names = "; ".join(map(str, blockers)) or "none that this role can see"
        self.check(f"it has waited {waited_s:.0f} s for older transactions: {names}")

    def replaying(self, start_lsn: Lsn, lsn: Lsn, end_lsn: Lsn) -> None:
        """Check the deadline during the replay."""
        del start_lsn
        self.check(f"it has replayed WAL up to {format_lsn(lsn)} of {format_lsn(end_lsn)}")

    def repeating(self, error: TidemarkError, attempt: int, attempts_max: int) -> None:
        """Check the deadline before another attempt."""
        self.check(f"attempt {attempt} of {attempts_max} to read the catalogs failed: {error}")
