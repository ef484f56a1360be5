"""The spool: a folder that we own, into which the node's archive_command copies WAL (I25, I26, I27).

Standard library only: `cdcctl-archive` runs it for every segment.

SPOOL/.tidemark     marks the folder as ours, with its cluster: without it nothing is written or removed
SPOOL/.holes        the ledger of failures (`hole_ledger`)
SPOOL/NAME          a complete file of the archive: written under another name, synced, then renamed
SPOOL/.NAME.new     one that is being written

The server's user writes here, the capture's user reads and trims. If these are two users, a group that contains both
shares the folder; files get the folder's permissions, independent of the server's umask (usually 0077).
"""

import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tidemark.io.archive.hole_ledger import HoleLedger
from tidemark.io.host.disk import sync, write_all
from tidemark.model.errors import ConfigError, StateError
from tidemark.wal.segments import FileKind, file_kind

_COPY_BYTES = 1 << 20
_SYSTEM_IDENTIFIER = struct.Struct("<Q")
_SYSTEM_IDENTIFIER_AT = 24  # XLogLongPageHeaderData.xlp_sysid
_FOLDER_MODE = 0o700
_SHARED_FOLDER_MODE = 0o2770  # set-group-ID: new files belong to the folder's group
_SHARED_FILE_MODE, _SHARED_LEDGER_MODE = 0o640, 0o660
_GROUP = 0o070
_PROBE_BYTES = 1 << 16


class NoSpool(ConfigError):
    """A folder that is not our spool."""

    hint = "create the spool with cdcctl init, and set it as --spool in archive_command"


class NotArchived(StateError):
    """A file that could not be copied into the spool."""

    hint = "check the disk of the spool; the server retries; archive.hold_s and archive.hold_bytes limit this"


class OtherContent(StateError):
    """A file of the same name with other contents exists."""

    hint = "two clusters archive into one spool, or a cluster was restored: give each cluster a separate spool"


@dataclass(frozen=True, slots=True)
class Spool:
    """A folder of archived WAL."""

    folder: Path

    @property
    def ledger(self) -> Path:
        """The path of the ledger of failures."""
        return self.folder / ".holes"

    @property
    def sentinel(self) -> Path:
        """The file that marks the folder as a spool of one cluster."""
        return self.folder / ".tidemark"

    @property
    def is_ours(self) -> bool:
        """Return whether the folder is a spool: in any other folder nothing is written or removed."""
        return self.sentinel.exists()

    @property
    def is_vacant(self) -> bool:
        """Return whether the folder does not exist, or contains only what `create` or a file system puts there."""
        try:
            names = {entry.name for entry in os.scandir(self.folder)}
        except FileNotFoundError:
            return True
        except OSError:
            return False  # a later listing reports the error
        return names <= {self.ledger.name, "lost+found"}

    def create(self, system_identifier: int, group_id: int | None = None) -> None:
        """Make the folder a spool, shared with a group if one is given; an existing spool is shared as well."""
        self.check_owner(system_identifier)
        if self.is_ours:
            if group_id is not None:
                self._share(group_id)
            return
        if not self.is_vacant:
            raise ConfigError(
                f"{self.folder} is not empty, and is not a spool",
                hint="choose an empty folder: Tidemark never writes into a folder that another program fills",
            )
        self.folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        if group_id is not None:
            self._share(group_id)
        self.make_ledger()
        _write(self.sentinel, [f"{system_identifier}\n".encode()], self.file_mode)
        sync(self.folder)

    def _share(self, group_id: int) -> None:
        """Share the folder and its existing files with a group."""
        found = self.folder.stat()
        if (found.st_gid, stat.S_IMODE(found.st_mode)) != (group_id, _SHARED_FOLDER_MODE):
            os.chown(self.folder, -1, group_id)
            self.folder.chmod(_SHARED_FOLDER_MODE)
        with os.scandir(self.folder) as entries:
            files = [Path(entry) for entry in entries if entry.is_file(follow_symlinks=False)]
        for path in files:
            mode = _SHARED_LEDGER_MODE if path == self.ledger else _SHARED_FILE_MODE
            found = path.stat()
            if (found.st_gid, stat.S_IMODE(found.st_mode)) == (group_id, mode):
                continue
            if os.geteuid() not in (0, found.st_uid):
                continue  # the server's file: `file_access` names it if we cannot read it
            os.chown(path, -1, group_id)
            path.chmod(mode)

    def make_ledger(self) -> None:
        """Create the ledger if it does not exist."""
        # Every program that fills the spool writes the ledger in place, whichever created it.
        HoleLedger.create(self.ledger, _SHARED_LEDGER_MODE if self.is_shared else 0o600)

    @property
    def file_mode(self) -> int:
        """The permissions of the files in the spool."""
        return _SHARED_FILE_MODE if self.is_shared else 0o600

    @property
    def is_shared(self) -> bool:
        """Return whether a group shares the folder."""
        return bool(stat.S_IMODE(self.folder.stat().st_mode) & _GROUP)

    def system_identifier(self) -> int:
        """Return the cluster of the spool."""
        try:
            return int(self.sentinel.read_text())
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise NoSpool(f"{self.folder} is not a spool of Tidemark") from error

    def keep(self, source: Path, name: str, *, free_bytes_min: int = 0) -> None:
        """Copy `source` durably into the spool as `name`; succeed if an equal file exists."""
        expected = self.system_identifier()
        kind = file_kind(name)
        if kind is FileKind.OTHER:
            raise ConfigError(
                f"{name!r} is not the name of a WAL file", hint="archive_command = 'cdcctl-archive --spool DIR %p %f'"
            )
        target, new = self.folder / name, self.folder / f".{name}.new"
        try:
            with source.open("rb", buffering=0) as file:
                if kind in (FileKind.SEGMENT, FileKind.PARTIAL):
                    _check_segment(file.fileno(), name, expected)
                if target.exists():
                    _check_same(file.fileno(), target)
                    sync(target)
                else:
                    self._check_space(os.fstat(file.fileno()).st_size + free_bytes_min)
                    _copy(file.fileno(), new, self.file_mode)
                    new.rename(target)
            sync(self.folder)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise NotArchived(f"{name}: {error.strerror}") from error

    def probe(self, *, free_bytes_min: int = 0) -> None:
        """Do the same as `keep` with a file that is removed at the end; raise the same errors."""
        self.system_identifier()
        path = self.folder / ".probe.new"
        try:
            self._check_space(_PROBE_BYTES + free_bytes_min)
            _write(path, [bytes(_PROBE_BYTES)], self.file_mode)
            path.unlink()
            with HoleLedger.open(self.ledger, writable=True):
                sync(self.folder)
        except OSError as error:
            raise NotArchived(f"{error.filename or self.folder}: {error.strerror}") from error

    def check_owner(self, system_identifier: int) -> None:
        """Raise `ConfigError` if this is the spool of another cluster."""
        if self.is_ours and (found := self.system_identifier()) != system_identifier:
            raise ConfigError(
                f"{self.folder} is the spool of cluster {found}, not of {system_identifier}",
                hint="give each cluster a separate spool",
            )

    def _check_space(self, needed: int) -> None:
        found = os.statvfs(self.folder)
        if (free := found.f_bavail * found.f_frsize) < needed:
            raise NotArchived(f"{self.folder} has {free} bytes free, less than archive.free_bytes_min")


def _check_segment(source: int, name: str, expected: int) -> None:
    packed = os.pread(source, _SYSTEM_IDENTIFIER.size, _SYSTEM_IDENTIFIER_AT)
    found = _SYSTEM_IDENTIFIER.unpack(packed)[0] if len(packed) == _SYSTEM_IDENTIFIER.size else 0
    if found != expected:
        raise OtherContent(f"{name} is WAL of cluster {found}, but the spool is of {expected}")


def _check_same(source: int, target: Path) -> None:
    with target.open("rb", buffering=0) as there:
        same = os.fstat(source).st_size == os.fstat(there.fileno()).st_size
        at = 0
        while same and (block := os.pread(source, _COPY_BYTES, at)):
            same = block == os.pread(there.fileno(), _COPY_BYTES, at)
            at += len(block)
    if not same:
        raise OtherContent(f"{target} exists with different content")


def _copy(source: int, target: Path, mode: int) -> None:
    _write(target, iter(partial(os.read, source, _COPY_BYTES), b""), mode)


def _write(target: Path, blocks: Iterable[bytes], mode: int) -> None:
    """Write a file durably."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)  # independent of the umask
        for block in blocks:
            write_all(descriptor, block)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
