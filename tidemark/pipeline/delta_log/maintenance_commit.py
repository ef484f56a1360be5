"""Commits of maintenance: files replaced by others with the same rows, beside a stream that commits to the same table.

The stream does not wait for maintenance, and never loses to it. All files are written and synced before the table's
lock is taken, which the stream holds while it writes to the table. Under the lock only the commits since the plan are
checked, and the commit becomes visible. If one of those commits removed a replaced file, or changed columns,
properties or the protocol, the maintenance has lost: its files are deleted, and it is planned again later.

Such a commit has neither Tidemark's mark nor application transactions: those of the stream, which may be ahead of the
plan, stay in effect. The stream and other readers treat it as maintenance by another writer.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from urllib.parse import unquote

from tidemark.pipeline.delta_log.commit_files import FileChange, commit_path, staged_commit
from tidemark.pipeline.delta_log.commits import has_commit, new_token
from tidemark.pipeline.delta_log.durability import sync_data_files, sync_log
from tidemark.pipeline.storage.lake_store import Publish
from tidemark.pipeline.storage.store_errors import StoreUnavailable
from tidemark.pipeline.storage.stores import store_of

LOCK_WAIT_S = 5.0  # for the stream's write to the table; longer ones are those of large transactions
OPTIMIZE = {"operation": "OPTIMIZE"}
_METADATA = ("metaData", "protocol")


class MaintenanceLost(Exception):
    """The stream, or another writer, has changed what this maintenance was based on."""


def commit_maintenance(uri: str, change: FileChange, planned: int, lock: Lock) -> int:
    """Commit `change`, planned on version `planned` of the table at `uri`; return the version.

    Raises `MaintenanceLost`, and `OSError` for faults of the disk; the added files are deleted then, unless the commit
    may be visible.
    """
    may_be_visible = False
    try:
        sync_data_files(uri, [added.path for added in change.added])
        with staged_commit(commit_path(uri, planned + 1), change, {}, OPTIMIZE, new_token()) as publish:
            version = _next_version(uri, change, planned)
            with acquired(lock):
                version = _next_version(uri, change, version - 1)
                may_be_visible = True
                _publish(publish, commit_path(uri, version))
    except MaintenanceLost:
        discard_files(uri, change)
        raise
    except (OSError, StoreUnavailable):
        if not may_be_visible:
            discard_files(uri, change)
        raise
    sync_log(uri)
    return version


def _publish(publish: Publish, path: str) -> None:
    """Make the staged commit visible as `path`; raise `MaintenanceLost` if another commit is there."""
    try:
        publish(path)
    except FileExistsError as error:
        raise MaintenanceLost("another writer committed at the same moment") from error


@contextmanager
def acquired(lock: Lock) -> Iterator[None]:
    """Hold the lock of a table; raise `MaintenanceLost` if the stream holds it for `LOCK_WAIT_S`."""
    if not lock.acquire(timeout=LOCK_WAIT_S):
        raise MaintenanceLost(f"the stream has written to it for {LOCK_WAIT_S:.0f} s")
    try:
        yield
    finally:
        lock.release()


def discard_files(uri: str, change: FileChange) -> None:
    """Delete the added files of a change that was not committed."""
    for added in change.added:
        with suppress(OSError, StoreUnavailable):
            store_of(uri).delete([f"{uri}/{unquote(added.path)}"])


def _next_version(uri: str, change: FileChange, reached: int) -> int:
    """Return the version after the last commit; raise `MaintenanceLost` if one after `reached` conflicts."""
    replaced = {removed.path for removed in change.removed}
    version = reached + 1
    while has_commit(uri, version):
        try:
            lines = store_of(uri).read(commit_path(uri, version)).decode().split("\n")
            actions: list[dict[str, dict[str, object]]] = [json.loads(line) for line in lines if line.strip()]
        except (ValueError, FileNotFoundError) as error:
            raise MaintenanceLost(f"the commit of version {version} cannot be read") from error
        for action in actions:
            if action.get("remove", {}).get("path") in replaced or any(kind in action for kind in _METADATA):
                raise MaintenanceLost(f"version {version} changed what was to be replaced")
        version += 1
    return version
