"""A lock for each log and replica: the stream holds it during a write, maintenance while it commits or lists files."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from tidemark.pipeline.storage.turns import waiting


class TableLocks:
    """The locks of the Delta tables of one lake, by URI; there are as many as tables that were written."""

    def __init__(self) -> None:
        self._locks: dict[str, Lock] = {}

    def of(self, uri: str) -> Lock:
        """Return the lock of a table."""
        return self._locks.setdefault(uri, Lock())

    @contextmanager
    def held(self, uri: str) -> Iterator[None]:
        """Hold the lock of a table; other threads may compute while this one waits."""
        lock = self.of(uri)
        if not lock.acquire(blocking=False):
            with waiting():
                lock.acquire()
        try:
            yield
        finally:
            lock.release()
