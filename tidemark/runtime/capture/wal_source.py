"""A capture's WAL source: the ring, its inputs, and the reads of the decode thread.

from_node      node ─► ring                     the sidecar, from the delivered pointer (spool first, around a copy)
followed_…     node ─► ring                     the sidecar that follows, from its followed position
from_archive   archive ─► ring                  the archiver
LiveBuffer     node ─► ring, archive before it  the sidecar returning to realtime: the ring fills before it may deliver
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from tidemark.engine.progress import Progress
from tidemark.engine.retry import Backoff
from tidemark.engine.ring import Ring
from tidemark.io.archive.archive import ArchiveFolder, read_between
from tidemark.io.node.replication import NodeIdentity
from tidemark.io.process.config import Config, RetryConfig
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.wal_spool import WalSpool
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Position
from tidemark.runtime.capture.archive_input import ArchiveInput
from tidemark.runtime.capture.inputs import SpooledInput, WalInput
from tidemark.runtime.capture.network import MayOverflow, NetworkThread, WalSink, always
from tidemark.runtime.capture.stream_lease import StreamLease
from tidemark.runtime.context import CaptureContext
from tidemark.wal.segments import WalSlice, first_page_lsn


class Slices(Protocol):
    """The decode thread's input: slices of WAL, in order."""

    def peek(self) -> WalSlice | None:
        """Return the next slice, None if there is none yet."""

    def release(self, length: int) -> None:
        """Release the first `length` bytes."""


@dataclass(frozen=True, slots=True)
class WalSource:
    """All parts, created and not started."""

    ring: Ring
    slices: Slices
    lease: StreamLease
    progress: Progress
    input: WalInput
    archive: Path | None = None  # the source of the WAL, or of the first part


class MakeWalSource(Protocol):
    """Creates the WAL source of a capture that decodes from `page_lsn`, and skips what was delivered.

    `timeline`: of the catalog base; so of `page_lsn`, or an earlier one. `copying`: behind a first copy.
    """

    def __call__(self, page_lsn: Lsn, timeline: TimelineId, delivered: Position, *, copying: bool) -> WalSource:
        """Create it."""


@dataclass(frozen=True, slots=True)
class WalSettings:
    """The settings that the sources of WAL read."""

    dsn: str
    ring_bytes: int
    reconnect_free_share: float
    spool_bytes: int
    archive_folder: str  # empty: there is no archive
    retry: RetryConfig
    refuses_standby: bool  # unless it is followed only

    @classmethod
    def of(cls, config: Config, segment_bytes: int) -> Self:
        """Return the settings of a configuration, for a node with such segments."""
        return cls(
            config.capture.dsn,
            config.ring_bytes(segment_bytes),
            config.ring.reconnect_free_share,
            config.copy.spool_bytes,
            config.archive.folder,
            config.retry,
            config.standby.follow,
        )


def new_ring(ring_bytes: int, page_lsn: Lsn, metrics: Metrics) -> Ring:
    """Return a ring of the configured size that begins at `page_lsn`."""
    ring = Ring(ring_bytes, page_lsn)
    metrics.ring_capacity.set(ring.capacity)
    return ring


def _starting_at(page_lsn: Lsn, settings: WalSettings, context: CaptureContext) -> tuple[Ring, StreamLease, Progress]:
    return new_ring(settings.ring_bytes, page_lsn, context.metrics), StreamLease(), Progress(received_lsn=page_lsn)


def from_node(
    context: CaptureContext,
    settings: WalSettings,
    page_lsn: Lsn,
    timeline: TimelineId,
    delivered: Position,
    *,
    copying: bool,
    may_overflow: MayOverflow = always,
) -> WalSource:
    """Stream from the node; the spool is read first if a copy is due, or was not read to its end."""
    ring, lease, progress = _starting_at(page_lsn, settings, context)
    spool = WalSpool(context.store.folder.copy, settings.spool_bytes, context.store.folder.file_mode)
    if not spool.is_empty and not spool.start_lsn <= page_lsn <= spool.write_lsn:
        spool.drop_below(None)

    def into(sink: WalSink, timeline: TimelineId) -> NetworkThread:
        return _network(
            context, settings, sink, timeline, progress, lease=lease, delivered=delivered, may_overflow=may_overflow
        )

    if not copying and spool.is_empty:
        return WalSource(ring, ring, lease, progress, into(ring, timeline))
    if spool.is_empty:
        spool.begin(page_lsn, timeline)
    progress.receive(spool.write_lsn)

    def stream_after_spool(sink: WalSink) -> NetworkThread:
        return into(sink, spool.timeline)  # NB: of the time of the call: the spool may follow to another one

    spooled = SpooledInput(spool, ring, lease.arrived, stream_after_spool, context.log)
    return WalSource(ring, ring, lease, progress, spooled)


def followed_from_node(
    context: CaptureContext,
    settings: WalSettings,
    page_lsn: Lsn,
    timeline: TimelineId,
    delivered: Position,
    *,
    copying: bool,
) -> WalSource:
    """Stream from a standby without delivery: no copy is made, and a full ring does not leave it to an archiver."""
    del copying
    ring, lease, progress = _starting_at(page_lsn, settings, context)
    network = _network(context, settings, ring, timeline, progress, lease=lease, delivered=delivered, follows=True)
    return WalSource(ring, ring, lease, progress, network)


def cut_spool(folder: StateFolder, spool_bytes: int, lsn: Lsn) -> None:
    """Remove spooled WAL behind `lsn`, if the node's timeline turned out to have ended there."""
    WalSpool(folder.copy, spool_bytes, folder.file_mode).cut_behind(lsn)


def from_archive(
    context: CaptureContext,
    settings: WalSettings,
    page_lsn: Lsn,
    timeline: TimelineId,
    delivered: Position,
    *,
    copying: bool,
) -> WalSource:
    """Read the archive; around a first copy it simply waits: nothing is removed from it."""
    del copying
    ring, lease, progress = _starting_at(page_lsn, settings, context)
    source = ArchiveInput(
        Path(settings.archive_folder),
        ring,
        system_identifier=context.store.identity.system_identifier,
        timeline=timeline,
        progress=progress,
        arrived=lease.arrived,
        metrics=context.metrics,
        log=context.log,
        delivered=delivered,
        dsn=settings.dsn,
    )
    return WalSource(ring, ring, lease, progress, source, Path(settings.archive_folder))


class LiveBuffer:
    """The node's stream from now on, in a ring without a reader so far (I15)."""

    def __init__(
        self, context: CaptureContext, settings: WalSettings, here: NodeIdentity, delivered: Position | None
    ) -> None:
        """Make a buffer that begins at `here`, where the node's WAL ends now; a node without `delivered` ends it."""
        self._archive = Path(settings.archive_folder)
        self._system_identifier = context.store.identity.system_identifier
        self._timeline = here.timeline
        self.start_lsn = first_page_lsn(here.flush_lsn)
        self._ring, self._lease = new_ring(settings.ring_bytes, self.start_lsn, context.metrics), StreamLease()
        self._progress = Progress(received_lsn=self.start_lsn, flush_lsn=here.flush_lsn)
        # NB: the ring has no reader yet: WAL written while the connection is made can fill it, too.
        self._network = _network(
            context,
            settings,
            self._ring,
            here.timeline,
            self._progress,
            lease=self._lease,
            delivered=delivered,
            restored_lsn=here.flush_lsn,
        )

    @property
    def input(self) -> NetworkThread:
        """The input that fills it."""
        return self._network

    def timeline_at(self, lsn: Lsn) -> TimelineId | None:
        """Return the timeline of the buffered WAL at `lsn`; None if nothing is buffered, yet or at all."""
        return self._ring.timeline_at(lsn)

    def start(self) -> None:
        """Begin to buffer."""
        self._network.start()

    def stop(self) -> None:
        """Disconnect from the node; the buffer's contents are discarded."""
        self._network.stop()
        self._ring.free()

    def wal_source(self, page_lsn: Lsn, timeline: TimelineId, delivered: Position, *, copying: bool) -> WalSource:
        """Return what a capture decodes from `page_lsn`: the archive up to the buffer, then the buffer."""
        del copying, timeline, delivered
        if page_lsn >= self.start_lsn:
            return WalSource(self._ring, RingFrom(self._ring, page_lsn), self._lease, self._progress, self._network)
        slices = ArchiveThenRing(self._read_earlier(page_lsn), self._ring)
        return WalSource(self._ring, slices, self._lease, self._progress, self._network, self._archive)

    def _read_earlier(self, page_lsn: Lsn) -> Iterator[WalSlice]:
        """Yield the archived WAL before the buffer; the folder is listed by the thread that reads it."""
        of = self._system_identifier
        archive = ArchiveFolder(self._archive, self._timeline, complete_only=True, of=of)
        yield from read_between(archive, page_lsn, self.start_lsn)


class RingFrom:
    """The ring from a later LSN; it may not have come that far, so earlier WAL is released as it arrives."""

    def __init__(self, ring: Ring, start_lsn: Lsn) -> None:
        self._ring = ring
        self._start_lsn = start_lsn

    def peek(self) -> WalSlice | None:
        """Return the next slice."""
        passed_over = min(self._start_lsn - self._ring.read_lsn, self._ring.used_bytes)
        if passed_over > 0:
            self._ring.release(passed_over)
        return self._ring.peek() if self._ring.read_lsn >= self._start_lsn else None

    def release(self, length: int) -> None:
        """Release a slice."""
        self._ring.release(length)


class ArchiveThenRing:
    """WAL from before the ring's beginning first, then the ring; read by the decode thread itself, piece by piece."""

    def __init__(self, earlier: Iterator[WalSlice], ring: Ring) -> None:
        self._earlier = earlier
        self._ring = ring
        self._piece: WalSlice | None = None
        self._is_over = False

    def peek(self) -> WalSlice | None:
        """Return the next slice."""
        if not self._is_over and self._piece is None:
            self._piece = next(self._earlier, None)
            self._is_over = self._piece is None
        return self._ring.peek() if self._is_over else self._piece

    def release(self, length: int) -> None:
        """Release a slice."""
        if self._is_over:
            self._ring.release(length)
        else:
            assert self._piece is not None, "it was not returned"
            assert length == len(self._piece.data), "each slice is released in one piece"
            self._piece = None


def _network(
    context: CaptureContext,
    settings: WalSettings,
    sink: WalSink,
    timeline: TimelineId,
    progress: Progress,
    *,
    lease: StreamLease,
    delivered: Position | None = None,
    restored_lsn: Lsn | None = None,
    follows: bool = False,
    may_overflow: MayOverflow = always,
) -> NetworkThread:
    """`follows`: nothing of it is delivered."""
    return NetworkThread(
        settings.dsn,
        sink,
        system_identifier=context.store.identity.system_identifier,
        timeline=timeline,
        progress=progress,
        arrived=lease.arrived,
        lease=lease if isinstance(sink, Ring) else None,  # WAL in the spool is not decoded yet
        metrics=context.metrics,
        log=context.log,
        backoff=Backoff(settings.retry.first_s, settings.retry.max_s),
        attempts_max=settings.retry.attempts_max,
        reconnect_share=settings.reconnect_free_share,
        overflows=bool(settings.archive_folder) and not follows,
        may_overflow=may_overflow,
        refuses_standby=settings.refuses_standby and not follows,
        delivered=delivered,
        restored_lsn=restored_lsn,
    )
