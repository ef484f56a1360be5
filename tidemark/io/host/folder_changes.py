"""Detects by its mtime whether a folder may contain something new; it is listed only then, and not too often."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CPU_SHARE_MAX = 0.05  # of the listings: one of a hundred thousand files takes 0.1 s of CPU
MTIME_TICK_NS_MAX = 1_000_000_000  # two changes within a tick of the file system's clock have the same mtime


def settled_mtime_ns(folder: Path) -> int | None:
    """Return the folder's mtime if it is old enough to show every later change, otherwise None; may raise OSError."""
    changed_ns = folder.stat().st_mtime_ns
    return changed_ns if time.time_ns() - changed_ns > MTIME_TICK_NS_MAX else None


class FolderChanges:
    """Observes one archive folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen_ns: int | None = None  # the folder's mtime, once it is old enough to show every later change
        self._not_before_s = 0.0

    @contextmanager
    def listing(self) -> Iterator[None]:
        """List the folder meanwhile: `may_be_new` then waits until that was a small share of the thread's time."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self._not_before_s = time.monotonic() + (time.thread_time() - began_s) / CPU_SHARE_MAX

    def may_be_new(self) -> bool:
        """Return whether the folder is to be listed: it may have changed since the last check, and is not missing."""
        if time.monotonic() < self._not_before_s:
            return False
        try:
            changed_ns = settled_mtime_ns(self._folder)
        except OSError:  # a network file system may come back; `ArchiveReport` reports it meanwhile
            self.forget()
            return False
        is_new = changed_ns is None or changed_ns != self._seen_ns
        self._seen_ns = changed_ns
        return is_new

    def forget(self) -> None:
        """Treat the folder as changed at the next check."""
        self._seen_ns = None
