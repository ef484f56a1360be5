"""A lock for each log and replica: the stream holds it during a write, maintenance while it commits or lists files."""

from threading import Lock


class TableLocks:
    """The locks of the Delta tables of one lake, by URI; there are as many as tables that were written."""

    def __init__(self) -> None:
        self._locks: dict[str, Lock] = {}

    def of(self, uri: str) -> Lock:
        """Return the lock of a table."""
        return self._locks.setdefault(uri, Lock())
