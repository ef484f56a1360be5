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

Ages are by the clock of the store, which may differ from that of this host.

Not done here: `LakeTable.forget_files` removes data files.
"""

import json
import math
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from tidemark.io.host.logs import Log, describe_error
from tidemark.pipeline.delta_log.commit_files import LOG_FOLDER
from tidemark.pipeline.failures import first_reason
from tidemark.pipeline.storage.lake_store import StoredFile
from tidemark.pipeline.storage.store_errors import StoreUnavailable
from tidemark.pipeline.storage.stores import open_delta, store_of

KEEP_S = 600.0
EVERY_COMMITS = (
    100  # of a table, between two checks of its log: five checkpoints (`delta.checkpointInterval` in `lake`)
)
CHECKPOINT_BEHIND_MAX = 2 * EVERY_COMMITS  # commits since the last checkpoint; beyond this the cleanup writes one
# Limits of one run, in addition to the commits of the batch: with 1,000 tables in a batch logs would grow otherwise.
LISTED_MAX = 4  # logs listed: 0.1 s of CPU for one of 100,000 files
REMOVED_MAX = 1000  # files removed: 15 ms of CPU
FILES_PER_COMMIT = 2  # at most: the commit, and a checkpoint
LAST_CHECKPOINT = "_last_checkpoint"
_FILE = re.compile(r"(\d{20})\.(?:json(?:#\d+)?|crc|checkpoint\.parquet|(\d{20})\.compacted\.json)")
_COMMIT_FILE = re.compile(r"\d{20}\.json")
_CHECKPOINT, _CHECKPOINT_FILE = "{:020}.checkpoint.parquet", re.compile(r"(\d{20})\.checkpoint\.parquet")


@dataclass(slots=True)
class _DeltaLog:
    """What the cleanup remembers of one table's log."""

    path: str
    id: int  # a different one means that the folder was replaced
    recorded: int  # the version in `_positions`
    listed_at: int  # the version when it was last listed
    again_s: float  # when to list it again although it has few new commits
    removable: deque[StoredFile]


class LogCleanup:
    """Removes old commits from the logs of one lake; used by one thread."""

    def __init__(self, root: str, keep_s: float, log: Log) -> None:
        self.root = root
        self._store = store_of(root)
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
            except (OSError, DeltaError, StoreUnavailable, pa.ArrowException) as error:
                self._warn(folder, error)
        return self._remove(removed_max + FILES_PER_COMMIT * made)

    def forget(self, folder: str) -> None:
        """Remember nothing of a table that is not written any longer."""
        for remembered in (self._logs, self._due, self._full):
            remembered.pop(folder, None)

    def _record(self, folder: str, version: int) -> int:
        """Record the present version of a table; return the number of commits since the last record."""
        known = self._logs.get(folder)
        path = f"{self.root}/{folder}/{LOG_FOLDER}"
        try:
            number = self._store.folder_id(path)
        except OSError:
            return 0
        if known is None or known.id != number or version < known.recorded:
            self._logs[folder] = _DeltaLog(path, number, version, version, math.inf, deque())
            self._full.pop(folder, None)
            self._due[folder] = None
            return 0
        made, known.recorded = version - known.recorded, version
        if version // EVERY_COMMITS > known.listed_at // EVERY_COMMITS or time.monotonic() > known.again_s:
            self._due[folder] = None
        return made

    def _list(self, folder: str) -> None:
        log = self._logs[folder]
        files = self._store.files(log.path)
        log.listed_at = log.recorded
        base = self._base(log.path, files, log.recorded)
        removable = sorted(_below(files, base), key=lambda file: file.name)
        log.removable = deque(removable)
        left = len(files) - len(removable)
        log.again_s = time.monotonic() + self._keep_s if left > CHECKPOINT_BEHIND_MAX else math.inf
        if removable:
            self._sync(log.path, LAST_CHECKPOINT, _CHECKPOINT.format(base))
            self._store.sync_folder(log.path)
            self._full[folder] = None

    def _base(self, path: str, files: Iterable[StoredFile], recorded: int) -> int:
        """Return the version below which nothing is needed; 0 if there is none. Create a missing checkpoint."""
        last = last_checkpoint(path)
        if last is None or recorded - last > CHECKPOINT_BEHIND_MAX:
            open_delta(path.rpartition("/")[0]).create_checkpoint()  # becomes a base when it is old enough
            return 0
        self._sync(path, _CHECKPOINT.format(last))
        old_s = self._store.now_s() - self._keep_s
        checkpoints = {file.name: file.modified_s for file in files if _CHECKPOINT_FILE.fullmatch(file.name)}
        for name in sorted(checkpoints, reverse=True):
            version = int(name[:20])
            is_candidate = version <= min(last, recorded) and checkpoints[name] <= old_s
            if is_candidate and _is_readable(f"{path}/{name}"):
                return version
        return 0

    def _sync(self, folder: str, *names: str) -> None:
        self._store.sync_files([f"{folder}/{name}" for name in names])

    def _remove(self, most: int) -> int:
        """Remove up to `most` files that are marked as removable."""
        removed = 0
        for folder in list(self._full):
            log = self._logs[folder]
            while log.removable and removed < most:
                try:
                    old = self._oldest(log.removable, min(most - removed, self._store.deletes_at_once))
                    if not old:
                        log.removable.clear()  # NB: also none of the later ones: the log must not have gaps
                        break
                    self._store.delete([f"{log.path}/{file.name}" for file in old])
                except (OSError, StoreUnavailable) as error:
                    self._warn(folder, error)
                    log.removable.clear()
                    break
                for _ in old:
                    log.removable.popleft()
                removed += len(old)
            if not log.removable:
                del self._full[folder]
        return removed

    def _oldest(self, files: Iterable[StoredFile], most: int) -> Sequence[StoredFile]:
        """Return the first of `files`, up to the first that is too young."""
        old_s = self._store.now_s() - self._keep_s
        return list(takewhile(lambda file: file.modified_s <= old_s, islice(files, most)))

    def _warn(self, folder: str, error: Exception) -> None:
        fields = {**describe_error(error), "error": first_reason(str(error))}  # the whole text may have column values
        self._log.warning("commit log not cleaned", table=folder, **fields)


def keep_hours(keep_s: float) -> int:
    """Return for how many hours replaced data files are kept: a version without its files cannot be read."""
    return max(1, math.ceil(keep_s / 3600))


def _below(files: Iterable[StoredFile], base: int) -> Iterator[StoredFile]:
    """Return the commits, checkpoints and checksums of versions below `base`."""
    for file in files:
        found = _FILE.fullmatch(file.name)
        if found is not None and int(found[2] or found[1]) < base:
            yield file


def commit_version(name: str) -> int | None:
    """Return the version of the commit in a file of a commit log; None for other files."""
    return int(name[:20]) if _COMMIT_FILE.fullmatch(name) else None


def last_checkpoint(path: str) -> int | None:
    """Return the version that `_last_checkpoint` names, if that is a readable checkpoint in one file."""
    try:
        named = json.loads(store_of(path).read(f"{path}/{LAST_CHECKPOINT}"))
        version = int(named["version"])
    except (OSError, ValueError, KeyError, TypeError, StoreUnavailable):
        return None
    return version if _is_readable(f"{path}/{_CHECKPOINT.format(version)}") else None


def _is_readable(checkpoint: str) -> bool:
    """Return whether a checkpoint can be read: a truncated Parquet file has no footer."""
    try:
        return bool(pq.read_metadata(store_of(checkpoint).parquet_source(checkpoint)).num_rows)
    except (OSError, pa.ArrowException, StoreUnavailable):
        return False
