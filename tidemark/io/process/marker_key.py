"""The secret that signs markers: created by `cdcctl init`, or installed by the operator on every node (I10).

The key is the file's text without the white space around it, so that a line in a file and the same line in a secret
store are one key. Its bytes never appear in a message or a log.
"""

from pathlib import Path

from tidemark.io.process.config import Config
from tidemark.io.process.secret_sources import make_key_file, read_key
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError
from tidemark.wire.marker import KEY_BYTES_MIN


class BadMarkerKey(ConfigError):
    """A key that cannot sign markers."""

    hint = (
        "`cdcctl init` creates STATE/marker.key; to create a key yourself: openssl rand -hex 32, the same on every node"
    )


class KeysDiffer(ConfigError):
    """Sidecar and archiver have different keys and reject each other's markers: a return to realtime is impossible."""

    hint = "give both the same markers.key_file, and restart the one that has the other key"

    def __init__(self) -> None:
        super().__init__("the sidecar and the archiver were started with different keys of the markers")


def marker_key_path(config: Config, folder: StateFolder) -> Path:
    """Return the path of the key."""
    return Path(config.markers.key_file) if config.markers.key_file else folder.root / "marker.key"


def make_marker_key(config: Config, folder: StateFolder) -> None:
    """Create a key if there is none; an existing one, or one that the operator names, is checked and kept."""
    path = marker_key_path(config, folder)
    if config.markers.key_file or path.exists():
        load_marker_key(config, folder)
        return
    make_key_file(path, folder)


def load_marker_key(config: Config, folder: StateFolder) -> bytes:
    """Return the key; raise `BadMarkerKey` if it is missing, too short, or readable by other users."""
    return read_key(marker_key_path(config, folder), "the key of the markers", KEY_BYTES_MIN, BadMarkerKey)
