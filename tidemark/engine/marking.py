"""When a marker, or a segment switch, is worth the WAL that it costs (I07, I31). Time is an argument.

A marker is WAL itself: it counts as activity for `archive_timeout` and for the checkpointer. So one is written only
after other activity: a delivered transaction, or so much other WAL that one more record does not matter. WAL is counted
in records. NB: do not count LSN distances: a segment switch skips to the start of the next segment.
"""

from dataclasses import dataclass

OTHER_WAL_BYTES_MIN = 64 << 10  # WAL of checkpoints and running-xacts records of an idle node in some hours


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What is confirmed: the values and the last commit, and the WAL decoded by then."""

    sequence: int
    commit_time_us: int
    record_bytes: int

    def has_more_than(self, other: "Confirmed") -> bool:
        """Return whether a transaction was confirmed since `other`. NB: the node's clock may have been set back."""
        return (self.sequence, self.commit_time_us) != (other.sequence, other.commit_time_us)


@dataclass(slots=True)
class ConfirmPacing:
    """Decides when a confirm marker is due; confirmations before the first call need none."""

    every_s: float
    bytes_min: int
    _marked: Confirmed = Confirmed(0, 0, 0)
    _marked_s: float | None = None

    def is_due(self, confirmed: Confirmed, now_s: float) -> bool:
        """Return whether a marker for `confirmed` is due; if so, it counts as written."""
        if self._marked_s is not None:
            other_bytes = confirmed.record_bytes - self._marked.record_bytes
            if other_bytes < 0:  # after a restart the capture counts from zero
                other_bytes = confirmed.record_bytes
            moved = confirmed.has_more_than(self._marked) or other_bytes >= self.bytes_min
            if not moved or now_s - self._marked_s < self.every_s:
                return False
        is_first = self._marked_s is None
        self._marked, self._marked_s = confirmed, now_s
        return not is_first


@dataclass(frozen=True, slots=True)
class WalMark:
    """How much WAL the node has written, and its snapshot; an ended transaction shows activity, WAL alone does not."""

    record_bytes: int  # total, as in pg_stat_wal
    snapshot: str  # NB: the whole text: a commit of an older transaction leaves xmax unchanged

    def has_moved_since(self, earlier: "WalMark") -> bool:
        """Return whether there was activity since `earlier`."""
        return self.snapshot != earlier.snapshot or self.record_bytes - earlier.record_bytes >= OTHER_WAL_BYTES_MIN
