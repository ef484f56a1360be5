"""How long the sidecar waits for an archive that makes no progress (I17). Time is an argument."""

from dataclasses import dataclass

from tidemark.model.lsn import Lsn
from tidemark.model.position import Position


@dataclass(frozen=True, slots=True)
class ArchiveProgress:
    """The signs of progress of a return to realtime."""

    delivered: Position | None
    archived_lsn: Lsn | None  # the end of the archive; None: it is empty, or cannot be read
    archiver_is_alive: bool

    def has_unread(self, segment_bytes: int) -> bool:
        """Return whether the archiver runs and has WAL to read: then it or its consumer is slow, not the archive.

        The delivered position may be up to a segment before the end of the archive: the rest may be padding.
        """
        if not self.archiver_is_alive or self.archived_lsn is None:
            return False
        delivered_lsn = self.delivered.commit_lsn if self.delivered is not None else 0
        return self.archived_lsn - delivered_lsn > segment_bytes


@dataclass(slots=True)
class ArchiveWait:
    """Decides when the wait is over: no progress for `wait_s`, and the archiver has nothing to read."""

    wait_s: float
    segment_bytes: int
    _last: tuple[Position | None, Lsn | None] | None = None
    _since_s: float = 0.0

    def is_over(self, seen: ArchiveProgress, now_s: float) -> bool:
        """Record the progress; return whether the wait is over."""
        last = (seen.delivered, seen.archived_lsn)
        if last != self._last:
            self._last, self._since_s = last, now_s
        return now_s - self._since_s >= self.wait_s and not seen.has_unread(self.segment_bytes)

    def restart(self) -> None:
        """Restart the wait: nothing waits for the archive, or the node does not have the WAL."""
        self._last = None
