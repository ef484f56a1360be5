"""Detects by its mtime whether a folder may contain something new, so that it is listed only then."""

import time
from pathlib import Path

SETTLED_NS = 1_000_000_000  # two changes within a tick of the file system's clock have the same mtime


class FolderChanges:
    """Looks at one archive folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen_ns = 0  # the folder's mtime, once it is old enough to tell of every change

    def may_be_new(self) -> bool:
        """Tell if anything may have come or gone since the last look that found nothing new; not where it is away."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:  # a network file system comes back; `ArchiveReport` tells of it meanwhile
            self.forget()
            return False
        if changed_ns == self._seen_ns:
            return False
        if time.time_ns() - changed_ns > SETTLED_NS:
            self._seen_ns = changed_ns
        return True

    def forget(self) -> None:
        """Look again, whatever was seen."""
        self._seen_ns = 0
