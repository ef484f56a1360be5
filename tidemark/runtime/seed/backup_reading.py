"""Reads from a base backup's files, before any WAL is replayed, which databases it has and where their catalogs are.

The files were copied at different moments, so this is a first guess; layouts and system identifier are certain.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidemark.decode.catalog.heap import COMMITTED_SNAPSHOT, CatalogHeap
from tidemark.decode.catalog.layout import (
    HALF_DROPPED,
    LOCAL_CATALOGS,
    PG_ATTRIBUTE,
    PG_CLASS,
    PG_DATABASE,
    CatalogId,
    CatalogLayout,
    data_at,
    name_text,
)
from tidemark.decode.catalog.seeding import page_seed, seed
from tidemark.decode.catalog.seeding.bootstrap import columns_of
from tidemark.decode.catalog.seeding.commit_log import CommitLog
from tidemark.decode.catalog.store import GLOBAL_TABLESPACE, CatalogStore
from tidemark.decode.types.encodings import SERVER_ENCODINGS
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.backup.backup import DEFAULT_TABLESPACE, BackupFolder
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import INVALID_OID, XID_MASK, Lsn, Oid, Xid, format_lsn
from tidemark.model.relation import RelFileLocator
from tidemark.runtime.replay.archive_blocks import archived_blocks
from tidemark.runtime.replay.offline import ForeignArchive
from tidemark.wal.data_directory import BackupUnusable, NotABackup
from tidemark.wal.rmgr import RM_XLOG, xlog


@dataclass(frozen=True, slots=True)
class BackedUpDatabase:
    """A row of pg_database whose mirror is needed."""

    oid: Oid
    name: str
    encoding: str
    tablespace: Oid
    captured: bool  # False: others may be copied from it, or it may be renamed into the selection


class BackupFilenodes(NamedTuple):
    """Relfilenodes of each database's catalogs, and of pg_database."""

    local: Mapping[Oid, Mapping[Oid, Oid]]
    shared: Oid


@dataclass(frozen=True, slots=True)
class BackupSource:
    """A backup, the archive of its WAL, and the facts about both."""

    backup: BackupFolder
    archive: ArchiveFolder
    checkpoint: xlog.Checkpoint  # the one at which the backup began
    columns: Sequence[seed.ColumnRow]
    databases: Mapping[Oid, BackedUpDatabase]

    @property
    def selected(self) -> Mapping[Oid, BackedUpDatabase]:
        """The databases to be captured."""
        return {oid: database for oid, database in self.databases.items() if database.captured}


def wal_of(backup: BackupFolder, folder: Path | None) -> ArchiveFolder:
    """Return the WAL since the start of a backup: in `folder`, or else (None) in the backup itself."""
    where = folder or backup.wal_folder()
    if where is None:
        hint = "give --archive: the WAL since the start of the backup is needed, and the backup contains none"
        raise ConfigError("no archive is named", hint=hint)
    return ArchiveFolder(where, of=backup.control.system_identifier)


def open_source(
    backup: BackupFolder, archive: ArchiveFolder, selects: Callable[[str], bool], follows: Callable[[str], bool]
) -> tuple[BackupSource, BackupFilenodes]:
    """Check that backup and archive belong together, and read the backup's files."""
    checkpoint = check_archive(backup, archive)
    anywhere = backup.some_database()
    file = backup.relation_map(DEFAULT_TABLESPACE, anywhere)[PG_ATTRIBUTE.oid]
    pages = backup.pages(RelFileLocator(DEFAULT_TABLESPACE, anywhere, file))
    columns = columns_of((page for _, page in pages), backup.format.major)
    reading = _Reading(backup, seed.layouts_of(columns), Xid(checkpoint.next_xid & XID_MASK))
    databases = {found.oid: found for found in reading.databases(selects, follows)}
    if not any(database.captured for database in databases.values()):
        raise ConfigError(
            f"no database of {backup.folder} is selected", hint="choose with --database or select.databases"
        )
    local = {}
    for oid, database in list(databases.items()):
        try:
            local[oid] = reading.files(database)
        except BackupUnusable:
            if database.captured:
                raise
            del databases[oid]  # dropped while the backup ran
    shared = backup.relation_map(GLOBAL_TABLESPACE, INVALID_OID)[PG_DATABASE.oid]
    return BackupSource(backup, archive, checkpoint, columns, databases), BackupFilenodes(local, shared)


def check_archive(backup: BackupFolder, archive: ArchiveFolder) -> xlog.Checkpoint:
    """Check that the archive is that of the backup; return the checkpoint at which the backup began."""
    label = backup.label
    expected = backup.control.system_identifier
    if archive.system_identifier != expected:
        text = (
            f"{archive.folder} belongs to system {archive.system_identifier}, the backup {backup.folder} to {expected}"
        )
        raise ForeignArchive(text, hint="give the archive of the server from which the backup was taken")
    if (archive.format, archive.segment_bytes) != (backup.format, backup.control.wal_segment_bytes):
        raise ForeignArchive(f"{archive.folder} has another major or segment size than {backup.folder}")
    if (there := archive.history.timeline_at(label.start_lsn)) != label.timeline:
        began = f"timeline {label.timeline} at {format_lsn(label.start_lsn)}"
        raise ForeignArchive(f"the backup {backup.folder} began on {began}, where {archive.folder} is on {there}")
    _check_branch(backup, archive)
    block = next(archived_blocks(archive, label.checkpoint_lsn), None)
    reported_by = block.record(0) if block is not None and block.lsns[0] == label.checkpoint_lsn else None
    checkpoint = (
        xlog.parse(reported_by, backup.format) if reported_by is not None and reported_by.rmgr == RM_XLOG else None
    )
    if not isinstance(checkpoint, xlog.Checkpoint) or checkpoint.redo != label.start_lsn:
        at = f"{format_lsn(label.checkpoint_lsn)} in {archive.folder}"
        raise BackupUnusable(f"the start checkpoint of {backup.folder} is not at {at}")
    if not checkpoint.full_page_writes:
        hint = "set full_page_writes = on, and take another backup"
        raise NotABackup(f"{backup.folder} is of a server with full_page_writes = off", hint=hint)
    return checkpoint


def _check_branch(backup: BackupFolder, archive: ArchiveFolder) -> None:
    """Raise `ForeignArchive` if a standby's backup has WAL of a branch that the archive does not have."""
    control = backup.control
    if not backup.label.from_standby or control.min_recovery_timeline is None:
        return
    there = archive.history.timeline_at(Lsn(control.min_recovery_lsn - 1))
    if there != control.min_recovery_timeline:
        reached = f"timeline {control.min_recovery_timeline} up to {format_lsn(control.min_recovery_lsn)}"
        raise ForeignArchive(
            f"the backup {backup.folder} has changes of {reached}, where {archive.folder} is on {there}",
            hint="it contains rows of transactions that a failover lost: take another backup",
        )


class _Reading:
    """The catalogs according to the backup's files alone: a first guess, since they are of different moments."""

    def __init__(self, backup: BackupFolder, layouts: Mapping[Oid, CatalogLayout], next_xid: Xid) -> None:
        self._backup = backup
        self._layouts = layouts
        self._log = CommitLog(partial(backup.slru_page, "pg_xact"), next_xid)

    def databases(self, selects: Callable[[str], bool], follows: Callable[[str], bool]) -> Sequence[BackedUpDatabase]:
        """Return the selected databases that allow connections, and then the followed ones."""
        heap = self._heap(PG_DATABASE, GLOBAL_TABLESPACE, INVALID_OID)
        reader = heap.layout.projection(
            *("oid", "datname", "encoding", "datistemplate", "datallowconn", "datconnlimit", "dattablespace"),
        )
        found = []
        for _tid, packed in heap.scan(COMMITTED_SNAPSHOT):
            oid, name, encoding, is_template, allows, limit, tablespace = reader.unpack_from(packed, data_at(packed))
            text = name_text(name).decode("utf-8", "surrogateescape")
            if limit == HALF_DROPPED or encoding >= len(SERVER_ENCODINGS):
                continue
            captured = allows and not is_template and selects(text)
            if captured or is_template or follows(text):
                encoding_name = SERVER_ENCODINGS[encoding]
                found.append(BackedUpDatabase(Oid(oid), text, encoding_name, Oid(tablespace), captured))
        return sorted(found, key=lambda database: (not database.captured, database.oid))

    def files(self, database: BackedUpDatabase) -> Mapping[Oid, Oid]:
        """Return the probable files of a database's catalogs."""
        files = self._backup.relation_map(database.tablespace, database.oid)
        heap = self._heap(PG_CLASS, database.tablespace, database.oid)
        reader = heap.layout.projection("oid", "relfilenode")
        for catalog in LOCAL_CATALOGS:
            for packed in heap.find_committed("oid", catalog.oid) if not catalog.mapped else ():
                files[catalog.oid] = reader.unpack_from(packed, data_at(packed))[1]
        return {catalog.oid: files.get(catalog.oid, INVALID_OID) for catalog in LOCAL_CATALOGS}

    def _heap(self, catalog: CatalogId, tablespace: Oid, database: Oid) -> CatalogHeap:
        """Return the rows of a mapped catalog."""
        file = self._backup.relation_map(tablespace, database)[catalog.oid]
        heap = CatalogHeap(self._layouts[catalog.oid], RelFileLocator(tablespace, database, file), seeding=True)
        store = CatalogStore(self._backup.format, database, tablespace, [heap], seeding_from=Xid(0))
        page_seed.add_pages(store, heap, self._backup.pages(heap.file), self._log, lambda _: Xid(0))
        return heap
