"""The queue of decoded groups from the decode thread to the application thread, bounded in bytes."""

import threading
from collections import deque

from tidemark.model.change import ChangeGroup
from tidemark.runtime.capture.signal import Signal

GROUP_OVERHEAD_BYTES = 1000  # what a group without rows counts: the queue is bounded for those, too


class GroupQueue:
    """First in, first out; a put waits while the queue is over its bound, however large the group is."""

    def __init__(self, bytes_max: int, woken: Signal) -> None:
        """`woken` wakes the receiving thread: for a group, at the end, or for a reason of the thread that sets it."""
        self.is_awaited = False  # the receiving thread waits, or is about to
        self._bytes_max = bytes_max
        self._woken = woken
        self._groups: deque[tuple[ChangeGroup, int]] = deque()
        self._byte_count = 0
        self._is_closed = False
        self._is_lingering = False
        self._changed = threading.Condition()

    @property
    def byte_count(self) -> int:
        """Bytes in the queue, approximately."""
        return self._byte_count

    @property
    def is_closed(self) -> bool:
        """Return whether the queue accepts no more groups."""
        return self._is_closed

    def put(self, group: ChangeGroup) -> bool:
        """Add a group, waiting for space; false if the queue was closed instead."""
        size = group.byte_count + GROUP_OVERHEAD_BYTES
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._byte_count < self._bytes_max)
            if self._is_closed:
                return False
            self._groups.append((group, size))
            self._byte_count += size
            is_awaited, self.is_awaited = self.is_awaited, False
            if self._is_lingering:
                self._changed.notify_all()
        if is_awaited:
            self._woken.set()
        return True

    def receive(self, timeout_s: float) -> ChangeGroup | None:
        """Return the next group; None if there is none within `timeout_s`, or until it is woken for another reason."""
        self.is_awaited = True
        group = self.receive_queued()
        if group is None and timeout_s > 0 and not self._is_closed:
            self._woken.wait(timeout_s)
            group = self.receive_queued()
        self.is_awaited = False
        return group

    def linger(self, timeout_s: float) -> bool:
        """Wait without awaiting a group, so that only full ones come; true if there is one, or the queue is closed."""
        with self._changed:
            self._is_lingering = True
            is_over = self._changed.wait_for(lambda: self._is_closed or bool(self._groups), timeout_s)
            self._is_lingering = False
            return is_over

    def receive_queued(self) -> ChangeGroup | None:
        """Return the next group without waiting; None if the queue is empty."""
        if not self._groups:
            return None
        with self._changed:
            if not self._groups:
                return None
            group, size = self._groups.popleft()
            self._byte_count -= size
            self._changed.notify_all()
            return group

    def close(self) -> None:
        """Accept no more groups, and wake all waiting threads; queued groups are dropped: they are read again."""
        with self._changed:
            self._is_closed = True
            self._groups.clear()
            self._byte_count = 0
            self._changed.notify_all()
        self._woken.set()
