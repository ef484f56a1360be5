"""Deletes data files that no version needs which may still be read, a bounded number in each run.

delta-rs finds the files: those that a commit removed, and those that no commit names, of more than a number of hours
ago. Files of the version that `_positions` records are kept, however old that version is: a reader of the consistent
cut opens it. They are found while the stream does not write to the table: its write may take longer than that number of
hours, and no commit names its files yet. delta-rs's own vacuum would delete without a bound, and make two commits.

delta-rs compares the times of objects in a store with this host's clock. Their age is therefore tested again, by the
store's own clock.

delta-rs keeps the files of its own snapshot in any case. To keep those of another version it opens that one, which
takes more requests to a store than all else here.
"""

import math
from threading import Lock

from deltalake import DeltaTable

from tidemark.io.host.failpoints import passed
from tidemark.pipeline.delta_log.maintenance_commit import acquired
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.storage.stores import is_remote, open_delta, store_of


def delete_unused_files(
    uri: str, hours: int, recorded: int, most: int, lock: Lock, *, opened: DeltaTable | None = None
) -> int:
    """Delete up to `most` files of the table at `uri` that are unused for `hours`; return how many were deleted.

    `recorded`: the version in `_positions`, whose files are kept. `lock`: of the table. `opened`: the table, which is
    brought up to date. Raises `MaintenanceLost`, `DeltaError` and `OSError`.
    """
    delta, store = opened or open_delta(uri), store_of(uri)
    with acquired(lock):
        delta.update_incremental()
        unused = delta.vacuum(
            retention_hours=hours,
            dry_run=True,
            enforce_retention_duration=False,
            full=True,
            keep_versions=None if recorded == delta.version() else [recorded],
        )
    old_s = store.now_s() - hours * 3600 if is_remote(uri) else math.inf
    deleted = 0
    for name in unused:
        if deleted == most:
            break
        path = f"{uri}/{name}"  # NB: the name on disk; a path in the log is percent-encoded once more
        try:
            if old_s < math.inf and store.modified_s(path) > old_s:
                continue
        except FileNotFoundError:
            continue
        deleted += store.delete([path])
        passed(MaintenanceFailpoint.UNUSED_FILE_DELETED)
    return deleted
