"""Finds the logs and replicas that lag: their writes delay the other tables in batch after batch.

A batch ends when all of its tables are written, so one slow table delays all. A log or replica *lags* if its writes
took longer than a limit and far longer than those of any other table in a number of successive batches. It is then
paused alone, as one that cannot be written is. A batch in which no other table changes delays no other table.
"""

import time
from collections.abc import Callable, Sequence
from heapq import nlargest

from tidemark.pipeline.sinks.targets.targets import Outcome, TargetTable
from tidemark.pipeline.sinks.waiting import StoredItem
from tidemark.pipeline.storage.turns import waited_s

SLOW_BATCHES = 3  # in succession: one large transaction, or a long checkpoint of the disk, is no lag
TIMES_OTHERS = 4  # how many times longer than the longest write of another table


class SlowWrites:
    """The times of the writes of one lake."""

    def __init__(self, slow_s: float) -> None:
        """`slow_s`: the limit in seconds; 0: no table lags."""
        self._slow_s = slow_s
        self._seconds: dict[str, float] = {}
        self._slow: dict[str, int] = {}  # by URI: batches in succession

    def timed(
        self,
        write: Callable[[TargetTable, Sequence[StoredItem]], Outcome],
        target: TargetTable,
        items: Sequence[StoredItem],
    ) -> Outcome:
        """Write `items` and record how long it took, without waiting for other tables; called by several threads."""
        begun_s = time.monotonic() - waited_s()
        outcome = write(target, items)
        if items:
            self.record(target.uri, time.monotonic() - waited_s() - begun_s)
        return outcome

    def record(self, uri: str, seconds: float) -> None:
        """Record the write of a log or replica in the present batch."""
        self._seconds[uri] = seconds

    def end_batch(self) -> dict[str, str]:
        """Return the logs and replicas that lag after this batch, by URI, each with the reason."""
        seconds, self._seconds = self._seconds, {}
        longest: dict[str, float] = {}
        for uri, taken_s in seconds.items():
            longest[_table(uri)] = max(taken_s, longest.get(_table(uri), 0.0))
        if len(longest) < 2:
            return {}
        slowest, second = nlargest(2, longest, key=lambda table: longest[table])
        found = {}
        for uri, taken_s in seconds.items():
            others_s = longest[slowest if _table(uri) != slowest else second]
            is_slow = 0 < self._slow_s < taken_s and taken_s > TIMES_OTHERS * others_s
            self._slow[uri] = self._slow.get(uri, 0) + 1 if is_slow else 0
            if self._slow[uri] >= SLOW_BATCHES:
                del self._slow[uri]
                found[uri] = (
                    f"it lags: {SLOW_BATCHES} batches in succession waited for it, the last one {taken_s:.1f} s, and "
                    f"at most {others_s:.1f} s for any other table"
                )
        return found


def _table(uri: str) -> str:
    """Return the folder of the table to which a log or replica belongs."""
    return uri.rpartition("/")[0]
