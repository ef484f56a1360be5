"""Whether the host is busy: its tasks wait for a CPU. Time is an argument.

The measure is the share of time in which at least one runnable task of the host waited for a CPU, Linux's pressure
stall information (its line `some`). The share of idle time would be an average over all CPUs and say less.
"""

from collections.abc import Callable

WINDOW_S = 0.5  # at least, between two readings
BUSY_FROM = 0.5  # the share at which the host becomes busy
BUSY_UNTIL = 0.3  # the share below which it is no longer busy


class HostLoad:
    """The busy state of the host, from readings of a counter."""

    def __init__(self, waited_s: Callable[[], float | None]) -> None:
        """Use `waited_s`: for how long, in all, some task has waited for a CPU; None: unknown, the host is not busy."""
        self.is_busy = False
        self.due_s = 0.0  # when the next reading is due
        self._waited_s = waited_s
        self._last: tuple[float, float] | None = None  # time and value of the last reading

    def measure(self, now_s: float) -> None:
        """Read the counter; the time since the last reading decides whether the host is busy."""
        self.due_s = now_s + WINDOW_S
        waited_s, before = self._waited_s(), self._last
        self._last = None if waited_s is None else (now_s, waited_s)
        if waited_s is None or before is None or now_s <= before[0]:
            self.is_busy = False
        else:
            share = (waited_s - before[1]) / (now_s - before[0])
            self.is_busy = share >= (BUSY_UNTIL if self.is_busy else BUSY_FROM)
