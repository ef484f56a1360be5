"""The archive folder as `cdcctl init` finds it: made a spool of ours, or left to whoever fills it (I25).

A folder that is missing or empty becomes a spool, which the server's archive_command or pg_receivewal fills and which
is trimmed. One that has WAL in it already is somebody's backup: it is read, and nothing in it is ever written.
"""

import grp
import shlex
import shutil
import sys
from enum import Enum
from pathlib import Path

from tidemark.io.archive import ArchiveFolder
from tidemark.io.config import Config
from tidemark.io.spool import Spool
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import SystemIdentifier

_PROGRAM = "cdcctl-archive"


class ArchiveKind(Enum):
    """Whose the folder is."""

    SPOOL = "spool"  # ours: filled for us, trimmed by us
    FOREIGN = "foreign"  # read, never written


def archive_kind(folder: Path, system_identifier: SystemIdentifier) -> ArchiveKind:
    """Return what a folder is, or would be made; raise `ConfigError` if it is another cluster's, or nothing of WAL."""
    spool = Spool(folder)
    if spool.is_ours or spool.is_vacant:
        spool.check_owner(system_identifier)
        return ArchiveKind.SPOOL
    found = ArchiveFolder(folder, of=system_identifier).system_identifier
    if found != system_identifier:
        raise ConfigError(
            f"{folder} has WAL of the cluster {found}, not of {system_identifier}",
            hint="archive.folder: name the archive of this cluster, or an empty folder",
        )
    return ArchiveKind.FOREIGN


def adopt_archive(config: Config, system_identifier: SystemIdentifier) -> ArchiveKind | None:
    """Make the configured folder a spool if it is vacant; tell what it is, None where none is configured."""
    if not config.has_archive:
        return None
    folder = Path(config.archive.folder)
    kind = archive_kind(folder, system_identifier)
    if kind is ArchiveKind.SPOOL:
        try:
            Spool(folder).create(system_identifier, _group_id(config.capture.group))
        except OSError as error:
            raise ConfigError(
                f"cannot make a spool of {folder}: {error.strerror}",
                hint="archive.folder: let the user that runs cdcctl init own it, or the folder above it",
            ) from error
    return kind


def archive_setting(config: Config) -> str:
    """Return the line for postgresql.conf that has the server fill our spool."""
    program = shutil.which(_PROGRAM, path=str(Path(sys.executable).parent)) or shutil.which(_PROGRAM) or _PROGRAM
    archive = config.archive
    # The server runs it in its data folder, and takes `%` for its own.
    words = [program, "--spool", archive.folder, "--hold-s", f"{archive.hold_s:g}"]
    words += ["--hold-bytes", str(archive.hold_bytes), "--free-bytes-min", str(archive.free_bytes_min)]
    command = f"{shlex.join(words).replace('%', '%%')} %p %f"
    return f"archive_command = '{command.replace(chr(39), chr(39) * 2)}'"


def _group_id(group: str) -> int | None:
    return grp.getgrnam(group).gr_gid if group else None
