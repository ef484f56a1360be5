"""Measures the time from a commit to the outbox and to the lake from outside, for each mode of delivery.

Ten times a second the node's flush LSN is recorded with the time; when outbox or lake contain that LSN, the difference
is a lag. The samples are therefore spread evenly over time. A sample that begins and ends in the same mode, without a
kill in between, counts for that mode; all others are counted separately.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

import psycopg

from tidemark.model.lsn import INVALID_LSN, Lsn, parse_lsn
from tidemark.model.mode import Mode

RECENT = 100  # number of lags: ten seconds
Landed = Callable[[], Lsn | None]


class During(Enum):
    """The period to which a lag belongs."""

    REALTIME = "realtime"
    ARCHIVE = "archive"
    DISTURBED = "around start, switch, kill"


@dataclass(frozen=True, slots=True)
class _LagMark:
    """The node's position and the mode at one moment."""

    at_s: float
    lsn: Lsn
    mode: Mode
    disturbances: int


@dataclass(slots=True)
class DestinationLags:
    """The lags up to one destination."""

    landed: Landed  # the LSN up to which it is complete; None if it is empty
    lags_s: dict[During, list[float]] = field(default_factory=lambda: {during: [] for during in During})
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _waiting: deque[_LagMark] = field(default_factory=deque)

    def expect(self, mark: _LagMark) -> None:
        """Add a mark to wait for."""
        self._waiting.append(mark)

    def settle(self, mode: Mode, disturbances: int, *, everything: bool) -> None:
        """Count the marks that have arrived."""
        now_s = time.monotonic()
        landed = self.landed() or INVALID_LSN
        while self._waiting and (everything or self._waiting[0].lsn <= landed):
            mark = self._waiting.popleft()
            lag_s = now_s - mark.at_s
            calm = mark.mode is mode and mark.disturbances == disturbances and not disturbances % 2
            self.lags_s[During(mode.value) if calm else During.DISTURBED].append(lag_s)
            self.recent_s.append(lag_s)


class LagWatch:
    """Measures the lags; `look` must be called ten times a second."""

    def __init__(self, dsn: str, mode: Callable[[], Mode], *, outbox: Landed, lake: Landed) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._mode = mode
        self._disturbances = 0  # starts and ends: odd during a disturbance
        self.outbox = DestinationLags(outbox)
        self.lake = DestinationLags(lake)

    def look(self) -> None:
        """Record the node's position, and count what has arrived."""
        mark = _LagMark(time.monotonic(), self.flush_lsn(), self._mode(), self._disturbances)
        for place in (self.outbox, self.lake):
            place.expect(mark)
        self.settle()

    def settle(self, *, everything: bool = False) -> None:
        """Count what has arrived; `everything`: both destinations are complete."""
        for place in (self.outbox, self.lake):
            place.settle(self._mode(), self._disturbances, everything=everything)

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """Count separately all samples that overlap with this context, in which a process is dead."""
        self._disturbances += 1
        yield
        self._disturbances += 1

    def flush_lsn(self) -> Lsn:
        """Return the node's flush LSN."""
        row = self._connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return parse_lsn(row[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def quantile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
