"""Paths of the local file system: a URL is rejected, because it would become the name of a local folder.

A lake may also be in an object store: then its location is the URL `s3://bucket/prefix`.
"""

import os
import re
from pathlib import Path

from tidemark.model.errors import ConfigError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # NB: at least two letters; one slash, since Path collapses two
_STORE = "s3://"
_PATH_HINT = "choose a folder whose path has no %, backslash, [, ], ^, | or control character"
_LAKE = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9_=.-]+)*")
# NB: delta-rs makes a URL of a path and decodes it again (1.6): it writes to one folder and reads from another one, or
# panics. Measured for each character of ASCII.
_NO_LAKE = re.compile(r"%[0-9A-Fa-f]{2}|[\\\[\]^|\x00-\x1f\x7f]")
_NOT_UTF8 = re.compile(r"[\ud800-\udfff]")  # PEP 383: bytes of a path that are no text


class NotLocal(ConfigError):
    """A URL instead of a local path."""

    hint = "give a folder of a local file system; of all paths, only that of a lake may be in an object store"


class NotText(ConfigError):
    """A path whose bytes are not UTF-8: configurations, logs, the lake and Spark have paths as text."""

    hint = "rename the folder or the file: its name is not UTF-8"


class NoLakeLocation(ConfigError):
    """A URL or a path that cannot be the location of a lake."""

    hint = (
        "give a folder of a local file system, or s3://BUCKET/PREFIX: names of ASCII letters, digits, _, =, . and -, "
        "with single slashes between them"
    )


def local_path(text: str, what: str = "") -> Path:
    """Return a path, which need not exist; raise `NotLocal` for a URL, `NotText`; `what` names its purpose."""
    said = f"{what + ': ' if what else ''}{text}"
    if _SCHEME.match(text):
        raise NotLocal(f"{said} is a URL, not a local path")
    if _NOT_UTF8.search(text):
        raise NotText(f"{said} is not UTF-8")
    return Path(text)


def is_in_store(text: str) -> bool:
    """Return whether text is the location of a lake in an object store."""
    return text.startswith(_STORE)


def lake_location(text: str, what: str = "") -> str:
    """Return the location of a lake: an absolute path, or a URL without a slash at its end.

    Raises `NoLakeLocation` or `NotText`.
    """
    said = f"{what + ': ' if what else ''}{text}"
    if not _SCHEME.match(text):
        path = str(local_path(text, what).absolute())
        for used in (path, os.path.realpath(path)):  # NB: delta-rs follows symbolic links first
            if found := _NO_LAKE.search(used):
                shown = said if used == path else f"{said} is {used}"
                raise NoLakeLocation(f"{shown}: no lake can be in a path with {found[0]!r}", hint=_PATH_HINT)
        return path
    if not is_in_store(text):
        raise NoLakeLocation(f"{said} is a URL of another store than s3://")
    location = text.rstrip("/")
    if not _LAKE.fullmatch(location) or any(part in (".", "..") for part in location.split("/")):
        raise NoLakeLocation(f"{said} is not a location in an object store")
    return location
