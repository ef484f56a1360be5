"""Makes the files of commits durable, so that a power loss takes nothing back that the outbox no longer contains.

A commit of Tidemark is written in this order: the data files are synced to disk, then their folder, then the file of
the commit under another name; the commit becomes visible, and its folder is synced. After a power loss at any moment, a
visible commit is therefore complete. delta-rs syncs nothing: its commits, and those of other writers, are synced here
when they are found, before anything is written after them. `_positions` is written when all commits of the tables that
it names are durable, and the outbox is confirmed when `_positions` is.

Not synced: removals of files, which may be repeated. An object store acknowledges what is durable: nothing is synced
there, and commits are not read for it.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from urllib.parse import unquote

from tidemark.pipeline.delta_log.commit_files import CHECKPOINT_EVERY, LOG_FOLDER, commit_path
from tidemark.pipeline.storage.stores import is_remote, store_of


def sync_data_files(uri: str, names: Collection[str]) -> None:
    """Make data files of the table at `uri` durable, and their entries in its folders; raises `OSError`.

    `names` are paths as in the log: relative to the table, percent-encoded.
    """
    if not names:
        return
    store, relative = store_of(uri), [unquote(name) for name in names]
    store.sync_files([f"{uri}/{name}" for name in relative])
    for folder in {folder for name in relative for folder in _folders(name)}:
        store.sync_folder(f"{uri}/{folder}")


def _folders(name: str) -> Iterator[str]:
    """Yield the folders above a data file, up to that of the table: a partition may be new."""
    end = len(name)
    while end > 0:
        end = max(0, name.rfind("/", 0, end))
        yield name[:end]


def sync_commit(uri: str, version: int) -> None:
    """Make a commit of the table at `uri` durable that another program wrote; files that are gone are left out."""
    if is_remote(uri):
        return
    store, path = store_of(uri), commit_path(uri, version)
    with suppress(FileNotFoundError):
        sync_data_files(uri, [name for name, _ in added_files(uri, version) if store.exists(f"{uri}/{unquote(name)}")])
        store.sync_files([path])
        sync_log(uri)
        if not version:
            store.sync_parents(uri)
        elif version % CHECKPOINT_EVERY == 0:
            sync_checkpoint(uri, version)


def sync_log(uri: str) -> None:
    """Make the entries of the log's folder durable: its last commit."""
    store_of(uri).sync_folder(f"{uri}/{LOG_FOLDER}")


def sync_checkpoint(uri: str, version: int) -> None:
    """Make a checkpoint durable if there is one of this version, and the file that names it."""
    store, folder = store_of(uri), f"{uri}/{LOG_FOLDER}"
    with suppress(FileNotFoundError):
        store.sync_files([f"{folder}/{version:020}.checkpoint.parquet"])
        store.sync_files([f"{folder}/_last_checkpoint"])
        store.sync_folder(folder)


def added_files(uri: str, version: int) -> Sequence[tuple[str, int]]:
    """Return name and size in bytes of the files in the table's own folder that a commit adds.

    A name is a path as in the log. There are none if the actions cannot be read; raises `FileNotFoundError`.
    """
    found = []
    with suppress(ValueError, KeyError):
        for line in store_of(uri).read(commit_path(uri, version)).decode().split("\n"):
            action = json.loads(line)["add"] if line.startswith('{"add"') else {}
            name = action.get("path", "")
            if name and "://" not in name:
                found.append((name, int(action["size"])))
    return found
