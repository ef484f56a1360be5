"""A base backup as a folder: a data directory as `pg_basebackup -F p` writes it, and from which no server has started.

Read here are raw files, without a judgement on what they say: pages of relations, of pg_xact and of pg_multixact, the
relation maps. Nothing is written.
"""

from collections.abc import Iterator
from pathlib import Path

from tidemark.decode.catalog.store import GLOBAL_TABLESPACE
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import INVALID_OID, BlockNumber, Oid
from tidemark.model.relation import RelFileLocator
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
MAP_FILE = "pg_filenode.map"
CONTROL_FILE = Path("global", "pg_control")
SMALL_FILE_BYTES_MAX = 1 << 16  # of the files that are read whole
_SLRU_PAGES = 32  # of one file (slru.h)


class BackupFolder:
    """A base backup of one cluster."""

    def __init__(self, folder: Path) -> None:
        """Look at what `folder` is; raise `NotABackup` for anything but a base backup that can be read."""
        self.folder = folder
        version = self._small_file("PG_VERSION")
        if version is None:
            raise _no_data_directory(folder)
        if not version.strip().isdigit():
            raise NotABackup(f"{folder / 'PG_VERSION'} holds no number")
        self.format: WalFormat = wal_format(int(version))
        if (folder / "postmaster.pid").exists():
            raise NotABackup(f"{folder} is the data directory of a server (postmaster.pid is there), no backup")
        label = self._small_file("backup_label")
        if label is None:
            raise NotABackup(
                f"{folder} is no backup, or a server has started from it already: backup_label is not there"
            )
        self.label: BackupLabel = parse_label(label.decode("utf-8", "replace"), str(folder / "backup_label"))
        control = self._small_file(CONTROL_FILE)
        if control is None:
            raise NotABackup(f"{folder / CONTROL_FILE} is not there")
        self.control: ControlFile = parse_control(control, self.format.major, str(folder / CONTROL_FILE))
        self._check()

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

    def relation_map(self, tablespace: Oid, database: Oid) -> dict[Oid, Oid]:
        """Return in which files the mapped catalogs of a database are; database 0: the shared ones."""
        path = self._folder_of(tablespace, database) / MAP_FILE
        content = self._small_file(path)
        files = relmap.parse_file(content, self.format) if content is not None else None
        if files is None:
            told = "is not there" if content is None else "is damaged"
            raise BackupUnusable(f"{self.folder / path} {told}")
        return files

    def pages(self, locator: RelFileLocator) -> Iterator[tuple[BlockNumber, bytes]]:
        """Yield the pages of a relation's file; none if it is not there. An end within a page is left out."""
        first = self.folder / self._folder_of(locator.spc, locator.db) / str(locator.rel)
        number = 0
        while True:
            path = first.with_name(f"{first.name}.{number}") if number else first
            try:
                with path.open("rb") as file:
                    block = number * self.control.segment_blocks
                    while len(page := file.read(PAGE_BYTES)) == PAGE_BYTES:
                        yield BlockNumber(block), page
                        block += 1
            except FileNotFoundError:
                return
            except OSError as error:
                raise _unreadable(path, error) from error
            number += 1

    def slru_page(self, name: str, number: int) -> bytes | None:
        """Return a page of pg_xact or of a part of pg_multixact; None if there is none."""
        path = self.folder / name / f"{number // _SLRU_PAGES:04X}"
        try:
            with path.open("rb") as file:
                file.seek(number % _SLRU_PAGES * PAGE_BYTES)
                page = file.read(PAGE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        return page if len(page) == PAGE_BYTES else None

    def some_database(self) -> Oid:
        """Return a database in the default tablespace: what is the same in all of them can be read there."""
        found = [path.parent.name for path in (self.folder / "base").glob(f"*/{MAP_FILE}")]
        numbers = sorted(int(name) for name in found if name.isdigit())
        if not numbers:
            raise BackupUnusable(f"{self.folder / 'base'} holds no database")
        return Oid(numbers[0])

    def _folder_of(self, tablespace: Oid, database: Oid) -> Path:
        if tablespace == GLOBAL_TABLESPACE and database == INVALID_OID:
            return Path("global")
        if tablespace == DEFAULT_TABLESPACE:
            return Path("base", str(database))
        version = f"PG_{self.format.major}_{self.control.catalog_version}"
        return Path("pg_tblspc", str(tablespace), version, str(database))

    def _small_file(self, name: str | Path) -> bytes | None:
        path = self.folder / name
        try:
            with path.open("rb") as file:
                return file.read(SMALL_FILE_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(path, error) from error


def _no_data_directory(folder: Path) -> ConfigError:
    if not folder.is_dir():
        return NotABackup(f"{folder} is no folder")
    tar = sorted(path.name for path in folder.glob("base.tar*"))
    if tar:
        hint = f"unpack it into an empty folder (tar -x -f {tar[0]} -C FOLDER), tablespaces where its links point"
        return NotABackup(f"{folder} holds a backup in tar format ({tar[0]})", hint=hint)
    return NotABackup(f"{folder} is no base backup: PG_VERSION is not there")


def _unreadable(path: Path, error: OSError) -> NotABackup:
    return NotABackup(f"cannot read {path}: {error.strerror}", hint="let the user that runs cdcctl read the backup")
