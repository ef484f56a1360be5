"""Paths of the local file system: a URL is rejected, because it would become the name of a local folder."""

import re
from pathlib import Path

from tidemark.model.errors import ConfigError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # NB: at least two letters; one slash, since Path collapses two


class NotLocal(ConfigError):
    """A URL instead of a local path."""

    hint = "give a folder of a local file system; object stores are not supported"


def local_path(text: str, what: str = "") -> Path:
    """Return a path, which need not exist; raise `NotLocal` for a URL; `what` names its purpose."""
    if _SCHEME.match(text):
        raise NotLocal(f"{what + ': ' if what else ''}{text} is a URL, not a local path")
    return Path(text)
