"""A clock that a test advances."""


class HandClock:
    """Stands still until a test sets it (`tidemark.engine.ports.Clock`)."""

    def __init__(self, now_us: int = 0) -> None:
        self.now_s = 1000.0
        self.now_us = now_us

    def monotonic_s(self) -> float:
        """Return the seconds that the test has set."""
        return self.now_s

    def wall_us(self) -> int:
        """Return the wall time that the test has set."""
        return self.now_us
