"""The queue of decoded groups, bounded in bytes: from the decode thread to the application thread."""

import threading
from collections import deque

from tidemark.model.change import ChangeGroup
from tidemark.runtime.signal import Signal

GROUP_OVERHEAD_BYTES = 1000  # what a group without rows counts: the queue is bounded for those, too


class Handoff:
    """First in, first out; a put waits while the queue is over its bound, however large the group is."""

    def __init__(self, bytes_max: int, drained: Signal) -> None:
        """`drained` is set when the taker comes back and finds nothing."""
        self._bytes_max = bytes_max
        self._drained = drained
        self._groups: deque[tuple[ChangeGroup, int]] = deque()
        self._byte_count = 0
        self._taker_waits = False
        self._closed = False
        self._changed = threading.Condition()

    @property
    def byte_count(self) -> int:
        """Bytes in the queue, about."""
        return self._byte_count

    @property
    def is_wanted(self) -> bool:
        """Tell if the taker waits for something to do."""
        return self._taker_waits

    def put(self, group: ChangeGroup) -> bool:
        """Add a group, waiting for room; false if the queue was closed instead."""
        size = group.byte_count + GROUP_OVERHEAD_BYTES
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._byte_count < self._bytes_max)
            if self._closed:
                return False
            self._groups.append((group, size))
            self._byte_count += size
            self._taker_waits = False
            self._changed.notify_all()
            return True

    def take(self, timeout_s: float) -> ChangeGroup | None:
        """Return the next group; None if there is none within `timeout_s`, or none at all any more."""
        with self._changed:
            if not self._groups and not self._closed and timeout_s > 0:
                self._taker_waits = True
                self._drained.set()
                self._changed.wait_for(lambda: self._closed or bool(self._groups), timeout_s)
            if not self._groups:
                return None
            group, size = self._groups.popleft()
            self._byte_count -= size
            self._changed.notify_all()
            return group

    def close(self) -> None:
        """Let nothing in any more, and wake who waits; what is in the queue is dropped: it is read again."""
        with self._changed:
            self._closed = True
            self._groups.clear()
            self._byte_count = 0
            self._changed.notify_all()
