"""Reads archived WAL for its markers only, while the other process delivers (I13): no catalog and no row is read.

A hole or a damaged segment is logged once, as an error; the scan continues behind it, since nothing is delivered here.
A process that delivers from there stops at it.
"""

from collections.abc import Callable
from pathlib import Path

from tidemark.io.archive.archive import ArchiveFolder, NoWal
from tidemark.io.host.folder_changes import FolderChanges
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.process.metrics import Metrics
from tidemark.model.errors import CorruptWal, TidemarkError, WalGap
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId
from tidemark.model.message_prefix import MARKER_PREFIX
from tidemark.model.position import Position
from tidemark.runtime.capture.network import Reached
from tidemark.runtime.capture.signal import Signal
from tidemark.runtime.capture.source_thread import Link, SourceThread
from tidemark.runtime.replay.archive_damage import in_archive
from tidemark.runtime.replay.decode_run import InvalidWal
from tidemark.runtime.replay.offline import check_same_cluster
from tidemark.wal.page import Framer, Invalid, NeedMore, RecordBlock
from tidemark.wal.rmgr import RM_LOGICALMSG, message
from tidemark.wal.segments import WalSlice, segment_of, segment_start
from tidemark.wire.state.values import Identity

POLL_S = 0.5
_INTEREST = frozenset({RM_LOGICALMSG})
OnContent = Callable[[Lsn, bytes], object]


class MarkerScan(SourceThread):
    """Follows an archive, and reports each message under our prefix."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        start_lsn: Lsn,
        on_content: OnContent,
        *,
        metrics: Metrics,
        log: Log,
        delivered: Callable[[], Position | None] = lambda: None,
    ) -> None:
        """Begin with the segment that contains `start_lsn`; earlier markers were read already.

        `delivered`: by the other process; the timeline of a server that does not have it is not scanned.
        """
        super().__init__("marker-scan", Signal())
        self._identity = identity
        self._segment_bytes = identity.segment_bytes
        self._folder = folder
        self._metrics = metrics
        self._log = log
        self._delivered = delivered
        self._on_content = on_content
        self._start_lsn = start_lsn
        self.read_lsn = segment_start(segment_of(start_lsn, self._segment_bytes), self._segment_bytes)
        self.broken: TidemarkError | None = None  # the last hole or damage that was passed
        self._framer = self._new_framer()
        self._timeline: TimelineId | None = None
        self._changes = FolderChanges(self._folder)

    def _work(self) -> None:
        self._link = Link.STREAMING
        while not self._stopping.is_set():
            if self._changes.may_be_new():
                self._read_on()
            self._stopping.wait(POLL_S)

    def _read_on(self) -> None:
        since = (self._timeline, self.read_lsn) if self._timeline is not None else None
        of = self._identity.system_identifier
        try:
            with self._changes.listing():
                archive = ArchiveFolder(self._folder, complete_only=True, of=of, since=since)
        except NoWal:
            return  # not yet
        check_same_cluster(archive, self._identity.system_identifier)
        archive.follow_through(*Reached.by_delivering(self._delivered()))
        try:
            for piece in archive.read_what_is_there(self.read_lsn):
                self._read(piece)
                if self._stopping.is_set():
                    return
        except (WalGap, CorruptWal) as error:
            before, self.broken = self.broken, self._with_file(error)
            if before is None or str(before) != str(self.broken):  # the end of the archive is read again and again
                self._metrics.errors.inc()
                self._log.warning("the archive cannot be read here", **describe_error(self.broken))
            self._pass(archive)

    def _with_file(self, error: TidemarkError) -> TidemarkError:
        """Return an error with its file."""
        if not isinstance(error, InvalidWal):
            return error
        identity = self._identity
        return in_archive(self._folder, identity.system_identifier, error, error.invalid.lsn, self.fed_lsn)

    @property
    def timeline(self) -> TimelineId | None:
        """Timeline of the current WAL."""
        return self._timeline

    @property
    def fed_lsn(self) -> Lsn:
        """The LSN up to which WAL was read."""
        return self._framer.fed_lsn or INVALID_LSN

    def _read(self, piece: WalSlice) -> None:
        if piece.timeline != self._timeline:
            self._framer.follow(piece.timeline)
            self._timeline = piece.timeline
        self._framer.feed(piece.start_lsn, piece.data)
        while not isinstance(block := self._framer.next_block(), NeedMore):
            if isinstance(block, Invalid):
                raise InvalidWal(block)
            self._scan(block)
        self.read_lsn = piece.end_lsn

    def _scan(self, block: RecordBlock) -> None:
        for record in block.records(_INTEREST):
            found = message.parse(record)
            if found is not None and found.prefix == MARKER_PREFIX.encode() and record.lsn > self._start_lsn:
                self._on_content(record.lsn, found.content)

    def _pass(self, archive: ArchiveFolder) -> None:
        """Continue with the next existing segment; with the following one, if the framer met invalid WAL."""
        behind = archive.next_wal_after(self.read_lsn)
        if behind is None and self._framer.fed_lsn not in (None, self.read_lsn):
            behind = segment_start(segment_of(self.read_lsn, self._segment_bytes) + 1, self._segment_bytes)
        if behind is not None:
            self.read_lsn = behind
            self._framer, self._timeline = self._new_framer(), None
            self._changes.forget()

    def _new_framer(self) -> Framer:
        identity = self._identity
        return Framer(system_identifier=identity.system_identifier, segment_bytes=self._segment_bytes)
