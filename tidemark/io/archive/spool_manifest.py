"""The manifest in the spool: a lost state is rebuilt from it and the copy of the catalog history (`history_copy`)."""

from pathlib import Path

from tidemark.io.archive.spool import Spool
from tidemark.model.errors import StateError
from tidemark.wire.manifest import MANIFEST, Manifest

FOLDER = "history"
MANIFEST_FILE = "manifest"


class NoHistoryCopy(StateError):
    """A spool without a copy of the catalog history."""

    hint = "create a new state with cdcctl init: its first copy recreates the tables"


def history_folder(spool: Spool) -> Path:
    """Return the folder of the copy."""
    return spool.folder / FOLDER


def read_manifest(spool: Spool) -> Manifest:
    """Return the manifest of a spool's copy; raise `NoHistoryCopy` if there is none."""
    path = history_folder(spool) / MANIFEST_FILE
    try:
        return MANIFEST.decode(path.read_bytes())
    except OSError as error:
        raise NoHistoryCopy(f"{path} cannot be read: {error.strerror}") from error
