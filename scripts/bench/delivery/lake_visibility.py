"""When each change became visible in a lake, read from its commit logs afterwards: the pipeline is not slowed down.

A commit becomes visible when its file gets its name (link(2)), which sets the file's time of change; the resolution
is that of the kernel's clock for files, a few milliseconds.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

Times = npt.NDArray[np.float64]
"""Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class VisibleChanges:
    """The changes of some tables: when each was committed at the source, and from commit to log and to both."""

    committed_s: Times
    log_s: Times
    both_s: Times  # visible in log and replica

    def within(self, begin_s: float, end_s: float) -> "VisibleChanges":
        """Return the changes that were committed in a window."""
        inside = (self.committed_s >= begin_s) & (self.committed_s < end_s)
        return VisibleChanges(self.committed_s[inside], self.log_s[inside], self.both_s[inside])


def visible_changes(tables: list[Path]) -> VisibleChanges:
    """Return the changes in the logs of tables; `tables` are their folders in the lake."""
    committed, in_log, in_replica = [], [], []
    for table in tables:
        lsns, visible_s = _replica_commits(table / "replica")
        for commit in _commits(table / "log"):
            for name in commit.added:
                rows = pq.read_table(table / "log" / name, columns=["_commit_time", "_commit_lsn"])
                times = rows.column("_commit_time").cast("int64").to_numpy() / 1e6
                first = np.searchsorted(lsns, rows.column("_commit_lsn").to_numpy(), "left")
                known = first < len(lsns)  # the last changes may still be under way
                committed.append(times[known])
                in_log.append(np.full(int(known.sum()), commit.visible_s))
                in_replica.append(visible_s[first[known]])
    if not committed:
        nothing = np.zeros(0)
        return VisibleChanges(nothing, nothing, nothing)
    begun, log_s, replica_s = map(np.concatenate, (committed, in_log, in_replica))
    return VisibleChanges(begun, log_s - begun, np.maximum(log_s, replica_s) - begun)


@dataclass(frozen=True, slots=True)
class _LogVersion:
    visible_s: float
    lsn: int
    added: list[str]


def _replica_commits(table: Path) -> tuple[npt.NDArray[np.int64], Times]:
    """Return up to which commit LSN each version contains all changes, ascending, and when it became visible."""
    commits = list(_commits(table))
    return np.array([one.lsn for one in commits], np.int64), np.array([one.visible_s for one in commits])


def _commits(table: Path) -> Iterator[_LogVersion]:
    """Yield the commits that state a position, by version."""
    for path in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        lsns = [one["txn"]["version"] for one in actions if "txn" in one and one["txn"]["appId"].endswith(":lsn")]
        added = [one["add"]["path"] for one in actions if "add" in one and one["add"]["dataChange"]]
        if lsns:
            yield _LogVersion(path.stat().st_ctime, lsns[0], added)
