"""The catalogs of a base backup's cluster at a recovery target: a seed at the end of the backup, followed from there.

Without a target they are those at the end of the backup.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.decode.catalog.follower import CatalogFollower
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.record_filter import RecordFilter
from tidemark.decode.transactions.schema_changes import PERMANENT
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.backup.backup import BackupFolder
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import OID_BYTES, Lsn, Oid, TimelineId, format_lsn
from tidemark.model.relation import PARTITIONED, Relation, RelFileLocator
from tidemark.model.table_name import TableName
from tidemark.runtime.backup_rows.recovery_target import BeforeBackupEnd, Progressed, RecoveryTarget, do_nothing
from tidemark.runtime.replay.archive_blocks import archived_blocks, of_rmgr
from tidemark.runtime.replay.offline import ends_early
from tidemark.runtime.seed.seeding import Seed
from tidemark.wal.data_directory import BackupUnusable
from tidemark.wal.rmgr import RM_DBASE

ROW_KINDS = ("r", PARTITIONED)  # pg_class.relkind of tables that a capture can have


class NoSuchTable(ConfigError):
    """No table, or more than one, has that name."""

    hint = "name the table as it was named at that moment: schema.table or database.schema.table"


@dataclass(frozen=True, slots=True)
class HeapFiles:
    """A table with rows: a version of it, and its files."""

    relation: Relation
    heap: RelFileLocator
    toast: RelFileLocator | None

    @property
    def locators(self) -> tuple[RelFileLocator, ...]:
        """Return all files."""
        return (self.heap,) if self.toast is None else (self.heap, self.toast)


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table of a database."""

    mirror: CatalogMirror
    database: str
    relation: Relation

    def is_named(self, name: TableName) -> bool:
        """Return whether the table has that name."""
        is_there = name.database in (None, self.database)
        return is_there and (self.relation.namespace, self.relation.name) == (name.schema, name.table)

    def heaps(self) -> list[HeapFiles]:
        """Return the table's files, or those of its partitions."""
        if self.relation.kind != PARTITIONED:
            return [_files_of(self.mirror, self.relation)]
        return [_files_of(self.mirror, leaf) for leaf in self.mirror.relations() if _is_leaf_of(self.relation, leaf)]


@dataclass(frozen=True, slots=True)
class CatalogsAt:
    """The catalogs at `lsn`."""

    seed: Seed
    lsn: Lsn
    timeline: TimelineId

    def find(self, name: TableName) -> FoundTable:
        """Return a table with rows; raise `NoSuchTable`."""
        named = [table for table in self.tables() if table.is_named(name)]
        if len(named) != 1:
            which = "no database has" if not named else f"{', '.join(sorted(one.database for one in named))} have"
            raise NoSuchTable(f"{which} a table {name} at {format_lsn(self.lsn)}")
        (found,) = named
        if found.relation.kind not in ROW_KINDS or found.relation.persistence != PERMANENT:
            raise NoSuchTable(f"{name} is not a permanent table: WAL does not contain its rows")
        return found

    def tables(self) -> Iterator[FoundTable]:
        """Yield all tables of users."""
        for oid, database in self.seed.databases.items():
            mirror = self.seed.mirrors[oid]
            for relation in mirror.relations():
                yield FoundTable(mirror, database, relation)


def catalogs_at(
    seed: Seed,
    backup: BackupFolder,
    archive: ArchiveFolder,
    target: RecoveryTarget | None,
    progress: Progressed = do_nothing,
) -> CatalogsAt:
    """Return the catalogs at a target, from the seed at the end of the backup."""
    if target is None:
        return CatalogsAt(seed, seed.lsn, seed.timeline)
    if target.lsn < seed.lsn:
        raise BeforeBackupEnd(f"{target} is before the end of {backup.folder}, {format_lsn(seed.lsn)}")
    _follow(seed, archive, target.lsn, progress)
    return CatalogsAt(seed, target.lsn, archive.history.timeline_at(target.lsn))


def _follow(seed: Seed, archive: ArchiveFolder, lsn: Lsn, progress: Progressed) -> None:
    """Let the mirrors of a seed follow the records that begin before `lsn`."""
    follower = CatalogFollower(seed.format, seed.mirrors)
    for xid, top_xid in seed.top_of.items():
        follower.assign(xid, top_xid)
    wanted = RecordFilter(seed.format, seed.mirrors)
    end_lsn = seed.lsn
    for block in archived_blocks(archive, seed.lsn):
        progress()
        stop = bisect_left(block.lsns, lsn, 0, len(block))
        for index in of_rmgr(block, stop, RM_DBASE):
            _check_kept(seed, Oid(int.from_bytes(block.record(index).main[:OID_BYTES], "little")))
        for record in wanted.records(block, stop):
            follower.follow(record)
        end_lsn = block.end_lsn
        if stop < len(block):
            return
    if end_lsn < lsn:
        raise ends_early(archive, end_lsn, lsn)


def _check_kept(seed: Seed, database: Oid) -> None:
    """Raise `BackupUnusable` if files of a database are copied or removed."""
    if database in seed.databases:
        text = f"database {seed.databases[database]} was created, dropped or moved to another tablespace after it"
        raise BackupUnusable(f"the backup does not have the files at that moment: {text}", hint="use a later backup")


def _is_leaf_of(root: Relation, leaf: Relation) -> bool:
    """Return whether `leaf` is a partition below `root` with rows in WAL: an unlogged one is empty after recovery."""
    is_below = any(above.oid == root.oid for above in leaf.ancestors)
    return is_below and leaf.kind == "r" and leaf.persistence == PERMANENT


def _files_of(mirror: CatalogMirror, relation: Relation) -> HeapFiles:
    heap = mirror.file_of(relation.oid)
    assert heap is not None, relation
    return HeapFiles(relation, heap, mirror.file_of(relation.toast_oid) if relation.toast_oid else None)
