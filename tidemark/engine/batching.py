"""When the application thread delivers: at once after a quiet moment, otherwise at a bounded rate. Time is an argument.

A delivery costs far more than a commit in it: a transaction of LMDB, wake-ups, metrics. At a bounded rate, the commits
that arrive meanwhile are delivered together, so the cost of a delivery does not grow with the commit rate.
"""

from dataclasses import dataclass

from tidemark.engine.host_load import HostLoad

BURST = 8  # deliveries that pass without a wait after a quiet moment; commits at less than the rate come in bursts
BUSY_KNOWN_S = 5.0  # after the last delivery
SPACING_S = 0.001  # between two deliveries, also in a burst: two commits together cost little more than one


@dataclass(slots=True)
class DeliveryPacing:
    """A rate limit with a burst: each delivery moves its schedule by one interval, and may run ahead by the burst.

    A commit that arrives within `SPACING_S` after a delivery waits until then, or for `linger_s` if that is shorter.
    The schedule is never further ahead than the burst and `linger_s`: deliveries may be faster than the rate, because
    full groups do not wait and the others do not wait longer than that.

    While the host is busy, `busy_linger_s` takes the place of the spacing, and of `linger_s` if that is shorter and not
    0: the host's other processes, PostgreSQL first, need the CPU time of the deliveries.
    """

    rate_max: float  # deliveries a second; 0: no limit
    linger_s: float  # no delivery waits longer, whatever the rate, unless the host is busy; 0: none waits
    busy_linger_s: float = 0.0
    load: HostLoad | None = None  # None: the host is never busy
    _scheduled_s: float = 0.0
    _last_s: float = 0.0  # of the last delivery

    def wait_s(self, now_s: float) -> float:
        """Return how long changes are still collected before the next delivery, in seconds; 0 to deliver at once."""
        if not self.rate_max:
            return 0.0
        linger_s, spacing_s = self.linger_s, SPACING_S
        load = self.load
        if load is not None and load.is_busy and linger_s:  # NB: not by the property: each delivery comes here
            linger_s = max(linger_s, self.busy_linger_s)
            spacing_s = max(spacing_s, self.busy_linger_s)
        ahead_s = self._scheduled_s - now_s - BURST / self.rate_max
        spaced_s = self._last_s + min(spacing_s, linger_s) - now_s
        return min(max(0.0, ahead_s, spaced_s), linger_s)

    @property
    def is_busy(self) -> bool:
        """Whether the host is busy, by the last measurement."""
        return self.load is not None and self.load.is_busy

    def is_busy_at(self, now_s: float) -> bool:
        """Return whether the host is busy, as far as known: without deliveries nothing is measured."""
        return self.is_busy and now_s - self._last_s <= BUSY_KNOWN_S

    def delivered(self, now_s: float) -> None:
        """Count a delivery."""
        if self.rate_max:
            scheduled_s = max(self._scheduled_s, now_s) + 1 / self.rate_max
            self._scheduled_s = min(scheduled_s, now_s + BURST / self.rate_max + self.linger_s)
            self._last_s = now_s
            if self.load is not None and now_s >= self.load.due_s:
                self.load.measure(now_s)
