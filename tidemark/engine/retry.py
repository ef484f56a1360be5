"""Back-off with a limit: when to try again, and how often. Time is an argument; nothing here waits."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Delays that double from `first_s` up to `max_s`, and start again after a success."""

    first_s: float = 0.3
    max_s: float = 10.0
    failures: int = 0
    _not_before_s: float = 0.0

    def failed(self, now_s: float) -> float:
        """Record a failure; return the seconds to wait."""
        # NB: the exponent is bounded, or a week without a node would overflow a float.
        delay_s = min(self.max_s, self.first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        self._not_before_s = now_s + delay_s
        return delay_s

    def succeeded(self) -> None:
        """Record a success."""
        self.failures = 0
        self._not_before_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Return the remaining seconds to wait."""
        return max(0.0, self._not_before_s - now_s)


@dataclass(slots=True)
class RetryPolicy:
    """A bounded number of attempts after a failure, with back-off; a success resets the number."""

    retries_max: int
    backoff: Backoff = field(default_factory=Backoff)

    def failed(self, now_s: float) -> float | None:
        """Record a failure; return the seconds to wait before the next attempt, None if none is left."""
        if self.backoff.failures >= self.retries_max:
            return None
        return self.backoff.failed(now_s)

    def succeeded(self) -> None:
        """Record a success."""
        self.backoff.succeeded()
