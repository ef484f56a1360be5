"""A base backup as a folder: a data directory written by `pg_basebackup -F p`, on which no server was started.

It reads raw files without interpreting them: pages of relations, of pg_xact and of pg_multixact, the relation maps. It
writes nothing there. From a backup in tar format the needed files are copied out (`tar_backup`). If the backup has a
manifest, each file is checked against it before it is read (`read_backup_manifest`).
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tidemark.decode.catalog.layout import CATALOG_OF_OID
from tidemark.decode.catalog.store import GLOBAL_TABLESPACE
from tidemark.io.backup.manifest_check import MANIFEST_FILE, ManifestCheck, read_backup_manifest, unreadable
from tidemark.io.backup.tar_backup import TarBackup, has_archives, may_be_read, opened_archives
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import INVALID_OID, BlockNumber, Lsn, Oid, format_lsn
from tidemark.model.relation import RelFileLocator
from tidemark.wal.backup_manifest import BackupManifest, NotAsListed
from tidemark.wal.data_directory import (
    BackupLabel,
    BackupUnusable,
    ControlFile,
    NotABackup,
    parse_control,
    parse_label,
)
from tidemark.wal.rmgr import relmap
from tidemark.wal.rmgr.xlog import WAL_LEVEL_LOGICAL
from tidemark.wal.versions import PAGE_BYTES, WalFormat, wal_format

DEFAULT_TABLESPACE = Oid(1663)  # pg_default
VERSION_FILE = "PG_VERSION"
LABEL_FILE = "backup_label"
MAP_FILE = "pg_filenode.map"
WAL_FOLDER = "pg_wal"
CONTROL_FILE = Path("global", "pg_control")
SMALL_FILE_BYTES_MAX = 1 << 16  # of the files that are read as a whole
_SLRU_PAGES = 32  # in one file (slru.h)


@contextmanager
def open_backup(folder: Path) -> Iterator["BackupFolder"]:
    """Open a base backup of either format."""
    if has_archives(folder) and not (folder / VERSION_FILE).exists():
        with opened_archives(folder) as archives:
            yield BackupFolder(folder, archives)
    else:
        yield BackupFolder(folder)


class BackupFolder:
    """A base backup of one cluster."""

    def __init__(self, folder: Path, archives: TarBackup | None = None) -> None:
        """Inspect `folder`; raise `NotABackup` if it is not a readable base backup."""
        self.folder = folder
        self._archives = archives
        self._files = folder if archives is None else archives.copied
        self._listed: ManifestCheck | None = None
        self._page_counts: dict[Path, int] = {}  # of the files that must stay until they are read
        version = self._small_file(VERSION_FILE)
        if version is None:
            raise _no_data_directory(folder)
        if not version.strip().isdigit():
            raise NotABackup(f"{folder / VERSION_FILE} contains no number")
        self.format: WalFormat = wal_format(int(version))
        if (self._files / "postmaster.pid").exists():
            raise NotABackup(f"{folder} is the data directory of a server (postmaster.pid exists), not a backup")
        label = self._small_file(LABEL_FILE)
        if label is None:
            raise NotABackup(f"{folder} is not a backup, or a server has started from it: backup_label is missing")
        self.label: BackupLabel = parse_label(label.decode("utf-8", "replace"), str(folder / LABEL_FILE))
        control = self._small_file(CONTROL_FILE)
        if control is None:
            raise NotABackup(f"{folder / CONTROL_FILE} does not exist")
        self.control: ControlFile = parse_control(control, self.format.major, str(folder / CONTROL_FILE))
        self._check()
        self._listed = read_backup_manifest(folder, self._files, may_be_read)
        if self._listed is not None:
            self._check_manifest(self._listed.manifest)
        for name in (VERSION_FILE, LABEL_FILE, CONTROL_FILE):
            self._check_file(self._files / name)
        self.prefetch(self._mapped_catalogs())

    def _check(self) -> None:
        control = self.control
        if (control.block_bytes, control.wal_block_bytes) != (PAGE_BYTES, PAGE_BYTES):
            pages = f"pages of {control.block_bytes} and WAL pages of {control.wal_block_bytes} bytes"
            raise NotABackup(f"{self.folder} has {pages}", hint="Tidemark reads pages of 8 kB")
        if control.wal_level < WAL_LEVEL_LOGICAL:
            raise NotABackup(
                f"{self.folder} is of a server with a wal_level below logical",
                hint="set wal_level = logical, restart the server, and take another backup",
            )

    def _check_manifest(self, manifest: BackupManifest) -> None:
        """Check that the manifest belongs to this backup: a restored server keeps that of the backup it came from."""
        where, label, control = self.folder / MANIFEST_FILE, self.label, self.control
        hint = (
            "the manifest belongs to another backup: move it away if this backup was made by a tool that writes no "
            "manifest"
        )
        if manifest.system_identifier not in (None, control.system_identifier):
            identifiers = f"system {manifest.system_identifier}, pg_control to {control.system_identifier}"
            raise NotAsListed(f"{where} belongs to {identifiers}", hint=hint)
        begun = {(wal.timeline, wal.start_lsn) for wal in manifest.wal_ranges}
        if begun and (label.timeline, label.start_lsn) not in begun:
            starts = ", ".join(f"{format_lsn(lsn)} on timeline {timeline}" for timeline, lsn in sorted(begun))
            began = f"{format_lsn(label.start_lsn)} on timeline {label.timeline}"
            raise NotAsListed(f"{where} is of WAL from {starts}; by backup_label it began at {began}", hint=hint)
        end_lsn = manifest.end_lsn
        if label.from_standby and end_lsn is not None and end_lsn < control.min_recovery_lsn:
            reached = f"up to {format_lsn(end_lsn)}, pg_control up to {format_lsn(control.min_recovery_lsn)}"
            raise NotAsListed(f"{where} requires replay {reached}", hint=hint)

    @property
    def end_lsn(self) -> Lsn | None:
        """The end of its WAL by the manifest; None without one."""
        return self._listed.manifest.end_lsn if self._listed is not None else None

    def prefetch(self, files: Iterable[RelFileLocator]) -> None:
        """Prepare the pages of these relations together: each later one costs a pass over the whole backup."""
        if self._archives is not None:
            self._archives.fetch(self._first_file(locator) for locator in files)

    def _mapped_catalogs(self) -> Iterator[RelFileLocator]:
        """Yield the files of all databases' catalogs that a relation map names."""
        for path in self._files.rglob(MAP_FILE):
            top, *below = path.relative_to(self._files).parts[:-1]
            tablespace = Oid(int(below[0])) if top == "pg_tblspc" else DEFAULT_TABLESPACE
            database = Oid(int(below[-1])) if below else INVALID_OID
            if database == INVALID_OID:
                tablespace = GLOBAL_TABLESPACE
            files = relmap.parse_file(path.read_bytes(), self.format) or {}
            for catalog in files.keys() & CATALOG_OF_OID.keys():
                yield RelFileLocator(tablespace, database, files[catalog])

    def wal_folder(self) -> Path | None:
        """Return the folder of the WAL in the backup; None if it contains none."""
        if self._archives is not None:
            self._archives.fetch_wal()
        folder = self._files / WAL_FOLDER
        return folder if any(folder.glob("[0-9A-F]" * 24)) else None

    def relation_map(self, tablespace: Oid, database: Oid) -> dict[Oid, Oid]:
        """Return the files of a database's mapped catalogs; database 0: the shared ones."""
        path = self._folder_of(tablespace, database) / MAP_FILE
        content = self._small_file(path)
        files = relmap.parse_file(content, self.format) if content is not None else None
        if files is None:
            fault = "is not there" if content is None else "is damaged"
            raise BackupUnusable(f"{self.folder / path} {fault}")
        return files

    def pages(self, locator: RelFileLocator) -> Iterator[tuple[BlockNumber, bytes]]:
        """Yield the pages of a relation's file; none if it does not exist. An incomplete last page is left out."""
        self.prefetch([locator])
        first = self._files / self._first_file(locator)
        number = 0
        while True:
            path = first.with_name(f"{first.name}.{number}") if number else first
            self._check_file(path)
            begin = block = number * self.control.segment_blocks
            try:
                with path.open("rb") as file:
                    while len(page := file.read(PAGE_BYTES)) == PAGE_BYTES:
                        yield BlockNumber(block), page
                        block += 1
            except FileNotFoundError:
                self._check_count(path, 0)
                return
            except OSError as error:
                raise unreadable(path, error) from error
            self._check_count(path, block - begin)
            number += 1

    def expect(self, locator: RelFileLocator) -> bool:
        """Return whether a relation's file exists; from now on, a page of it that is gone is an error."""
        self.prefetch([locator])
        first = self._files / self._first_file(locator)
        for number in count():
            path = first.with_name(f"{first.name}.{number}") if number else first
            self._check_file(path)
            try:
                self._page_counts[path] = path.stat().st_size // PAGE_BYTES
            except FileNotFoundError:
                return number > 0
            except OSError as error:
                raise unreadable(path, error) from error
        raise AssertionError("a relation has a last file")

    def _check_count(self, path: Path, pages: int) -> None:
        expected = self._page_counts.get(path, 0)
        if pages < expected:
            raise BackupUnusable(
                f"{path} has {pages} pages; it had {expected} when reading began",
                hint="do not change the backup until its rows are read",
            )

    def page(self, locator: RelFileLocator, block: BlockNumber) -> bytes | None:
        """Return one page of a relation's file; None if it does not exist."""
        number, within = divmod(block, self.control.segment_blocks)
        first = self._files / self._first_file(locator)
        path = first.with_name(f"{first.name}.{number}") if number else first
        page = self._page_at(path, within)
        if page is None and within < self._page_counts.get(path, 0):
            self._check_count(path, within)
        return page

    def slru_page(self, name: str, number: int) -> bytes | None:
        """Return a page of pg_xact or of a part of pg_multixact; None if it does not exist."""
        return self._page_at(self._files / name / f"{number // _SLRU_PAGES:04X}", number % _SLRU_PAGES)

    def _page_at(self, path: Path, number: int) -> bytes | None:
        """Return a page of a file; None if the file does not exist or ends before."""
        self._check_file(path)
        try:
            with path.open("rb", buffering=0) as file:
                page = os.pread(file.fileno(), PAGE_BYTES, number * PAGE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        return page if len(page) == PAGE_BYTES else None

    def some_database(self) -> Oid:
        """Return a database in the default tablespace, to read what is the same in all databases."""
        found = [path.parent.name for path in (self._files / "base").glob(f"*/{MAP_FILE}")]
        numbers = sorted(int(name) for name in found if name.isdigit())
        if not numbers:
            raise BackupUnusable(f"{self.folder / 'base'} contains no database")
        return Oid(numbers[0])

    def _first_file(self, locator: RelFileLocator) -> Path:
        return self._folder_of(locator.spc, locator.db) / str(locator.rel)

    def _folder_of(self, tablespace: Oid, database: Oid) -> Path:
        if tablespace == GLOBAL_TABLESPACE and database == INVALID_OID:
            return Path("global")
        if tablespace == DEFAULT_TABLESPACE:
            return Path("base", str(database))
        version = f"PG_{self.format.major}_{self.control.catalog_version}"
        return Path("pg_tblspc", str(tablespace), version, str(database))

    def _check_file(self, path: Path) -> None:
        """Check a file against the manifest."""
        if self._listed is not None:
            self._listed.check(str(path.relative_to(self._files)))

    def _small_file(self, name: str | Path) -> bytes | None:
        path = self._files / name
        self._check_file(path)
        try:
            with path.open("rb") as file:
                return file.read(SMALL_FILE_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(path, error) from error


def _no_data_directory(folder: Path) -> ConfigError:
    if not folder.is_dir():
        return NotABackup(f"{folder} is not a folder")
    return NotABackup(f"{folder} is not a base backup: PG_VERSION is missing")
