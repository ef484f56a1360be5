"""How long a commit takes to be visible in the lake, measured from outside: the node's clock against the lake's word.

Ten times a second the node's flush LSN is noted with the time; when the lake says that it holds that LSN, the
difference is a lag. So the figures are spread evenly over the time, kills and restarts included.
"""

import time
from collections import deque
from collections.abc import Callable

import psycopg

from tidemark.model.lsn import INVALID_LSN, Lsn, parse_lsn

RECENT = 100  # lags: ten seconds of them


class LagWatch:
    """Call `look` ten times a second."""

    def __init__(self, dsn: str, landed: Callable[[], Lsn | None]) -> None:
        """`landed` returns up to which LSN the lake holds everything, if it holds anything."""
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._landed = landed
        self._waiting: deque[tuple[float, Lsn]] = deque()
        self.lags_s: list[float] = []

    def look(self) -> None:
        """Note where the node is, and settle what the lake has reached."""
        row = self._connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        self._waiting.append((time.monotonic(), parse_lsn(row[0])))
        self.settle()

    def settle(self, *, everything: bool = False) -> None:
        """Count what the lake has reached; `everything`, if the lake is known to hold all that there is."""
        now_s = time.monotonic()
        landed = self._landed() or INVALID_LSN
        while self._waiting and (everything or self._waiting[0][1] <= landed):
            self.lags_s.append(now_s - self._waiting.popleft()[0])

    def recent(self) -> str:
        """Return the median of the last ten seconds."""
        return f"{quantile(self.lags_s[-RECENT:], 0.5):.1f} s" if self.lags_s else "-"

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def quantile(values: list[float], share: float) -> float:
    """Return the value below which `share` of them lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
