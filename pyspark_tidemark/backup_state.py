"""The state of a query that names a base backup: made from the backup by the first query, and kept for later ones.

It has the catalogs at the end of the backup, as `cdcctl init --from-backup` writes them, of all databases. It is made
under another name and renamed, so that two queries do not disturb each other.
"""

import getpass
import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

from pyspark_tidemark.archive_options import ArchiveOptions
from tidemark.io.backup.backup import open_backup
from tidemark.io.process.config import Config, CopyConfig
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import StateError
from tidemark.runtime.seed.backup_reading import wal_of
from tidemark.runtime.seed.backup_seeding import seed_from_backup
from tidemark.runtime.seed.initialise import initialise_from_backup


class StateNotMade(StateError):
    """The folder of the state cannot be written."""

    hint = "name a folder with the option state: one that does not exist, in a folder that you may write to"


def with_state(options: ArchiveOptions) -> ArchiveOptions:
    """Return options that name a state; one that does not exist is made from their base backup."""
    if options.base_backup is None:
        return options
    state = options.state or _default_state(options.base_backup)
    if not StateFolder(state).lmdb.exists():
        try:
            _make(options.base_backup, options.archive, state)
        except OSError as error:
            raise StateNotMade(f"{state} cannot be made: {error.strerror or error}") from error
    return replace(options, state=state)


def _default_state(backup: Path) -> Path:
    """Return the folder for a backup among the temporary files of this user."""
    label = (backup / "backup_label").stat().st_mtime_ns if (backup / "backup_label").exists() else 0
    name = hashlib.sha256(f"{backup.absolute()} {label}".encode()).hexdigest()[:16]
    folder = Path(gettempdir()) / f"tidemark-archive-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.geteuid():
        raise StateNotMade(f"{folder} belongs to another user")
    return folder / name


def _make(backup: Path, archive: Path, state: Path) -> None:
    made = state.with_name(f".{state.name}-{os.getpid()}")
    shutil.rmtree(made, ignore_errors=True)
    try:
        with open_backup(backup) as opened:
            seed = seed_from_backup(opened, wal_of(opened, archive), lambda _name: True)
        made.mkdir(mode=0o700, parents=True)
        initialise_from_backup(Config(copy=CopyConfig(enabled=False)), StateFolder(made), seed)
        with suppress(OSError):  # another query was first
            made.rename(state)
        if not StateFolder(state).lmdb.exists():
            raise StateNotMade(f"{state} exists, and is no state")
    finally:
        shutil.rmtree(made, ignore_errors=True)
