"""backup_manifest: the files of a base backup as the server sent them, and the WAL that it needs (PG 13 on).

    {"PostgreSQL-Backup-Manifest-Version": 2, "System-Identifier": N,    the identifier since 17
     "Files": [{"Path": "base/5/1259", "Size": N, "Checksum-Algorithm": "CRC32C", "Checksum": "hex"}, ...],
     "WAL-Ranges": [{"Timeline": N, "Start-LSN": "0/2000028", "End-LSN": "0/2000100"}],
     "Manifest-Checksum": "hex"}                                         a separate line: SHA-256 of all lines before

A name that is not UTF-8 is hexadecimal (`Encoded-Path`), as are all names with `--manifest-force-encode`; checksums are
optional. A standby that changed its timeline during the backup has a range for each (`backup_manifest.c`, PG 18).
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import google_crc32c

from tidemark.model.errors import ConfigError, InvalidLsn
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId, parse_lsn

_VERSIONS = (1, 2)
_LAST_LINE = re.compile(rb'"Manifest-Checksum": *"([0-9a-f]{64})" *\} *\n')


class NotAsListed(ConfigError):
    """A base backup that differs from its manifest."""

    hint = "copy the backup again from its storage, or take another (pg_basebackup)"


class Checksum(Protocol):
    """A checksum that is computed piece by piece."""

    def update(self, content: bytes, /) -> None:
        """Add data."""

    def digest(self) -> bytes:
        """Return the checksum of the added data."""


class _Crc32c:
    def __init__(self) -> None:
        self._crc = 0

    def update(self, content: bytes, /) -> None:
        """Add data."""
        self._crc = google_crc32c.extend(self._crc, content)

    def digest(self) -> bytes:
        """Return the checksum in the byte order of the server's memory (`pg_checksum_final`)."""
        return self._crc.to_bytes(4, "little")


_ALGORITHMS: Mapping[str, Callable[[], Checksum]] = {
    "CRC32C": _Crc32c,
    **{name: partial(hashlib.new, name.lower()) for name in ("SHA224", "SHA256", "SHA384", "SHA512")},
}


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A file as it was sent."""

    size: int
    algorithm: str | None  # None: the backup was taken without checksums
    checksum: bytes

    def new_checksum(self) -> Checksum | None:
        """Return a new checksum of the listed algorithm."""
        return _ALGORITHMS[self.algorithm]() if self.algorithm is not None else None


class WalRange(NamedTuple):
    """WAL that is needed to use the backup."""

    timeline: TimelineId
    start_lsn: Lsn
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The content of a manifest whose own checksum is correct."""

    system_identifier: SystemIdentifier | None  # since 17
    files: Mapping[str, ManifestEntry]
    wal_ranges: Sequence[WalRange]

    @property
    def end_lsn(self) -> Lsn | None:
        """The end of the backup's WAL; None if the manifest lists no WAL."""
        return max((wal_range.end_lsn for wal_range in self.wal_ranges), default=None)


class _NamedFile(NamedTuple):
    path: str
    listed: ManifestEntry


def parse_manifest(content: bytes, where: str, wanted: Callable[[str], bool]) -> BackupManifest:
    """Return the WAL ranges and the `wanted` files of backup_manifest; `where` names it in errors."""
    _check_own_checksum(content, where)
    try:
        # NB: each file becomes a small object, or none, as soon as it is read: a backup may have a million files.
        top: object = json.loads(content, object_hook=partial(_object, wanted))
        return _manifest(top)
    except (ValueError, KeyError, TypeError, RecursionError, InvalidLsn) as error:
        # NB: not its repr, which for a decoding error contains the whole document
        cause = f"{type(error).__name__}: {error}"
        raise NotAsListed(f"{where} is not a readable backup manifest: {cause}") from error


def _check_own_checksum(content: bytes, where: str) -> None:
    last = content.rfind(b"\n", 0, -1) + 1
    found = _LAST_LINE.fullmatch(content, last)
    if found is None:
        raise NotAsListed(f"{where} is cut off: it does not end with its own checksum")
    if hashlib.sha256(content[:last]).hexdigest() != found[1].decode("ascii"):
        raise NotAsListed(f"{where} fails its own checksum: it was changed after the backup was taken")


def _object(wanted: Callable[[str], bool], found: dict[str, object]) -> object:
    """Convert an object of the document to its type."""
    if "Path" in found or "Encoded-Path" in found:
        path = _path(found)
        return _NamedFile(path, _listed(found)) if wanted(path) else None
    if "Start-LSN" in found:
        start_lsn, end_lsn = (parse_lsn(_text(found[name])) for name in ("Start-LSN", "End-LSN"))
        return WalRange(TimelineId(_number(found["Timeline"])), start_lsn, end_lsn)
    return found


def _path(found: dict[str, object]) -> str:
    if "Path" in found:
        return _text(found["Path"])
    return bytes.fromhex(_text(found["Encoded-Path"])).decode("utf-8", "surrogateescape")


def _listed(found: dict[str, object]) -> ManifestEntry:
    size, algorithm = _number(found["Size"]), found.get("Checksum-Algorithm")
    if algorithm is None:
        return ManifestEntry(size, None, b"")
    name = _text(algorithm).upper()
    if name not in _ALGORITHMS:
        raise ValueError(f"unknown checksum algorithm {name}")
    return ManifestEntry(size, name, bytes.fromhex(_text(found["Checksum"])))


def _manifest(top: object) -> BackupManifest:
    if not isinstance(top, dict):
        raise TypeError("not an object")
    version = top["PostgreSQL-Backup-Manifest-Version"]
    if version not in _VERSIONS:
        raise ValueError(f"version {version}")
    identifier: object = top.get("System-Identifier")
    files = [found for found in _list(top["Files"]) if isinstance(found, _NamedFile)]
    ranges = [found for found in _list(top.get("WAL-Ranges", [])) if isinstance(found, WalRange)]
    return BackupManifest(
        SystemIdentifier(_number(identifier)) if identifier is not None else None,
        {found.path: found.listed for found in files},
        ranges,
    )


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"{type(value).__name__} instead of a number")
    return value
