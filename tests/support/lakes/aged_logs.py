"""Tables whose commit logs are as long as after days: the commits are written by hand in Tidemark's format."""

import json
import os
from pathlib import Path

from deltalake import DeltaTable

LOG_FOLDER = "_delta_log"
_REPEATED = ("commitInfo", "txn")


def commit_path(table: Path, version: int) -> Path:
    """Return the file of a commit."""
    return table / LOG_FOLDER / f"{version:020}.json"


def checkpoint_path(table: Path, version: int) -> Path:
    """Return the file of a checkpoint."""
    return table / LOG_FOLDER / f"{version:020}.checkpoint.parquet"


def lengthen(table: Path, commits: int, *, checkpoint_every: int = 0, after_checkpoint: int = 0) -> int:
    """Add commits that change no data, each like the last one of the table; return the new version.

    A checkpoint is written at a fixed interval of commits, and one before the last `after_checkpoint` commits.
    """
    first = DeltaTable(str(table)).version() + 1
    last = commit_path(table, first - 1).read_text().splitlines()
    text = "\n".join(line for line in last if next(iter(json.loads(line))) in _REPEATED)
    for version in range(first, first + commits):
        commit_path(table, version).write_text(text)
        made = version - first + 1
        last_at = commits - after_checkpoint
        if made == last_at or (made < last_at and checkpoint_every and not made % checkpoint_every):
            DeltaTable(str(table)).create_checkpoint()
    return first + commits - 1


def age(table: Path, seconds: float, *, up_to: int | None = None) -> None:
    """Make all files of the log, or those of versions up to `up_to`, older by this number of seconds."""
    for path in (table / LOG_FOLDER).iterdir():
        if up_to is None or (path.name[:20].isdigit() and int(path.name[:20]) <= up_to):
            stat = path.stat()
            os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


def versions(table: Path) -> list[int]:
    """Return the versions whose commit files exist."""
    return sorted(int(path.stem) for path in (table / LOG_FOLDER).glob("*.json") if path.stem.isdigit())
