"""The archive folder at `cdcctl init`: made our spool, or left to the program that fills it (I25).

A folder that is missing or empty becomes a spool, which the server's archive_command or pg_receivewal fills and which
is trimmed. A folder that already has WAL is another program's backup: it is read, and never written.
"""

import grp
import os
import shlex
import shutil
import subprocess
import sys
from enum import Enum
from importlib.util import find_spec
from pathlib import Path

from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.archive.spool import Spool
from tidemark.io.archive.spool_access import ServerCannotArchive, is_filled_by, spool_access_error
from tidemark.io.host.file_access import EXECUTE, READ, ServerUser, access_error
from tidemark.io.process.config import Config
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import SystemIdentifier

_PROGRAM = "cdcctl-archive"
_MODULES = ("tidemark_archiver.archive_command", "tidemark.io.archive.spool")
PROBE_S = 30.0
_PATH = "/usr/local/bin:/usr/bin:/bin"
_SHEBANG_BYTES = 256


class ArchiveKind(Enum):
    """The owner of the archive folder."""

    SPOOL = "spool"  # ours: filled for us, trimmed by us
    FOREIGN = "foreign"  # read, never written


def archive_kind(folder: Path, system_identifier: SystemIdentifier) -> ArchiveKind:
    """Return the kind that a folder has or will have; raise `ConfigError` if it is another cluster's or has no WAL."""
    spool = Spool(folder)
    if spool.is_ours or spool.is_vacant:
        spool.check_owner(system_identifier)
        return ArchiveKind.SPOOL
    found = ArchiveFolder(folder, of=system_identifier).system_identifier
    if found != system_identifier:
        raise ConfigError(
            f"{folder} contains WAL of cluster {found}, not of {system_identifier}",
            hint="set archive.folder to the archive of this cluster, or to an empty folder",
        )
    return ArchiveKind.FOREIGN


def prepare_archive(config: Config, system_identifier: SystemIdentifier, user: ServerUser | None) -> ArchiveKind | None:
    """Make the configured folder a spool if it is vacant; return its kind, None if no folder is configured.

    `user`: the server's user, if known; raise `ServerCannotArchive` if that user cannot fill the spool.
    """
    if not config.has_archive:
        return None
    folder = Path(config.archive.folder)
    kind = archive_kind(folder, system_identifier)
    if kind is ArchiveKind.SPOOL:
        check_can_fill(config, user)
        try:
            Spool(folder).create(system_identifier, _group_id(config.capture.group))
        except OSError as error:
            raise ConfigError(
                f"cannot create a spool in {folder}: {error.strerror}",
                hint="the user that runs cdcctl init must own archive.folder or its parent folder",
            ) from error
        check_spool(config, user)
    return kind


def check_can_fill(config: Config, user: ServerUser | None) -> None:
    """Raise `ServerCannotArchive` if the server's user could not fill a spool once it is created or shared."""
    folder, group = Path(config.archive.folder), config.capture.group
    if not is_filled_by(config.archive, user):
        return
    assert user is not None, "else nothing is known"
    above = next((path for path in folder.absolute().parents if path.exists()), Path("/"))
    found = access_error(user, above, EXECUTE)
    if found is not None:
        raise ServerCannotArchive(f"the server cannot fill the spool {folder}: {found}")
    if group:
        if not user.is_in(_known_group(group)) and user.uid not in (0, os.geteuid()):
            raise ServerCannotArchive(
                f"the server cannot fill the spool {folder}: its process (user {user.name}) is not in the "
                f"group {group} (capture.group)"
            )
    elif user.uid not in (0, os.geteuid()) and not Spool(folder).is_ours:
        raise ServerCannotArchive(
            f"the server cannot fill the spool {folder}: it runs as {user.name}, but the capture runs as another user"
        )


def check_spool(config: Config, user: ServerUser | None) -> None:
    """Raise `ServerCannotArchive` if the server's user cannot fill the existing spool."""
    found = spool_access_error(config.archive, user)
    if found is not None:
        raise ServerCannotArchive(f"the server cannot fill the spool {config.archive.folder}: {found}")


def try_program(config: Config, user: ServerUser | None) -> bool:
    """Check that the server's user can run the program; return whether this could be checked.

    By permission bits, and by running it if we are that user, or root.
    """
    if not is_filled_by(config.archive, user):
        return False
    assert user is not None, "else nothing is known"
    program = Path(_program(config))
    for path, wanted in _needed(program, is_own=not config.archive.program):
        found = access_error(user, path, wanted) if path.exists() else f"{path} does not exist"
        if found is not None:
            raise _not_runnable(program, found)
    if os.geteuid() not in (0, user.uid):
        return True
    command = _probe_words(config)
    groups = [*user.groups] if os.geteuid() == 0 else None
    ids = (user.uid, user.gid) if os.geteuid() == 0 else (None, None)
    try:
        done = subprocess.run(
            command,
            user=ids[0],
            group=ids[1],
            extra_groups=groups,
            cwd="/",
            env={"PATH": _PATH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=PROBE_S,
        )
    except OSError as error:
        raise _not_runnable(program, f"run by the user {user.name}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _not_runnable(program, f"run by the user {user.name}, it takes longer than {PROBE_S:.0f} s") from error
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["it prints nothing"])[-1]
        raise _not_runnable(
            program, f"run by the user {user.name}, it ends with exit code {done.returncode}: {last_line}"
        )
    return True


def probe_line(config: Config) -> str:
    """Return the shell command by which the server's user can try the program."""
    return shlex.join(_probe_words(config))


def _probe_words(config: Config) -> list[str]:
    archive = config.archive
    return [_program(config), "--spool", archive.folder, "--free-bytes-min", str(archive.free_bytes_min), "--probe"]


def archive_setting(config: Config) -> str:
    """Return the line for postgresql.conf that makes the server fill our spool."""
    archive = config.archive
    # The server runs the command in its data directory and expands `%` itself.
    words = [_program(config), "--spool", archive.folder, "--hold-s", f"{archive.hold_s:g}"]
    words += ["--hold-bytes", str(archive.hold_bytes), "--free-bytes-min", str(archive.free_bytes_min)]
    command = f"{shlex.join(words).replace('%', '%%')} %p %f"
    return f"archive_command = '{command.replace(chr(39), chr(39) * 2)}'"


def _program(config: Config) -> str:
    beside = shutil.which(_PROGRAM, path=str(Path(sys.executable).parent))
    return config.archive.program or beside or shutil.which(_PROGRAM) or _PROGRAM


def _needed(program: Path, *, is_own: bool) -> list[tuple[Path, int]]:
    """Return the files that the program needs: itself, its interpreter, and its modules if it is our installed one."""
    needed = [(program, READ | EXECUTE)]
    try:
        with program.open("rb") as file:
            first = file.read(_SHEBANG_BYTES).split(b"\n", 1)[0]
    except OSError:
        return needed
    if first.startswith(b"#!"):
        needed.append((Path(os.fsdecode(first[2:].split()[0])), EXECUTE))
    if is_own:
        origins = [spec.origin for name in _MODULES if (spec := find_spec(name)) is not None]
        needed += [(Path(origin), READ) for origin in origins if origin is not None]
    return needed


def _not_runnable(program: Path, reason: str) -> ServerCannotArchive:
    return ServerCannotArchive(
        f"the server cannot run {program}: {reason}",
        hint="permit the user of the server to enter the folders and to execute the program, or set archive.program "
        "to a copy of it; a command that cannot be executed (exit code 126) makes the server keep WAL without "
        "bound",
    )


def _group_id(group: str) -> int | None:
    return _known_group(group) if group else None


def _known_group(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(
            f"capture.group: there is no group {group!r}", hint="create the group, or set another one"
        ) from None
