"""The queue of decoded groups from the decode thread to the application thread, bounded in bytes.

If the queue is empty and no other thread decodes, the application thread decodes inline (`turns`): a hand-over between
threads costs a commit some tens of microseconds. One thread at a time may decode, so there is one order; groups in the
queue precede groups decoded later. The application thread also waits on the WAL input itself instead of waiting for
another thread (`Brings`): then only one thread is between the socket and the consumer.
"""

import threading
import time
from collections import deque
from typing import Protocol

from tidemark.model.change import ChangeGroup
from tidemark.runtime.capture.signal import Signal

GROUP_OVERHEAD_BYTES = 1000  # what a group without rows counts: the queue is bounded for those, too
BRING_S = 0.05  # how long the taker waits at the socket at most before it checks the queue, and for a stop


class TurnTaken(Exception):
    """Another thread decodes; it wakes the taker if there is a group for it."""


class Brings(Protocol):
    """The WAL input, which reads in its own thread or in the taker's."""

    def bring(self, timeout_s: float) -> bool:
        """Read what arrives within `timeout_s`, in the caller's thread; false if another thread reads."""


class Turns(Protocol):
    """The decoder, used by one thread at a time."""

    @property
    def has_more(self) -> bool:
        """Return whether WAL has arrived that is not decoded."""

    def take_turn(self) -> ChangeGroup | None:
        """Decode up to the next group; raise `TurnTaken` if another thread is decoding."""


class GroupQueue:
    """First in, first out; a put waits while the queue is over its bound, however large the group is."""

    def __init__(self, bytes_max: int, arrived: Signal) -> None:
        """`arrived` is set when there is WAL to decode; it wakes the taker while the taker waits."""
        self.turns: Turns | None = None
        self.wal_source: Brings | None = None
        self._bytes_max = bytes_max
        self._arrived = arrived
        self._groups: deque[tuple[ChangeGroup, int]] = deque()
        self._byte_count = 0
        self._taker_waits = False
        self._closed = False
        self._changed = threading.Condition()
        self._woken = Signal()  # the taker, by a group or by WAL that arrived

    @property
    def byte_count(self) -> int:
        """Bytes in the queue, approximately."""
        return self._byte_count

    @property
    def is_wanted(self) -> bool:
        """Return whether the taker waits for work."""
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
            is_waited_for, self._taker_waits = self._taker_waits, False
        if is_waited_for:
            self.wake_taker()
        return True

    def take(self, timeout_s: float) -> ChangeGroup | None:
        """Return the next group; None if there is none within `timeout_s`, or if the queue is closed."""
        group = self._first()
        if group is None and timeout_s > 0 and not self._closed:
            self._arrived.stand_in = self._woken
            group = self._wait(time.monotonic() + timeout_s)
            self._arrived.stand_in = None
            self._taker_waits = False
            if self._woken.is_set or (self.turns is not None and self.turns.has_more):
                self._arrived.set()  # the decode thread continues meanwhile
        return group

    def wake_taker(self) -> None:
        """Have the taker check again: for a group, or for WAL to decode."""
        self._woken.set()

    def close(self) -> None:
        """Accept no more groups, and wake all waiting threads; queued groups are dropped: they are read again."""
        with self._changed:
            self._closed = True
            self._groups.clear()
            self._byte_count = 0
            self._changed.notify_all()
        self.wake_taker()

    def _wait(self, until_s: float) -> ChangeGroup | None:
        while True:
            self._taker_waits = True
            group, wal_source = self._take_turn()
            if group is None:
                group = self._first()
            remaining_s = until_s - time.monotonic()
            if group is not None or self._closed or remaining_s <= 0:
                return group
            if wal_source is None or self._woken.is_set or not wal_source.bring(min(remaining_s, BRING_S)):
                self._woken.wait(remaining_s)

    def _take_turn(self) -> tuple[ChangeGroup | None, Brings | None]:
        """Decode inline; return where to wait: not at the socket if another thread decodes, which does not wake it."""
        if self.turns is None:
            return None, None
        try:
            return self.turns.take_turn(), self.wal_source
        except TurnTaken:
            return None, None

    def _first(self) -> ChangeGroup | None:
        if not self._groups:
            return None
        with self._changed:
            if not self._groups:
                return None
            group, size = self._groups.popleft()
            self._byte_count -= size
            self._changed.notify_all()
            return group
