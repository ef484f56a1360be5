"""Makes the files of commits durable, so that a power loss takes nothing back that the outbox no longer contains.

A commit of Tidemark is written in this order: the data files are synced to disk, then their folder, then the file of
the commit under another name; the commit becomes visible, and its folder is synced. After a power loss at any moment, a
visible commit is therefore complete. delta-rs syncs nothing: its commits, and those of other writers, are synced here
when they are found, before anything is written after them. `_positions` is written when all commits of the tables that
it names are durable, and the outbox is confirmed when `_positions` is.

Not synced: removals of files, which may be repeated.
"""

import json
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from tidemark.pipeline.delta_log.commit_files import CHECKPOINT_EVERY, commit_path

SYNCED_AT_ONCE = 8  # files: a journal of the file system commits what several threads wait for together


def sync_data_files(uri: str, names: Collection[str]) -> None:
    """Make data files of the table at `uri` durable, and their entries in the table's folder; raises `OSError`.

    `names` are paths as in the log: relative to the table, percent-encoded.
    """
    if not names:
        return
    paths = [f"{uri}/{unquote(name)}" for name in names]
    if len(paths) == 1:
        sync_file(paths[0])
    else:
        with ThreadPoolExecutor(min(len(paths), SYNCED_AT_ONCE), "tidemark-sync") as pool:
            list(pool.map(sync_file, paths))
    for folder in {os.path.dirname(path) for path in paths}:  # noqa: PTH120 - called in each commit
        sync_folder(folder)


def sync_commit(uri: str, version: int) -> None:
    """Make a commit of the table at `uri` durable that another program wrote; files that are gone are left out."""
    path = commit_path(uri, version)
    with suppress(FileNotFoundError):
        sync_data_files(uri, _added_files(Path(path)))
        sync_file(path)
        sync_folder(os.path.dirname(path))  # noqa: PTH120
        if not version:
            _sync_parents(Path(uri))
        elif version % CHECKPOINT_EVERY == 0:
            sync_checkpoint(uri, version)


def sync_checkpoint(uri: str, version: int) -> None:
    """Make a checkpoint durable if there is one of this version, and the file that names it."""
    folder = os.path.dirname(commit_path(uri, version))  # noqa: PTH120
    with suppress(FileNotFoundError):
        sync_file(f"{folder}/{version:020}.checkpoint.parquet")
        sync_file(f"{folder}/_last_checkpoint")
        sync_folder(folder)


def sync_file(path: str) -> None:
    """Make the content of a file durable; raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Make the entries of a folder durable; raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _added_files(commit: Path) -> Sequence[str]:
    """Return the data files of the table's own folder that a commit adds; none if its actions cannot be read."""
    found = []
    with suppress(ValueError):
        for line in commit.read_text(encoding="utf-8").split("\n"):
            action = json.loads(line) if line.startswith('{"add"') else {}
            name = action["add"]["path"] if action else ""
            if name and "://" not in name and (commit.parents[1] / unquote(name)).exists():
                found.append(name)
    return found


def _sync_parents(path: Path) -> None:
    """Make the folders above a new table durable, as far as this user may read them."""
    with suppress(PermissionError):
        for parent in [path, *path.parents]:
            sync_folder(str(parent))
