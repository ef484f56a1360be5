"""A clock that a test advances."""


class HandClock:
    """Both clocks of `tidemark.engine.ports.Clock`."""

    def __init__(self, now_us: int = 0) -> None:
        self.now_s = 1000.0
        self.now_us = now_us

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        return self.now_us
