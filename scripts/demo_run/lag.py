"""How long a commit takes to reach the outbox, and the lake; measured from outside, by who delivers.

Ten times a second the node's flush LSN is noted with the time; when outbox or lake hold that LSN, the difference is a
lag. So the figures are spread evenly over the time. One that began and ended in the same mode, with nothing killed
meanwhile, belongs to that mode; all others are told apart.
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

RECENT = 100  # lags: ten seconds of them
Landed = Callable[[], Lsn | None]


class During(Enum):
    """What a lag is a lag of."""

    REALTIME = "realtime"
    ARCHIVE = "archive"
    DISTURBED = "around start, switch, kill"


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the node was at some moment, and what was the case."""

    at_s: float
    lsn: Lsn
    mode: Mode
    disturbances: int


@dataclass(slots=True)
class Arrivals:
    """The lags up to one place."""

    landed: Landed  # up to which LSN it holds everything, if it holds anything
    lags_s: dict[During, list[float]] = field(default_factory=lambda: {during: [] for during in During})
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _waiting: deque[_Mark] = field(default_factory=deque)

    def expect(self, mark: _Mark) -> None:
        """Wait for a mark."""
        self._waiting.append(mark)

    def settle(self, mode: Mode, disturbances: int, *, everything: bool) -> None:
        """Count what has arrived by now."""
        now_s = time.monotonic()
        landed = self.landed() or INVALID_LSN
        while self._waiting and (everything or self._waiting[0].lsn <= landed):
            mark = self._waiting.popleft()
            lag_s = now_s - mark.at_s
            calm = mark.mode is mode and mark.disturbances == disturbances and not disturbances % 2
            self.lags_s[During(mode.value) if calm else During.DISTURBED].append(lag_s)
            self.recent_s.append(lag_s)


class LagWatch:
    """Call `look` ten times a second."""

    def __init__(self, dsn: str, mode: Callable[[], Mode], *, outbox: Landed, lake: Landed) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._mode = mode
        self._disturbances = 0  # begun and ended ones: odd while one lasts
        self.outbox = Arrivals(outbox)
        self.lake = Arrivals(lake)

    def look(self) -> None:
        """Note where the node is, and settle what has arrived."""
        mark = _Mark(time.monotonic(), self.flush_lsn(), self._mode(), self._disturbances)
        for place in (self.outbox, self.lake):
            place.expect(mark)
        self.settle()

    def settle(self, *, everything: bool = False) -> None:
        """Count what has arrived; `everything`, if both places are known to hold all that there is."""
        for place in (self.outbox, self.lake):
            place.settle(self._mode(), self._disturbances, everything=everything)

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """Let what is under way while something is dead count apart."""
        self._disturbances += 1
        yield
        self._disturbances += 1

    def flush_lsn(self) -> Lsn:
        """Ask the node up to where its WAL is safe."""
        row = self._connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return parse_lsn(row[0])

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def quantile(values: list[float], share: float) -> float:
    """Return the value below which `share` of them lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
