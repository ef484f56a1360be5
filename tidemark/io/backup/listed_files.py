"""Checks files of a base backup against its manifest: each file that is used, first, once, whole.

Only the catalogs of a backup are used, some megabytes for each database: those are read twice, the rest not at all. A
backup of another tool, or of `pg_basebackup --no-manifest`, has no manifest: nothing is checked then.
"""

import os
from collections.abc import Callable
from pathlib import Path

from tidemark.wal.backup_manifest import BackupManifest, ListedFile, NotAsListed, parse_manifest
from tidemark.wal.data_directory import NotABackup

MANIFEST_FILE = "backup_manifest"
MANIFEST_BYTES_MAX = 1 << 30  # a file takes a line of about 150 bytes in it
_PIECE_BYTES = 1 << 20


class ListedFiles:
    """What a manifest says, and which files were found to be so."""

    def __init__(self, manifest: BackupManifest, files: Path, folder: Path) -> None:
        """`files` is where the files stand now, `folder` the name of the backup in errors."""
        self.manifest = manifest
        self._files = files
        self._folder = folder
        self._seen: set[str] = set()

    def check(self, name: str) -> None:
        """See that a file is as it was sent, and that one which was not sent is not there."""
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


def _difference(path: Path, listed: ListedFile | None) -> str | None:
    """Return what is otherwise about a file than its listing says."""
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


def listed_files(folder: Path, files: Path, wanted: Callable[[str], bool]) -> ListedFiles | None:
    """Return what the manifest of the backup `folder` lists; None where there is none.

    It stands beside archives, but for a backup that was written to a pipe: that has it among its `files`.
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
        return ListedFiles(parse_manifest(content, str(folder / MANIFEST_FILE), wanted), files, folder)
    return None


def unreadable(path: Path, error: OSError) -> NotABackup:
    """Return the error of a file that the system does not let us read."""
    return NotABackup(
        f"cannot read {path}: {error.strerror}", hint="permit the user that runs cdcctl to read the backup"
    )
