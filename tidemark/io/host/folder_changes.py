"""Detects by its mtime whether a folder may contain something new, so that it is listed only then."""

import time
from pathlib import Path

MTIME_TICK_NS_MAX = 1_000_000_000  # two changes within a tick of the file system's clock have the same mtime


class FolderChanges:
    """Observes one archive folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen_ns = 0  # the folder's mtime, once it is old enough to show every later change

    def may_be_new(self) -> bool:
        """Return whether the folder may have changed since the last check; False if it is missing."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:  # a network file system may come back; `ArchiveReport` reports it meanwhile
            self.forget()
            return False
        if changed_ns == self._seen_ns:
            return False
        if time.time_ns() - changed_ns > MTIME_TICK_NS_MAX:
            self._seen_ns = changed_ns
        return True

    def forget(self) -> None:
        """Treat the folder as changed at the next check."""
        self._seen_ns = 0
