"""Deletes the folder of a dropped table, in steps that a kill may interrupt anywhere.

A folder with anything that another writer made is refused; of one to which another writer commits meanwhile the rest is
left. The commits of a table are deleted after its data files, so that such a commit is seen until the end.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from tidemark.io.host.failpoints import passed
from tidemark.pipeline.delta_log.commit_files import LOG_FOLDER
from tidemark.pipeline.delta_log.commits import has_commit
from tidemark.pipeline.delta_log.lineage import NO_VERSION, TableDiverged, TableStopped
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.lake.faults import LakeEntry
from tidemark.pipeline.lake.folders import LOG, REPLICA, table_app
from tidemark.pipeline.lake.positions.leaving import LeavingFolder
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.sinks.replica.replica import UNKEYED
from tidemark.pipeline.sinks.waiting import FOLDER as WAITING
from tidemark.pipeline.storage.lake_store import LakeStore
from tidemark.pipeline.storage.stores import store_of

LEAVING_MAX = 64  # folders that `_positions` names at a time
FILES_MAX = 1000  # that a command deletes between two checks for commits of others
OWN = frozenset({LOG, REPLICA, f"{REPLICA}-{UNKEYED}", *(f"{name}-{WAITING}" for name in (LOG, REPLICA))})


def checked_folder(root: str, capture: str, table: TablePosition) -> LeavingFolder:
    """Return the folder of a dropped table as one that may be deleted.

    Raise `TableDiverged` or `TableStopped` if another writer has made or changed something in it.
    """
    path = f"{root}/{table.folder}"
    folders, files = _listed(store_of(path), path)
    others = [name for name in (*folders, *files) if name not in OWN]
    if others:
        raise TableDiverged(f"{path} contains {others[0]}, which is no log or replica of Tidemark")
    of = table.database, table.relation
    versions = (
        _checked_version(f"{path}/{name}", table_app(capture, of, name), entry)
        for name, entry in ((LOG, table.log), (REPLICA, table.replica))
    )
    return LeavingFolder(table.folder, *versions)


def _checked_version(uri: str, app: str, entry: LakeEntry) -> int:
    """Return the version of a log or replica; `NO_VERSION` if it was removed, or never written."""
    if not any(_listed(store_of(uri), uri)):
        return NO_VERSION
    version = LakeTable(uri, app, entry.recorded).version
    if version == NO_VERSION:
        raise TableDiverged(f"{uri} contains files, but it is no table, and none was written there")
    return version


@dataclass(slots=True)
class Removed:
    """The folders of tables that were removed, and why others were kept."""

    removed: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


def remove_tables(
    root: str, positions: Positions, capture: str, listed: Mapping[str, str], check: Callable[[], None]
) -> Removed:
    """Remove dropped tables from a lake, and folders of interrupted removals.

    `listed`: folder and position of each table, as the operator has seen them; one that changed since is kept.
    `check` raises if a pipeline has begun to write the lake. NB: it may delete the same folders, and then give them to
    other tables.
    """
    result, tables = Removed(), {table.folder: table for table in positions.recorded.values()}
    folders = list(listed)
    for part in range(0, max(1, len(folders)), LEAVING_MAX):
        for folder in folders[part : part + LEAVING_MAX]:
            try:
                _begin(root, positions, capture, tables.get(folder), listed[folder])
            except (TableDiverged, TableStopped) as error:
                result.kept[folder] = str(error)
        positions.check_present()
        positions.write(positions.outbox, [], positions.applied)
        for leaving in positions.deletable:
            try:
                check()
                while not delete_files(root, leaving, FILES_MAX):
                    check()
                result.removed.append(leaving.folder)
            except TableDiverged as error:
                result.kept[leaving.folder] = str(error)
            positions.end_removal(leaving.folder)
        positions.write(positions.outbox, [], positions.applied)
    return result


def _begin(root: str, positions: Positions, capture: str, table: TablePosition | None, listed: str) -> None:
    if table is None or not table.is_at_rest:
        raise TableStopped("it is not dropped, or its log or replica lacks changes")
    if str(table.position) != listed:
        raise TableStopped(f"it changed after it was listed: its position is {table.position}, not {listed}")
    positions.begin_removal(table, checked_folder(root, capture, table))


def delete_files(root: str, leaving: LeavingFolder, most: int) -> bool:
    """Delete up to `most` files of a folder; return whether it is gone.

    Raise `TableDiverged` if another writer has committed to its log or replica.
    """
    path = f"{root}/{leaving.folder}"
    for name, version in ((LOG, leaving.log_version), (REPLICA, leaving.replica_version)):
        uri = f"{path}/{name}"
        if version != NO_VERSION and has_commit(uri, version + 1):
            raise TableDiverged(f"{uri} was changed by another writer while it was being deleted: the rest is left")
    store = store_of(path)
    found = list(islice(_all_files(store, path), most))
    at_once = store.deletes_at_once
    for first in range(0, len(found), at_once):
        store.delete(found[first : first + at_once])
        passed(MaintenanceFailpoint.DROPPED_FILES_DELETED)
    if len(found) < most:
        store.remove_folder(path)
    return len(found) < most


def _all_files(store: LakeStore, folder: str) -> Iterator[str]:
    """Yield the files of a folder and below, of each Delta table the commits last."""
    folders, files = _listed(store, folder)
    for name in sorted(folders, key=lambda name: name == LOG_FOLDER):
        yield from _all_files(store, f"{folder}/{name}")
    yield from (f"{folder}/{name}" for name in files)


def _listed(store: LakeStore, folder: str) -> tuple[list[str], list[str]]:
    """Return the names of the folders and of the files in a folder, sorted; none if it is missing."""
    folders = store.folders(folder)
    try:
        return folders, sorted(file.name for file in store.files(folder) if file.name not in folders)
    except FileNotFoundError:
        return folders, []
