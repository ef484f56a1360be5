"""Both processes' report on the archive folder, refreshed at intervals: a folder that changed is listed as a whole.

Realtime needs no archive: a folder that hangs blocks a thread, not the sidecar's loop.
"""

from dataclasses import dataclass
from pathlib import Path

from tidemark.io.archive.archive_listing import ArchiveListing
from tidemark.io.archive.archive_state import ArchiveState
from tidemark.io.host.logs import describe_error
from tidemark.io.node.node import NodeArchiving
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Lsn
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.archiving_watch import ArchivingWatch

LISTING_S = 5.0
CPU_SHARE_MAX = 0.01  # of a listing: one of a hundred thousand segments takes 0.3 s of CPU
SILENT_S = 30.0  # a hundred thousand files take seconds, over a network more


@dataclass(slots=True)
class ArchiveReport:
    """Lists the folder, and sets the gauges."""

    context: CaptureContext
    folder: str  # empty: no archive is configured
    watch: ArchivingWatch
    _answer: NodeArchiving | None = None  # the node's report from before the listing began
    _begun_s: float = -LISTING_S
    _listing: ArchiveListing | None = None
    _last: ArchiveState | None = None
    _every_s: float = LISTING_S
    _is_reported: bool = False

    def step(self, now_s: float, received_lsn: Lsn | None = None) -> ArchiveState | None:
        """Look, if it is time; `received_lsn`: the end of the ring, if there is one."""
        if self.folder:
            self.watch.poll()
        if self.folder and self._listing is None and now_s - self._begun_s >= self._every_s:
            segment_bytes = self.context.store.identity.segment_bytes
            before, self._answer = self._answer, self.watch.answer
            # NB: newer than the answer, also if the file system does not show in the folder that a file has arrived.
            last = self._last if _archived_file(before) == _archived_file(self._answer) else None
            self._listing = ArchiveListing(Path(self.folder), segment_bytes, last)
            self._begun_s = now_s
        listing = self._listing
        if listing is None or not (listing.is_over or now_s - self._begun_s >= SILENT_S):
            return None
        if listing.is_over:
            self._listing = None
            self._every_s = max(LISTING_S, listing.cpu_s / CPU_SHARE_MAX)
        try:
            found = listing.result(0)
        except TidemarkError as error:
            self.context.metrics.errors.inc()
            if not self._is_reported:
                self.context.log.warning("the archive cannot be listed", **describe_error(error))
            self._is_reported = True
            return None
        self._is_reported = False
        self._last = found
        self._report(found, received_lsn)
        return found

    def _report(self, found: ArchiveState, received_lsn: Lsn | None) -> None:
        metrics = self.context.metrics
        metrics.archive_bytes.set(found.byte_count)
        metrics.archive_free.set(found.free_bytes)
        self.watch.compare(self._answer, found)
        metrics.archive_holes.set(len(found.holes) + self.watch.holes)
        if found.end_lsn is not None:
            metrics.archived_lsn.set(found.end_lsn)
        archived_lsn = found.end_lsn or self._begin_lsn()
        if received_lsn is not None and archived_lsn is not None:
            metrics.archive_lag.set(max(0, received_lsn - archived_lsn) / found.segment_bytes)

    def _begin_lsn(self) -> Lsn | None:
        """Return where the capture began: if nothing behind it was ever archived, that is a lag, too."""
        beginning = self.context.store.beginning()
        return beginning.lsn if beginning is not None else None


def _archived_file(answer: NodeArchiving | None) -> str:
    return answer.archived_file if answer is not None else ""
