"""A base backup in tar format (`pg_basebackup -F t`), plain or compressed: read without unpacking everything.

    base.tar    the data directory
    OID.tar     a tablespace: PG_15_202209061/DATABASE/FILE, which a data directory has below pg_tblspc/OID
    pg_wal.tar  WAL from the backup's start to its end

A compressed archive can only be read from front to back, so each pass copies the needed files into a folder that then
is a small data directory. The first pass copies the files that describe the backup, pg_xact, pg_multixact, the
relation maps, and the catalogs' files under the numbers that initdb gave them. If VACUUM FULL has given a catalog
another file, these files show it, and a second pass follows. In plain archives all other files are skipped.

No path for writing comes from an archive: paths are built from names that match as a whole, and links, devices and
folders in it are skipped. The standard library parses only the 512 bytes of one header at a time.
"""

import io
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemark.decode.catalog.layout import CATALOG_OF_OID
from tidemark.io.archive.segment_file import SKIP_BYTES, DamagedFile, Readable, open_unpacked, skip
from tidemark.wal.data_directory import BackupUnusable, NotABackup

MEMBER_BYTES_MAX = 1 << 30  # of one file: a relation's files are no larger (RELSEG_SIZE)
_ARCHIVE = re.compile(r"(base|pg_wal|[1-9][0-9]{0,9})\.tar(?:\.gz|\.lz4|\.zst)?")
_DATABASE = r"(?:global|base/[0-9]{1,10}|pg_tblspc/[0-9]{1,10}/PG_[0-9]{1,3}_[0-9]{1,10}/[0-9]{1,10})"
_RELATION = re.compile(rf"({_DATABASE}/([0-9]{{1,10}}))(?:\.[0-9]{{1,6}})?")
_SMALL = re.compile(
    r"PG_VERSION|backup_label|backup_manifest|postmaster\.pid|global/pg_control|pg_(?:xact|multixact/offsets|multixact/members)/[0-9A-F]{4}"
    rf"|{_DATABASE}/pg_filenode\.map"
)
_WAL = re.compile(r"pg_wal/(?:[0-9A-F]{24}|[0-9A-F]{8}\.history)")


def has_archives(folder: Path) -> bool:
    """Return whether `folder` contains a backup in tar format."""
    return "base" in _archives(folder)


def may_be_read(name: str) -> bool:
    """Return whether `name` is a file of a data directory that catalogs may be read from."""
    return _SMALL.fullmatch(name) is not None or _RELATION.fullmatch(name) is not None


class TarBackup:
    """The archives of one backup, and the folder into which their files are copied."""

    def __init__(self, folder: Path, copied: Path) -> None:
        self.copied = copied
        self._archives = _archives(folder)
        self._wal = self._archives.pop("pg_wal", None)  # `-X fetch` puts WAL into base.tar
        self._sought: set[str] = set()  # relations' files, without segment numbers
        self._copy(lambda name: _SMALL.fullmatch(name) is not None or _is_original_catalog(name))

    def fetch(self, relations: Iterable[Path]) -> None:
        """Copy relations, given by the paths of their first files, unless they were copied before."""
        names = {str(path) for path in relations}
        missing = {name for name in names - self._sought if not _is_original_catalog(name)}
        self._sought |= missing
        if missing:
            self._copy(lambda name: (found := _RELATION.fullmatch(name)) is not None and found[1] in missing)

    def fetch_wal(self) -> None:
        """Copy the WAL of the backup, if it contains any."""
        path, prefix = (self._archives["base"], "") if self._wal is None else (self._wal, "pg_wal/")
        _copy_out(path, self.copied, prefix, lambda name: _WAL.fullmatch(name) is not None)

    def _copy(self, wants: Callable[[str], bool]) -> None:
        for name, path in self._archives.items():
            _copy_out(path, self.copied, "" if name == "base" else f"pg_tblspc/{name}/", wants)


@contextmanager
def opened_archives(folder: Path) -> Iterator[TarBackup]:
    """Copy the needed files of the archives in `folder`; remove all copies at the end."""
    with TemporaryDirectory(prefix="tidemark-backup-") as copied:
        yield TarBackup(folder, Path(copied))


def _archives(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.tar*")):
        matched = _ARCHIVE.fullmatch(path.name)
        if matched is None:
            continue
        if matched[1] in found:
            text = f"{folder} contains both {found[matched[1]].name} and {path.name}"
            raise NotABackup(text, hint="keep only the one that belongs to this backup")
        found[matched[1]] = path
    return found


def _is_original_catalog(name: str) -> bool:
    """Return whether `name` is a file of a tracked catalog under initdb's number."""
    found = _RELATION.fullmatch(name)
    return found is not None and int(found[2]) in CATALOG_OF_OID


def _copy_out(path: Path, target: Path, prefix: str, wants: Callable[[str], bool]) -> None:
    """Copy the files that `wants` accepts from one archive."""
    try:
        with open_unpacked(path) as archive:
            for member in _members(path, archive):
                name = prefix + member.name.removeprefix("./")
                size = member.size
                if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and wants(name):
                    _copy_member(path, archive, member, target / name)
                    size = 0
                _pass_over(archive, size + -member.size % tarfile.BLOCKSIZE)
    except DamagedFile as error:
        raise BackupUnusable(str(error)) from error
    except OSError as error:
        text = f"cannot copy files out of {path}: {error.strerror or error}"
        hint = (
            "permit the user that runs cdcctl to read the backup; its catalogs are copied into TMPDIR, which needs "
            "free space"
        )
        raise NotABackup(text, hint=hint) from error


def _members(path: Path, archive: Readable) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of an archive; the consumer reads or skips the content before the next one."""
    while True:
        block = archive.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE:
            raise BackupUnusable(f"{path} is truncated: the end of the archive is missing")
        if not any(block):
            return
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise BackupUnusable(f"{path} is damaged, or not a tar archive: {error}") from error
        if member.size < 0:
            raise BackupUnusable(f"{path} is damaged: {member.name!r} has {member.size} bytes")
        yield member


def _copy_member(path: Path, archive: Readable, member: tarfile.TarInfo, target: Path) -> None:
    if member.size > MEMBER_BYTES_MAX:
        raise BackupUnusable(f"{path}: {member.name} has {member.size} bytes; at most {MEMBER_BYTES_MAX} are read")
    target.parent.mkdir(parents=True, exist_ok=True)
    left = member.size
    with target.open("wb") as copy:
        while left:
            block = archive.read(min(left, SKIP_BYTES))
            if not block:
                raise BackupUnusable(f"{path} is truncated within {member.name}")
            copy.write(block)
            left -= len(block)


def _pass_over(archive: Readable, size: int) -> None:
    """Skip `size` bytes, or up to the end of the archive, where the next header is then missing."""
    if isinstance(archive, io.BufferedReader):  # an uncompressed archive
        archive.seek(min(archive.tell() + size, os.fstat(archive.fileno()).st_size))
    else:
        skip(archive, size)
