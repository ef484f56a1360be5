"""The decode thread: decodes WAL from the ring into groups of changes.

It drains the ring independently of the consumer's speed, until the queue to the application thread is full. It queues a
group when the group is full, or when the application thread is idle: a quiet stream has the latency of one delivery,
and in a busy stream batches grow with the time of a delivery. In a quiet stream the idle application thread decodes
inline; the decode thread continues with the remaining WAL while the application thread delivers.
"""

import threading
import time
from collections.abc import Iterator
from enum import Enum

from tidemark.engine.progress import Progress
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import INVALID_LSN
from tidemark.model.position import Pointer, Position
from tidemark.runtime.capture.group_queue import GroupQueue
from tidemark.runtime.capture.stream_lease import LeaseState, StreamLease
from tidemark.runtime.capture.wal_reader import WalReader
from tidemark.runtime.capture.wal_source import Slices
from tidemark.runtime.replay.decode_run import InvalidWal
from tidemark.wal.segments import WalSlice

QUIET_S = 0.2  # how often a quiet stream checks its clock
AWAY_S = 5.0  # while the application thread decodes; what ends this wakes the thread
STOP_S = 10.0


class _Pause(Enum):
    """A point at which another thread may take over decoding, or decoding waits."""

    SLICE = "slice"  # a slice is decoded
    EMPTY = "empty"  # there is no slice


class DecodeThread:
    """Runs a `WalReader` between the ring and the queue, until it is stopped or a marker halts it.

    Two threads may run it, one at a time (`StreamLease`): its own, and the application thread while that reads the
    stream inline. Then no commit is passed from thread to thread.
    """

    def __init__(
        self,
        slices: Slices,
        lease: StreamLease,
        reader: WalReader,
        group_queue: GroupQueue,
        *,
        delivered: Position,
        progress: Progress,
        idle_pointer_s: float,
        heartbeat_s: float = 0.0,
    ) -> None:
        """`delivered` is the last run's position: what is read again below it moves no pointer.

        heartbeat_s: how long nothing but the pointer may be delivered, while WAL or reports come from the node; 0: for
        ever.
        """
        self.error: BaseException | None = None
        self.halted_at: Pointer | None = None  # the marker that has halted decoding, once all before it is queued
        self._slices = slices
        self._lease = lease
        self.reader = reader
        self._group_queue = group_queue
        self._progress = progress
        self._idle_pointer_s = idle_pointer_s
        self._handed = delivered
        self._handed_s = self._changed_s = time.monotonic()
        self._heartbeat_s = heartbeat_s
        self._heard_count = 0  # at the last change or heartbeat
        self._stopping = threading.Event()
        self._released_lsn = INVALID_LSN  # end of the last slice whose groups were all accepted
        self._groups = self._decoded()
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self) -> None:
        """Start decoding."""
        self._thread.start()

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """Stop after the current slice; return whether that ended in time."""
        until_s = time.monotonic() + timeout_s
        self._stopping.set()
        self._lease.arrived.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        return self._lease.recall_all(max(0.0, until_s - time.monotonic()))

    @property
    def has_more(self) -> bool:
        """Return whether WAL has arrived that is not decoded."""
        # NB: the reader counts a slice as read before its first group, and one commit can be very many groups.
        return self._progress.received_lsn > self._released_lsn

    @property
    def is_collecting(self) -> bool:
        """Return whether decoded changes wait for more in the same group."""
        return self.reader.is_collecting

    def next_group(self) -> ChangeGroup | None:
        """Decode up to the next group, in the application thread; None if the received WAL has no more.

        Also None after a slice during which the stream was recalled: WAL arrives again, and need not end.
        """
        began_s = time.thread_time()
        try:
            while not self._stopping.is_set():
                found = self._advance()
                if isinstance(found, ChangeGroup):
                    return found
                if found is not _Pause.SLICE or self._lease.is_recalled:
                    break
            return None
        finally:
            self.reader.cpu_s += time.thread_time() - began_s

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._lease.may_decode:
                if self._decode_into_queue():
                    return
                self._lease.drained()
            self._lease.arrived.wait(QUIET_S if self._lease.may_decode else AWAY_S)

    def _decode_into_queue(self) -> bool:
        """Queue all groups; return whether no more will come."""
        while not self._stopping.is_set():
            began_s = time.thread_time()
            found = self._advance()
            self.reader.cpu_s += time.thread_time() - began_s
            if found is None:
                return True
            if isinstance(found, ChangeGroup):
                if not self._group_queue.put(found):
                    self._stopping.set()  # the queue is closed; the rest of a large transaction need not be read
            elif found is _Pause.EMPTY:
                return False
        return True

    def _advance(self) -> "ChangeGroup | _Pause | None":
        """Continue to the next group, or to a pause; None at the end. The caller may decode, by the lease."""
        try:
            return next(self._groups, None)
        except BaseException as error:  # noqa: BLE001 - the one place: whatever it is, the capture ends with it
            self.error = error
            return None

    def _decoded(self) -> "Iterator[ChangeGroup | _Pause]":
        """Yield the groups, with a pause after each slice and when there is none."""
        try:
            while self.halted_at is None:
                wal_slice = self._slices.peek()
                if wal_slice is not None:
                    for group in self.reader.feed(wal_slice):
                        yield self._record_group(group)
                    if self.reader.is_halted:
                        self.reader.maintain(wal_slice)
                        yield from self._last_groups()
                        return
                    self._release_slice(wal_slice)
                if self._is_awaited() and (waiting := self.reader.flush(also_empty=False)) is not None:
                    yield self._record_group(waiting)
                if wal_slice is not None:
                    self.reader.maintain(wal_slice)
                    if self._lease.state is not LeaseState.INLINE:  # inline, only a recall ends the slices
                        yield _Pause.SLICE
                    continue
                yield from self._pause()
        except InvalidWal:
            yield from self._groups_before_invalid()
            raise

    def _pause(self) -> "Iterator[ChangeGroup | _Pause]":
        """Pause while there is no slice, after a group that states how far decoding is, if it is due."""
        if (idle := self._idle_group()) is not None:
            yield self._record_group(idle)
        if self._slices.peek() is None:  # NB: since that group, WAL may have arrived and its signal been used
            yield _Pause.EMPTY

    def _is_awaited(self) -> bool:
        """Return whether the application thread waits: inline it waits for the group of all that has arrived."""
        return self._slices.peek() is None if self._lease.is_inline else self._group_queue.is_awaited

    def _release_slice(self, wal_slice: WalSlice) -> None:
        """Release a slice, all of whose groups were accepted."""
        self._slices.release(len(wal_slice.data))
        end_lsn = self._released_lsn = wal_slice.end_lsn
        if self.reader.last_record_lsn:
            decoder = self.reader.decoder
            # NB: a segment switch ends where its segment does, and the padding up to there comes slice by slice.
            self._progress.decode(min(decoder.decoded_lsn, end_lsn), min(decoder.restart_lsn, end_lsn))

    def _groups_before_invalid(self) -> "Iterator[ChangeGroup | _Pause]":
        """Have the changes before the invalid WAL delivered, if the consumer accepts them in time.

        NB: only framing fails between two transactions; after any other error the group builder's contents are unknown.
        """
        waiting = self.reader.flush(also_empty=False)
        if waiting is not None:
            yield self._record_group(waiting)
        until_s = time.monotonic() + STOP_S
        while not (self._is_awaited() or self._stopping.is_set()) and time.monotonic() < until_s:
            yield _Pause.EMPTY

    def _last_groups(self) -> Iterator[ChangeGroup]:
        """Yield all that commits before the marker, and then its position: a restart continues behind it."""
        waiting = self.reader.flush(also_empty=True)
        if waiting is not None:
            yield self._record_group(waiting)
        here = self.reader.idle_group()
        self.halted_at = here.last
        yield self._record_group(here)

    def _idle_group(self) -> ChangeGroup | None:
        """Move the pointer over WAL that had nothing for us (docs/design/positions.md)."""
        if not self.reader.last_record_lsn or self.reader.is_collecting:  # collected changes wait for their delivery
            return None
        now_s = time.monotonic()
        if self._is_heartbeat_due(now_s):
            # NB: the builder may know ends of transactions of which nothing is delivered: their positions come first.
            ends = self.reader.flush(also_empty=True)
            beat = self.reader.heartbeat_group(self._handed) if ends is None else self._moving(ends)
            if beat is not None:
                return beat
        if now_s - self._handed_s < self._idle_pointer_s:
            return None
        self._handed_s = now_s
        return self._moving(self.reader.flush(also_empty=True) or self.reader.idle_group())

    def _is_heartbeat_due(self, now_s: float) -> bool:
        """Return whether changes have not come for long, but something was heard from the node."""
        if not self._heartbeat_s or self._progress.heard_count == self._heard_count:
            return False
        return now_s - self._changed_s >= self._heartbeat_s

    def _moving(self, group: ChangeGroup) -> ChangeGroup | None:
        """Return a group if it moves the position."""
        if group.last.position > self._handed:
            return group
        self.reader.repeat_databases(group)
        return None

    def _record_group(self, group: ChangeGroup) -> ChangeGroup:
        self._handed = group.last.position
        self._handed_s = time.monotonic()
        if group.items:
            self._changed_s = self._handed_s
            self._heard_count = self._progress.heard_count
        return group
