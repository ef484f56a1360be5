"""Keeps commit logs short: removes commits of the lake's tables that are not needed, a bounded number at a time.

delta-rs lists the whole folder of commits when it opens a table and several times for each commit, so a commit costs
7 ms of CPU more for every 1,000 files there (measured with deltalake 1.6.6). A table makes one or two commits a second.

A *base* is a checkpoint that replaces all commits before it. Files below a base are removed, oldest first, if
* the base is not above the version that `_positions` records for the table, so no commit after that one is removed;
* the base is older than `keep_s`: every version that was the newest one at some moment since then can still be read,
  and a reader that began with an older checkpoint had that long to finish;
* each removed file itself is older than `keep_s`;
* the base and `_last_checkpoint` have been synced to disk, and the checkpoint that this names can be read.
A crash between any two removals therefore leaves a table that opens from the base.

Not done here: `LakeTable.forget_files` removes data files. Object stores are not supported.
"""

import json
import math
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.io.host.logs import Log, describe_error
from tidemark.pipeline.failures import first_reason

KEEP_S = 600.0
EVERY_COMMITS = (
    100  # of a table, between two checks of its log: five checkpoints (`delta.checkpointInterval` in `lake`)
)
CHECKPOINT_BEHIND_MAX = 2 * EVERY_COMMITS  # commits since the last checkpoint; beyond this the cleanup writes one
# Limits of one run, in addition to the commits of the batch: with 1,000 tables in a batch logs would grow otherwise.
LISTED_MAX = 4  # logs listed: 0.1 s of CPU for one of 100,000 files
REMOVED_MAX = 1000  # files removed: 15 ms of CPU
FILES_PER_COMMIT = 2  # at most: the commit, and a checkpoint
LOG_FOLDER, LAST_CHECKPOINT = "_delta_log", "_last_checkpoint"
_FILE = re.compile(r"(\d{20})\.(?:json(?:#\d+)?|crc|checkpoint\.parquet|(\d{20})\.compacted\.json)")
_CHECKPOINT, _CHECKPOINT_FILE = "{:020}.checkpoint.parquet", re.compile(r"(\d{20})\.checkpoint\.parquet")


@dataclass(slots=True)
class _DeltaLog:
    """What the cleanup remembers of one table's log."""

    path: Path
    inode: int  # a different inode means that the folder was replaced
    recorded: int  # the version in `_positions`
    listed_at: int  # the version when it was last listed
    again_s: float  # when to list it again although it has few new commits
    removable: deque[str]


class LogCleanup:
    """Removes old commits from the logs of one lake; used by one thread."""

    def __init__(self, root: str, keep_s: float, log: Log) -> None:
        self.root = Path(root)
        self._keep_s = keep_s
        self._log = log
        self._logs: dict[str, _DeltaLog] = {}
        self._due: dict[str, None] = {}
        self._full: dict[str, None] = {}  # logs with removable files
        self._unlisted = 0  # commits that have not yet caused a listing

    def run(self, written: Iterable[tuple[str, int]], removed_max: int = REMOVED_MAX) -> int:
        """Do a bounded part of the work; return the number of removed files.

        `written` are the tables that the last batch wrote: folder below the lake's root, and the version that
        `_positions` records. A table without writes needs no work.
        """
        made = sum(self._record(folder, version) for folder, version in written)
        listed_max, self._unlisted = divmod(self._unlisted + made, EVERY_COMMITS)
        for folder in list(self._due)[: LISTED_MAX + listed_max]:
            del self._due[folder]
            try:
                self._list(folder)
            except FileNotFoundError:
                del self._logs[folder]  # the table was removed
                self._full.pop(folder, None)
            except (OSError, DeltaError, pa.ArrowException) as error:
                self._warn(folder, error)
        return self._remove(removed_max + FILES_PER_COMMIT * made)

    def _record(self, folder: str, version: int) -> int:
        """Record the present version of a table; return the number of commits since the last record."""
        known = self._logs.get(folder)
        path = self.root / folder / LOG_FOLDER
        try:
            inode = path.stat().st_ino
        except OSError:
            return 0
        if known is None or known.inode != inode or version < known.recorded:
            self._logs[folder] = _DeltaLog(path, inode, version, version, math.inf, deque())
            self._full.pop(folder, None)
            self._due[folder] = None
            return 0
        made, known.recorded = version - known.recorded, version
        if version // EVERY_COMMITS > known.listed_at // EVERY_COMMITS or time.monotonic() > known.again_s:
            self._due[folder] = None
        return made

    def _list(self, folder: str) -> None:
        log = self._logs[folder]
        names = [path.name for path in log.path.iterdir()]
        log.listed_at = log.recorded
        base = self._base(log.path, names, log.recorded)
        removable = sorted(_below(names, base))
        log.removable = deque(removable)
        left = len(names) - len(removable)
        log.again_s = time.monotonic() + self._keep_s if left > CHECKPOINT_BEHIND_MAX else math.inf
        if removable:
            _sync(log.path / LAST_CHECKPOINT, log.path / _CHECKPOINT.format(base), log.path)
            self._full[folder] = None

    def _base(self, path: Path, names: Iterable[str], recorded: int) -> int:
        """Return the version below which nothing is needed; 0 if there is none. Create a missing checkpoint."""
        last = last_checkpoint(path)
        if last is None or recorded - last > CHECKPOINT_BEHIND_MAX:
            DeltaTable(str(path.parent)).create_checkpoint()  # becomes a base when it is old enough
            return 0
        _sync(path / _CHECKPOINT.format(last))
        versions = (int(found[1]) for found in map(_CHECKPOINT_FILE.fullmatch, names) if found is not None)
        for version in sorted(versions, reverse=True):
            checkpoint = path / _CHECKPOINT.format(version)
            if version <= min(last, recorded) and self._is_old(checkpoint) and _is_readable(checkpoint):
                return version
        return 0

    def _remove(self, most: int) -> int:
        """Remove up to `most` files that are marked as removable."""
        removed = 0
        for folder in list(self._full):
            log = self._logs[folder]
            while log.removable and removed < most:
                path = log.path / log.removable[0]
                try:
                    if not self._is_old(path):
                        log.removable.clear()  # NB: also none of the later ones: the log must not have gaps
                        break
                    path.unlink()
                except FileNotFoundError:
                    pass
                except OSError as error:
                    self._warn(folder, error)
                    log.removable.clear()
                    break
                log.removable.popleft()
                removed += 1
            if not log.removable:
                del self._full[folder]
        return removed

    def _warn(self, folder: str, error: Exception) -> None:
        fields = {**describe_error(error), "error": first_reason(str(error))}  # the whole text may have column values
        self._log.warning("commit log not cleaned", table=folder, **fields)

    def _is_old(self, path: Path) -> bool:
        return path.stat().st_mtime <= time.time() - self._keep_s


def keep_hours(keep_s: float) -> int:
    """Return for how many hours replaced data files are kept: a version without its files cannot be read."""
    return max(1, math.ceil(keep_s / 3600))


def _below(names: Iterable[str], base: int) -> Iterator[str]:
    """Return the names of commits, checkpoints and checksums of versions below `base`."""
    for name in names:
        found = _FILE.fullmatch(name)
        if found is not None and int(found[2] or found[1]) < base:
            yield name


def last_checkpoint(path: Path) -> int | None:
    """Return the version that `_last_checkpoint` names, if that is a readable checkpoint in one file."""
    try:
        named = json.loads((path / LAST_CHECKPOINT).read_bytes())
        version = int(named["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if _is_readable(path / _CHECKPOINT.format(version)) else None


def _is_readable(checkpoint: Path) -> bool:
    """Return whether a checkpoint can be read: a truncated Parquet file has no footer."""
    try:
        return bool(pq.read_metadata(checkpoint).num_rows)
    except (OSError, pa.ArrowException):
        return False


def _sync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
