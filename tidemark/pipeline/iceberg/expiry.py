"""Expires the snapshots of Iceberg tables that no reader may use any more, and deletes the files that only they name.

Each append makes a snapshot, and the metadata of a table names all of them: without expiry, the cost of a commit would
grow with their number. pyiceberg removes snapshots from the metadata and no file.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

SNAPSHOTS_MAX = 100  # old snapshots of a table, at which they expire
_REWRITES = (Operation.DELETE, Operation.OVERWRITE, Operation.REPLACE)


class SnapshotExpiry:
    """Expires the snapshots of each table that are older than `keep_s`, except the present one."""

    def __init__(self, keep_s: float, now_s: Callable[[], float], snapshots_max: int = SNAPSHOTS_MAX) -> None:
        """Expire them once there are `snapshots_max` in a table; `now_s`: seconds since 1970."""
        self._keep_s = keep_s
        self._now_s = now_s
        self._snapshots_max = snapshots_max

    def expire(self, table: Table) -> None:
        """Expire old snapshots if there are enough of them; their own files are deleted after the commit."""
        oldest = datetime.fromtimestamp(self._now_s(), UTC) - timedelta(seconds=self._keep_s)
        oldest_ms = oldest.timestamp() * 1000
        present = table.current_snapshot()
        old = [one for one in table.snapshots() if one.timestamp_ms < oldest_ms and one != present]
        if len(old) < self._snapshots_max:
            return
        before = _files(table, old, with_data=any(_rewrites(one) for one in table.snapshots()))
        table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()
        kept = _files(table, table.snapshots(), with_data=bool(before.data))
        for path in [*(before.lists - kept.lists), *(before.manifests - kept.manifests), *(before.data - kept.data)]:
            table.io.delete(path)


class _Files:
    def __init__(self, lists: set[str], manifests: set[str], data: set[str]) -> None:
        self.lists, self.manifests, self.data = lists, manifests, data


def _rewrites(snapshot: Snapshot) -> bool:
    return snapshot.summary is None or snapshot.summary.operation in _REWRITES


def _files(table: Table, snapshots: Iterable[Snapshot], *, with_data: bool) -> _Files:
    """Return the manifest lists and manifests of snapshots, `with_data` also the data files."""
    lists, manifests = set(), dict[str, ManifestFile]()
    for snapshot in snapshots:
        lists.add(snapshot.manifest_list)
        manifests.update({one.manifest_path: one for one in snapshot.manifests(table.io)})
    data = {
        entry.data_file.file_path
        for one in manifests.values()
        if with_data
        for entry in one.fetch_manifest_entry(table.io, discard_deleted=True)
    }
    return _Files(lists, set(manifests), data)
