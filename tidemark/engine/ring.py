"""The ring: received WAL in a fixed buffer, between the thread that receives and the thread that decodes.

WAL is contiguous, so the ring needs no list of slices: the byte at LSN n is stored at n - origin modulo the capacity,
and two LSNs describe the content. One thread at a time puts, and one takes; each writes only its own LSN, and neither
waits inside. A put into the empty ring moves the origin: a ring that never has much in it uses few pages again and
again, which are in the processor's caches, and the others are never allocated. Pages that a burst has needed are
returned to the system after `SMALL_PUTS` further puts into the empty ring that did not need them.

    read_lsn          write_lsn                 write_lsn            read_lsn
       v                  v                         v                   v
    ...█████████████████████......               ████.....................██████      (wrapped: two pieces)

    free = capacity - (write_lsn - read_lsn)      equal LSNs: empty

The reader gets a view of the buffer, at most one replication message long and of one timeline. The view is valid until
`release`; after that the writer may overwrite the bytes.
"""

import mmap
from collections import deque

from tidemark.model.errors import ConfigError, InternalError
from tidemark.model.lsn import Lsn, TimelineId, format_lsn
from tidemark.wal.segments import SLICE_BYTES_MAX, WalSlice

RING_BYTES_MIN = 4 * SLICE_BYTES_MAX
KEPT_BYTES = 16 << 20  # at the beginning of the buffer, whose pages stay
SMALL_PUTS = 100
TIMELINES_MAX = 1000  # timeline switches in one ring: far more promotions than 256 MB of WAL can contain


class RingFull(Exception):
    """There is no space for a slice."""


class NoMemoryForRing(ConfigError):
    """The system does not reserve so much memory."""

    hint = "lower ring.bytes_max: the host must have this memory for a burst, beside what PostgreSQL needs"


class Ring:
    """A bounded buffer of WAL, `capacity` bytes, reserved once."""

    def __init__(self, capacity: int, start_lsn: Lsn) -> None:
        if capacity < RING_BYTES_MIN:
            raise ConfigError(f"a ring has at least {RING_BYTES_MIN} bytes, not {capacity}")
        self.capacity = capacity
        self.high_water_bytes = 0
        # Anonymous memory: a page is allocated when WAL is first written to it.
        try:
            pages = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise NoMemoryForRing(f"a ring of {capacity} bytes cannot be reserved: {error.strerror}") from error
        self._pages: mmap.mmap | None = pages  # None: freed
        self._buffer = memoryview(pages)
        self._small_puts: int | None = None  # into the empty ring since one beyond the kept pages; None: those are all
        self._read_lsn = start_lsn  # written by the reader only
        self._write_lsn = start_lsn  # written by the writer only
        self._origin_lsn = start_lsn  # of the buffer's first byte; written by the writer, while there is no content
        self._timelines: deque[tuple[Lsn, TimelineId]] = deque(maxlen=TIMELINES_MAX)  # with the start of each

    @property
    def read_lsn(self) -> Lsn:
        """The LSN that the reader reads next."""
        return self._read_lsn

    @property
    def write_lsn(self) -> Lsn:
        """The LSN that the writer writes next: the end of the content."""
        return self._write_lsn

    @property
    def used_bytes(self) -> int:
        """Bytes that were put and not released."""
        return self._write_lsn - self._read_lsn

    @property
    def free_bytes(self) -> int:
        """Bytes that are free."""
        return self.capacity - (self._write_lsn - self._read_lsn)

    def timeline_at(self, lsn: Lsn) -> TimelineId | None:
        """Return the timeline of the byte at `lsn`, None if the ring does not contain it; for any thread."""
        if not self._read_lsn <= lsn < self._write_lsn:
            return None
        return next(timeline for begin_lsn, timeline in reversed(tuple(self._timelines)) if begin_lsn <= lsn)

    def put(self, wal_slice: WalSlice) -> None:
        """Copy a slice in; it must begin at the end of the last one. The writer must ensure that there is space."""
        data, start_lsn = wal_slice.data, wal_slice.start_lsn
        length, end_lsn = len(data), Lsn(start_lsn + len(data))
        used_bytes = end_lsn - self._read_lsn
        if start_lsn != self._write_lsn:
            raise InternalError(
                f"WAL from {format_lsn(start_lsn)} does not follow the ring's end {format_lsn(self._write_lsn)}"
            )
        if used_bytes > self.capacity:
            raise RingFull
        if not self._timelines or self._timelines[-1][1] != wal_slice.timeline:
            self._timelines.append((self._write_lsn, wal_slice.timeline))
        if start_lsn == self._read_lsn:  # NB: empty, so the reader has no view, and takes none before the store below
            self._origin_lsn = start_lsn
            if self._small_puts is not None:
                self._count_small_put()
        at = (start_lsn - self._origin_lsn) % self.capacity
        until_end = self.capacity - at
        if at + length > KEPT_BYTES:
            self._small_puts = 0
        if length <= until_end:
            self._buffer[at : at + length] = data
        else:
            self._buffer[at:] = data[:until_end]
            self._buffer[: length - until_end] = data[until_end:]
        self.high_water_bytes = max(self.high_water_bytes, used_bytes)
        # NB: last, since from here on the reader may read the bytes. The interpreter lock makes each LSN, a plain
        # attribute, visible whole and after the bytes. Without that lock (a free-threaded build) this store, and the
        # one of `release`, would need memory barriers.
        self._write_lsn = end_lsn

    def _count_small_put(self) -> None:
        """Count a put into the empty ring; return the pages that none of the last ones needed."""
        assert self._small_puts is not None
        self._small_puts += 1
        if self._small_puts > SMALL_PUTS:
            if self._pages is not None:
                self._pages.madvise(mmap.MADV_DONTNEED, KEPT_BYTES)
            self._small_puts = None

    def peek(self) -> WalSlice | None:
        """Return the next slice without releasing it, None if the ring is empty."""
        length = min(self._write_lsn - self._read_lsn, SLICE_BYTES_MAX)
        if not length:
            return None
        timeline = self._timeline(length)
        if len(self._timelines) > 1:
            length = min(length, self._timelines[1][0] - self._read_lsn)
        at = (self._read_lsn - self._origin_lsn) % self.capacity
        end = min(at + length, self.capacity)
        return WalSlice(self._read_lsn, self._buffer[at:end].toreadonly(), timeline)

    def release(self, length: int) -> None:
        """Release the first `length` bytes: views of them become invalid."""
        if not 0 <= length <= self._write_lsn - self._read_lsn:
            raise InternalError(f"{length} bytes released of {self.used_bytes} at {format_lsn(self._read_lsn)}")
        self._read_lsn = Lsn(self._read_lsn + length)

    def free(self) -> None:
        """Release the memory, after the last put and peek."""
        self._buffer = memoryview(b"")
        self._pages = None

    def _timeline(self, length: int) -> TimelineId:
        while len(self._timelines) > 1 and self._timelines[1][0] <= self._read_lsn:
            self._timelines.popleft()
        assert self._timelines, f"{length} bytes without a timeline"
        return self._timelines[0][1]
