"""Checks files of a base backup against its manifest: each file once, as a whole, before it is used.

Only the files that are used are checked, and so read twice: those of the catalogs, some megabytes for each database,
and those of tables whose rows are read. A backup by another tool, or by `pg_basebackup --no-manifest`, has no manifest:
nothing is checked then.
"""

import os
from collections.abc import Callable
from pathlib import Path

from tidemark.wal.backup_manifest import BackupManifest, ManifestEntry, NotAsListed, parse_manifest
from tidemark.wal.data_directory import NotABackup

MANIFEST_FILE = "backup_manifest"
MANIFEST_BYTES_MAX = 1 << 30  # one file takes about 150 bytes of it
_PIECE_BYTES = 1 << 20


class ManifestCheck:
    """The contents of a manifest, and the files that were checked against it."""

    def __init__(self, manifest: BackupManifest, files: Path, folder: Path) -> None:
        """`files` contains the files, `folder` is the backup's name in errors."""
        self.manifest = manifest
        self._files = files
        self._folder = folder
        self._seen: set[str] = set()

    def check(self, name: str) -> None:
        """Check that a file is unchanged, or that an unlisted one does not exist."""
        if name in self._seen:
            return
        listed, path = self.manifest.files.get(name), self._files / name
        try:
            differs = _difference(path, listed)
        except FileNotFoundError:
            differs = "is not there" if listed is not None else None
        except OSError as error:
            raise unreadable(path, error) from error
        if differs is not None:
            where = self._folder / MANIFEST_FILE
            raise NotAsListed(f"{self._folder / name} differs from {where}: it {differs}")
        self._seen.add(name)


def _difference(path: Path, listed: ManifestEntry | None) -> str | None:
    """Return how a file differs from its entry in the manifest."""
    with path.open("rb") as file:
        if listed is None:
            return "is not listed"
        size = os.fstat(file.fileno()).st_size
        if size != listed.size:
            return f"has {size} bytes, but {listed.size} are listed"
        checksum = listed.new_checksum()
        if checksum is None:
            return None
        while piece := file.read(_PIECE_BYTES):
            checksum.update(piece)
        return None if checksum.digest() == listed.checksum else f"fails its {listed.algorithm} checksum"


def read_backup_manifest(folder: Path, files: Path, wanted: Callable[[str], bool]) -> ManifestCheck | None:
    """Return the manifest of the backup `folder`; None if there is none.

    It is beside the tar archives; a backup that was written to a pipe has it among its `files`.
    """
    for path in (folder / MANIFEST_FILE, files / MANIFEST_FILE):
        try:
            with path.open("rb") as file:
                content = file.read(MANIFEST_BYTES_MAX + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(path, error) from error
        if len(content) > MANIFEST_BYTES_MAX:
            hint = "move it away: the backup is then read without a check against it"
            raise NotABackup(f"{path} has more than {MANIFEST_BYTES_MAX} bytes", hint=hint)
        return ManifestCheck(parse_manifest(content, str(folder / MANIFEST_FILE), wanted), files, folder)
    return None


def unreadable(path: Path, error: OSError) -> NotABackup:
    """Return the error for a file that the operating system cannot read."""
    return NotABackup(
        f"cannot read {path}: {error.strerror}", hint="permit the user that runs cdcctl to read the backup"
    )
