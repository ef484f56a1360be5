"""Expires the snapshots of Iceberg tables, and later deletes the files that no snapshot names any more.

Each append makes a snapshot. pyiceberg copies the metadata of all snapshots some twenty times in a commit (0.6 ms for
each of them), so a table keeps few. The files of expired ones stay for a time, for readers that have begun. A snapshot
that deleted rows is kept for that time as well: it names the data files that nobody needs after it.

A kill between the data file of an append and its commit leaves a file that no snapshot has. Other programs write files
before their commits, too, so such a file is deleted after days alone.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertTableUUID, RemoveSchemasUpdate

from tidemark.pipeline.iceberg.snapshot_summary import lineage
from tidemark.pipeline.iceberg.translated import translated

SNAPSHOTS_MAX = 40  # at which half of them expire
ORPHANS_KEPT_S = 3 * 86_400.0  # as Iceberg's own procedure, `remove_orphan_files`, keeps them
_MS_PER_S = 1000
_DATA_FILES = "total-data-files"  # of the table, in the summary of a snapshot
_METADATA = (".avro", ".metadata.json")


class SnapshotExpiry:
    """Keeps the snapshots of each table few, and the files of expired ones for `keep_s`."""

    def __init__(self, keep_s: float, now_s: Callable[[], float], snapshots_max: int = SNAPSHOTS_MAX) -> None:
        """Expire the older half once a table has `snapshots_max` snapshots; `now_s`: seconds since 1970."""
        self._keep_s = keep_s
        self._now_s = now_s
        self._snapshots_max = snapshots_max

    def expire(self, catalog: SqlCatalog, table: Table) -> None:
        """Expire the older snapshots if there are too many, and delete unused files that are old enough."""
        if len(table.snapshots()) < self._snapshots_max:
            return
        with translated(table.location()):
            self._expire(catalog, table)

    def _expire(self, catalog: SqlCatalog, table: Table) -> None:
        referenced = {ref.snapshot_id for ref in table.metadata.refs.values()}  # by branches and tags
        older = list(lineage(table))[self._snapshots_max // 2 :]
        expired = [
            one
            for one in older
            if one.snapshot_id not in referenced and (not _rewrites(one) or self._is_old(one.timestamp_ms / _MS_PER_S))
        ]
        if not expired:
            return
        unused = _deleted_data(table, filter(_rewrites, expired))
        table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in expired]).commit()
        if unused:
            unused -= _live_data(table)
        for path in unused:
            Path(path).unlink(missing_ok=True)
        self._delete_unnamed(table)
        self._delete_orphans(table)
        _remove_schemas(catalog, table)

    def _delete_unnamed(self, table: Table) -> None:
        """Delete metadata and manifests that nothing names any more; an interrupted commit leaves some as well."""
        named = {snapshot.manifest_list for snapshot in table.snapshots()}
        names = {
            Path(path).name for path in (*named, *_manifests(table), table.metadata_location)
        }  # of whatever form the paths are
        for path in (Path(table.location()) / "metadata").iterdir():
            with suppress(FileNotFoundError):
                if path.name not in names and path.name.endswith(_METADATA) and self._is_old(path.stat().st_mtime):
                    path.unlink()

    def _delete_orphans(self, table: Table) -> None:
        """Delete data files that no snapshot has; the files are counted first, because their list may be long."""
        files = list((Path(table.location()) / "data").glob("*.parquet"))
        snapshot = table.current_snapshot()
        summary = snapshot.summary if snapshot is not None else None
        if summary is None or len(files) <= int(summary.get(_DATA_FILES) or 0):
            return
        live = {Path(path).name for path in _live_data(table)}
        old_s = self._now_s() - max(self._keep_s, ORPHANS_KEPT_S)
        for path in files:
            with suppress(FileNotFoundError):
                if path.name not in live and path.stat().st_mtime < old_s:
                    path.unlink()

    def _is_old(self, at_s: float) -> bool:
        return at_s < self._now_s() - self._keep_s


def _rewrites(snapshot: Snapshot) -> bool:
    return snapshot.summary is None or snapshot.summary.operation is not Operation.APPEND


def _deleted_data(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the data files that snapshots deleted."""
    return {
        entry.data_file.file_path
        for snapshot in snapshots
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id and manifest.deleted_files_count
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if entry.status is ManifestEntryStatus.DELETED
    }


def _manifests(table: Table) -> dict[str, ManifestFile]:
    """Return the manifests of all snapshots, by their paths."""
    return {one.manifest_path: one for snapshot in table.snapshots() for one in snapshot.manifests(table.io)}


def _live_data(table: Table) -> set[str]:
    """Return the data files of all snapshots."""
    return {
        entry.data_file.file_path
        for manifest in _manifests(table).values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def _remove_schemas(catalog: SqlCatalog, table: Table) -> None:
    """Remove the schemas that no snapshot has: each one slows down every commit as well."""
    used = {table.metadata.current_schema_id, *(snapshot.schema_id for snapshot in table.snapshots())}
    unused = [schema.schema_id for schema in table.metadata.schemas if schema.schema_id not in used]
    if unused:
        is_same = AssertTableUUID(uuid=table.metadata.table_uuid)
        catalog.commit_table(table, (is_same,), (RemoveSchemasUpdate.model_validate({"schema-ids": unused}),))
