"""Fills the ring from a folder of archived WAL, segment by segment, as the segments arrive (archiver).

A segment that is missing between others for longer than `HOLE_S` is a hole and ends the thread. So does a segment that
stays incomplete for as long: some tools write in place. The thread waits for a segment that is missing at the end.
The folder is listed again only after it changed. Timelines are followed as in recovery, the latest one, unless the node
is a primary that is not on it (`archive_branch`). A timeline that left ours before what was already read ends the
thread, too, unless the node is on ours.
"""

import time
from pathlib import Path

from tidemark.engine.progress import Progress
from tidemark.engine.ring import Ring
from tidemark.io.archive.archive import ArchiveFolder, BadSegment, Hole, NoWal
from tidemark.io.archive.segment_file import DamagedFile
from tidemark.io.host.folder_changes import FolderChanges
from tidemark.io.host.logs import Log
from tidemark.io.process.metrics import Metrics
from tidemark.model.lsn import INVALID_LSN, Lsn, SystemIdentifier, TimelineId
from tidemark.model.position import Position
from tidemark.runtime.capture.archive_branch import ArchiveBranch
from tidemark.runtime.capture.network import Reached
from tidemark.runtime.capture.signal import Signal
from tidemark.runtime.capture.source_thread import Link, SourceThread
from tidemark.runtime.replay.offline import check_same_cluster
from tidemark.wal.segments import SLICE_BYTES_MAX, WalSlice

POLL_S = 0.2  # how often the folder is checked for new WAL; a segment is 16 MB
SPACE_POLL_S = 0.02
HOLE_S = 5.0  # tools that archive in parallel may write a segment later than its successor, but not so much later


class ArchiveInput(SourceThread):
    """Fills the ring from an archive."""

    def __init__(
        self,
        folder: Path,
        ring: Ring,
        *,
        system_identifier: SystemIdentifier,
        timeline: TimelineId,
        progress: Progress,
        arrived: Signal,
        metrics: Metrics,
        log: Log,
        dsn: str,
        delivered: Position | None = None,
    ) -> None:
        """`timeline`: of the ring's end, or an earlier one that led to it; `delivered`: by an earlier run.

        `dsn`: of the node, which is asked for its timeline if the archive contains two branches.
        """
        super().__init__("archive", arrived)
        self._folder = folder
        self._ring = ring
        self._system_identifier = system_identifier
        self._timeline = timeline
        self._delivered = Reached.by_delivering(delivered)
        self._logged_timeline = timeline  # the latest one
        self._branch = ArchiveBranch(dsn, system_identifier, log)
        self._is_behind = False  # the archive does not contain the delivered timeline yet
        self._progress = progress
        self._metrics = metrics
        self._log = log
        self._changes = FolderChanges(folder)
        self._hole_lsn = INVALID_LSN
        self._hole_since_s = 0.0

    def _work(self) -> None:
        while not self._stopping.is_set():
            archive = self._read_inventory()
            if archive is None:
                self._stopping.wait(POLL_S)
                continue
            self._link = Link.STREAMING
            end_lsn = self._ring.write_lsn
            try:
                for piece in archive.read_what_is_there(end_lsn):
                    if not self._put(piece):
                        return
                if self._ring.write_lsn == end_lsn:
                    self._stopping.wait(POLL_S)
            except (Hole, BadSegment, DamagedFile):
                if self._is_lasting():
                    raise
                self._changes.forget()
                self._stopping.wait(POLL_S)

    def _is_lasting(self) -> bool:
        """Return whether the WAL that is missing or incomplete at the ring's end has been so for `HOLE_S`."""
        now_s = time.monotonic()
        if self._hole_lsn != self._ring.write_lsn:
            self._hole_lsn, self._hole_since_s = self._ring.write_lsn, now_s
        return now_s - self._hole_since_s >= HOLE_S

    def _read_inventory(self) -> ArchiveFolder | None:
        """Return the folder's inventory, if it may have changed."""
        if not self._changes.may_be_new():
            return None
        since = self._timeline, self._ring.write_lsn
        try:
            with self._changes.listing():
                archive = ArchiveFolder(self._folder, complete_only=True, of=self._system_identifier, since=since)
        except NoWal:
            return None  # not yet
        check_same_cluster(archive, self._system_identifier)
        if archive.history.timeline < self._delivered.timeline:
            self._wait_for_fork()
            return None
        self._follow(archive)
        return None if self._stopping.is_set() else archive

    def _wait_for_fork(self) -> None:
        """Log once that the delivered position is on a timeline of which nothing is archived yet."""
        if not self._is_behind:
            self._is_behind = True
            self._log.warning(
                "the archive does not contain the delivered timeline yet", timeline=self._delivered.timeline
            )

    def _follow(self, archive: ArchiveFolder) -> None:
        """Follow the archive's latest timeline, or that of the node, if it contains the WAL that was read."""
        received = Reached(self._timeline, self._ring.write_lsn)
        reached = max(self._delivered, received)
        self._branch.follow(archive, reached, is_delivered=reached != received)
        latest = archive.history.timeline
        if latest not in (self._timeline, self._logged_timeline):
            self._logged_timeline = latest
            self._log.info("the archive has a later timeline", timeline=self._timeline, next_timeline=latest)

    def _put(self, piece: WalSlice) -> bool:
        """Put a piece into the ring, slice by slice, as there is space; return whether all of it was put."""
        data = memoryview(piece.data)
        for at in range(0, len(data), SLICE_BYTES_MAX):
            while self._ring.free_bytes < SLICE_BYTES_MAX:
                if self._stopping.wait(SPACE_POLL_S):
                    return False
            part = data[at : at + SLICE_BYTES_MAX]
            wal_slice = WalSlice(Lsn(piece.start_lsn + at), part, piece.timeline)
            self._progress.receive(wal_slice.end_lsn)  # NB: before the decode thread, which is quick, can read it
            self._ring.put(wal_slice)
            self._metrics.wal_bytes.inc(len(part))
            self._arrived.set()
        self._timeline = piece.timeline
        return True
