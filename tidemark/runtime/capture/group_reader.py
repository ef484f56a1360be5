"""How the application thread gets its groups: from the queue, or by reading and decoding the stream inline."""

import time
from collections.abc import Callable
from typing import Protocol

from tidemark.engine.batching import SPACING_S, DeliveryPacing
from tidemark.model.change import ChangeGroup
from tidemark.runtime.capture.group_queue import GroupQueue
from tidemark.runtime.capture.stream_lease import StreamLease


class LeasedInput(Protocol):
    """The WAL input, while the application thread has the stream."""

    def read_leased(self, timeout_s: float, collect: Callable[[], None]) -> bool:
        """Read what arrives within `timeout_s` into the ring; false if the network thread has to continue.

        `collect` is called when something has arrived, before it is read: what arrives meanwhile is read as well.
        """


class InlineDecoder(Protocol):
    """The decoder, while the application thread has the stream."""

    @property
    def has_more(self) -> bool:
        """Return whether WAL has arrived that is not decoded."""

    @property
    def is_collecting(self) -> bool:
        """Return whether decoded changes wait for more in the same group."""

    def next_group(self) -> ChangeGroup | None:
        """Decode up to the next group; None if the received WAL has no more."""


class GroupReader:
    """The source of the application thread's groups."""

    def __init__(self, queue: GroupQueue, lease: StreamLease, wal_input: LeasedInput, pacing: DeliveryPacing) -> None:
        self._queue = queue
        self._lease = lease
        self._wal_input = wal_input
        self._pacing = pacing
        self._decoder: InlineDecoder | None = None

    def decode_with(self, decoder: InlineDecoder) -> None:
        """Permit inline decoding from now on."""
        self._decoder = decoder

    @property
    def is_host_busy(self) -> bool:
        """Return whether deliveries wait longer for further commits, because tasks of the host wait for a CPU."""
        return self._pacing.is_busy_at(time.monotonic())

    def receive(self, timeout_s: float) -> ChangeGroup | None:
        """Return the next group; None if there is none within `timeout_s`, or if the queue is closed."""
        group = self._queue.receive_queued() or self._wait(timeout_s)
        if group is not None:
            self._pacing.delivered(time.monotonic())
        return group

    def _wait(self, timeout_s: float) -> ChangeGroup | None:
        now_s = time.monotonic()
        until_s = now_s + timeout_s
        linger_s = self._pacing.wait_s(now_s)
        if linger_s > SPACING_S:  # a busy stream: the other threads read and decode if this takes long
            if self._queue.linger(min(linger_s, timeout_s)):
                return self._queue.receive_queued()
            if linger_s >= timeout_s:
                return None  # the caller has other work, and comes again
        while True:
            is_inline = self._decoder is not None and self._lease.enter()
            group = self._receive_inline(until_s) if is_inline else self._receive_threaded(until_s)
            if group is not None or self._queue.is_closed or time.monotonic() >= until_s:
                return group

    def _collect(self) -> None:
        """Wait for further changes, in the socket or in the decode thread, after the first one has arrived."""
        linger_s = self._pacing.wait_s(time.monotonic())
        if linger_s > 0:
            time.sleep(min(linger_s, SPACING_S))

    def _receive_threaded(self, until_s: float) -> ChangeGroup | None:
        self._collect()
        self._queue.is_awaited = True  # NB: set before the check: the decode thread checks it after each slice
        if self._decoder is not None and self._decoder.is_collecting:
            self._lease.arrived.set()
        return self._queue.receive(until_s - time.monotonic())

    def _receive_inline(self, until_s: float) -> ChangeGroup | None:
        assert self._decoder is not None, "it enters with a decoder"
        gives_back = True  # also after an error
        try:
            group = self._queue.receive_queued()  # from before the offer
            if group is None and (self._decoder.has_more or self._decoder.is_collecting):
                group = self._decoder.next_group()
            while group is None and (remaining_s := until_s - time.monotonic()) > 0 and not self._queue.is_closed:
                if not (self._lease.begin_read() and self._read(remaining_s)):
                    return None
                group = self._decoder.next_group()
            gives_back = group is not None and self._decoder.has_more  # decoded while this group is delivered
            return group
        finally:
            if gives_back:
                self._lease.give_back()
            else:
                self._lease.leave()

    def _read(self, timeout_s: float) -> bool:
        """Read from the socket; false if another thread has to continue."""
        may_continue = is_leased = False
        try:
            may_continue = self._wal_input.read_leased(timeout_s, self._collect)
        finally:
            is_leased = self._lease.end_read()
        return may_continue and is_leased
