"""Listing an archive folder that may never respond (I28, I41).

A thread that accesses a hanging file system hangs, too. So a separate daemon thread lists the folder: no other thread
waits for it without a limit, also not at the end of the process.
"""

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path

from tidemark.io.archive.archive_state import ArchiveState, NoArchive, archive_state


class ArchiveSilent(NoArchive):
    """A folder that does not respond."""

    hint = "its file system hangs or is slow: check its mount and its file server"


class ArchiveListing:
    """One listing of one folder."""

    def __init__(self, folder: Path, segment_bytes: int, last: ArchiveState | None = None) -> None:
        """Start the thread; `last`: the state of an earlier listing, if there is one."""
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._last = last
        self.cpu_s = 0.0  # of the thread, once it is over
        self._found: Future[ArchiveState] = Future()
        threading.Thread(target=self._read_result, name="archive listing", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Return whether the listing has ended, in success or failure."""
        return self._found.done()

    def result(self, wait_s: float) -> ArchiveState:
        """Return the archive's state; raise `NoArchive` if the folder cannot be listed or does not respond in time."""
        try:
            return self._found.result(wait_s)
        except NotInTime:
            raise ArchiveSilent(f"the archive folder {self._folder} does not respond") from None

    def _read_result(self) -> None:
        try:
            found = archive_state(self._folder, self._segment_bytes, self._last)
        except Exception as error:  # noqa: BLE001 - it is the asker's
            self.cpu_s = time.thread_time()
            self._found.set_exception(error)
            return
        self.cpu_s = time.thread_time()
        self._found.set_result(found)
