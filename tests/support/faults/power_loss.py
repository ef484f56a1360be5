"""A disk that loses power: only what was synced survives.

The model is POSIX without a journal: a file has the content of its last `fdatasync` or `fsync`, a folder the entries of
its last `fsync`. `Unsynced` determines what becomes of the rest.
"""

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pytest

from tidemark.pipeline.delta_log.commit_files import LOG_FOLDER


class Unsynced(Enum):
    """What becomes of files that were not synced."""

    MISSING = "missing"
    EMPTY = "empty"  # the folders were written to disk before the contents of their files
    ONLY_LOGS_WRITTEN = "only logs written"  # as EMPTY, but the contents of the logs of Delta tables were written


class SyncedDisk:
    """Records what the code under test syncs below a folder, by files and folders as they are at that moment."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._entries: dict[Path, list[str]] = {}
        self._inodes: dict[Path, int] = {}
        self.before_sync: Callable[[Path], None] = lambda _path: None  # called before anything of a path is durable
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._recording(getattr(os, name)))

    def _recording(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def record(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if self._root not in (path, *path.parents):
                sync(descriptor)
                return
            self.before_sync(path)
            sync(descriptor)
            if path.is_dir():
                names = [entry.name for entry in path.iterdir()]
                self._entries[path] = names
                self._inodes.update({path / name: (path / name).stat().st_ino for name in names})
            else:
                self._contents[os.fstat(descriptor).st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

        return record

    def after_power_loss(self, target: Path, unsynced: Unsynced) -> Path:
        """Copy what is left after a loss of power at this moment to `target`; return it."""
        self._copy(self._root, target, unsynced)
        return target

    def _copy(self, folder: Path, target: Path, unsynced: Unsynced) -> None:
        target.mkdir(parents=True)
        names = set(self._entries.get(folder, ()))
        if unsynced is not Unsynced.MISSING and folder.exists():
            names |= {entry.name for entry in folder.iterdir()}
        for name in names:
            path = folder / name
            if path.is_dir():
                self._copy(path, target / name, unsynced)
                continue
            if unsynced is Unsynced.ONLY_LOGS_WRITTEN and folder.name == LOG_FOLDER and path.exists():
                (target / name).write_bytes(path.read_bytes())
                continue
            inode = path.stat().st_ino if path.exists() else self._inodes[path]
            (target / name).write_bytes(self._contents.get(inode, b""))
