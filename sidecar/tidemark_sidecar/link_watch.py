"""Detects a node that archives but that the sidecar cannot reach: the archiver has more WAL than the sidecar (I22).

A node that is down archives nothing: then the sidecar has received all WAL, or the archive contains the rest.
"""

from tidemark.model.lsn import Lsn, format_lsn
from tidemark.runtime.capture.source_thread import Link
from tidemark.runtime.daemon.stops import NodeOutOfReach


class LinkWatch:
    """Watches the sidecar's link to the node."""

    def __init__(self, down_s_max: float) -> None:
        """`down_s_max`: how long the link may be down while the archive grows."""
        self._down_s_max = down_s_max
        self._linked_s: float | None = None  # when the link was last up, or at the first check

    def forget(self) -> None:
        """Reset: there is no capture."""
        self._linked_s = None

    def check(self, link: Link, received_lsn: Lsn, archived_lsn: Lsn | None, now_s: float) -> None:
        """Raise `NodeOutOfReach` if the archiver can continue and the sidecar cannot; `archived_lsn` may be unread."""
        if link is not Link.CONNECTING or self._linked_s is None:
            self._linked_s = now_s
        away_s = now_s - self._linked_s
        if archived_lsn is not None and archived_lsn > received_lsn and away_s >= self._down_s_max:
            raise NodeOutOfReach(
                f"no stream from the node for {away_s:.0f} s: received up to {format_lsn(received_lsn)}, "
                f"archived up to {format_lsn(archived_lsn)}"
            )
