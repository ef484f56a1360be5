"""Detects by its mtime whether a folder may contain something new; it is listed only then, and not too often.

An mtime shows every later change once it has stayed the same for a tick of the file system's clock. That is measured
with our own clock: the clock of a file server may be ahead, or behind.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

CPU_SHARE_MAX = 0.05  # of the listings: one of a hundred thousand files takes 0.1 s of CPU
UNCHANGED_CPU_SHARE_MAX = 0.005  # of the listings of a folder that seems unchanged
MTIME_TICK_S_MAX = 2.0  # FAT; two changes within a tick of the file system's clock have the same mtime
UNSHOWN_S = 60.0  # a file that grows in place, and some network file systems, leave the folder's mtime unchanged


@dataclass(frozen=True, slots=True)
class FolderView:
    """Which folder a path leads to, and when it was changed, as seen at one moment."""

    device: int
    inode: int  # a folder that was replaced may have the mtime of the former one
    mtime_ns: int
    at_s: float  # of the monotonic clock
    since_s: float  # the first view that was the same

    @classmethod
    def of(cls, folder: Path, last: Self | None) -> Self:
        """Look at a folder; `last`: an earlier view. May raise OSError."""
        now_s, found = time.monotonic(), folder.stat()
        view = cls(found.st_dev, found.st_ino, found.st_mtime_ns, now_s, now_s)
        if last is None or not view._is_same(last):
            return view
        return cls(view.device, view.inode, view.mtime_ns, now_s, last.since_s)

    def shows(self, later: Self, within_s: float = UNSHOWN_S) -> bool:
        """Return whether a listing made at this view is still valid at a later one, `within_s` at most."""
        is_settled = self.at_s - self.since_s > MTIME_TICK_S_MAX
        return is_settled and self._is_same(later) and later.at_s - self.at_s < within_s

    def _is_same(self, other: Self) -> bool:
        return (self.device, self.inode, self.mtime_ns) == (other.device, other.inode, other.mtime_ns)


class FolderChanges:
    """Observes one archive folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listed: FolderView | None = None  # from before the last listing
        self._not_before_s = 0.0
        self._within_s = UNSHOWN_S

    @contextmanager
    def listing(self) -> Iterator[None]:
        """List the folder meanwhile: `may_be_new` then waits until that was a small share of the thread's time."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            used_s = time.thread_time() - began_s
            self._not_before_s = time.monotonic() + used_s / CPU_SHARE_MAX
            self._within_s = max(UNSHOWN_S, used_s / UNCHANGED_CPU_SHARE_MAX)

    def may_be_new(self) -> bool:
        """Return whether the folder is to be listed: it may have changed since the last check, and is not missing."""
        if time.monotonic() < self._not_before_s:
            return False
        try:
            view = FolderView.of(self._folder, self._listed)
        except OSError:  # a network file system may come back; `ArchiveReport` reports it meanwhile
            self.forget()
            return False
        if self._listed is not None and self._listed.shows(view, self._within_s):
            return False
        self._listed = view
        return True

    def forget(self) -> None:
        """Treat the folder as changed at the next check."""
        self._listed = None
