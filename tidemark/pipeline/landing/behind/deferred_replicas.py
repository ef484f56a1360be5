"""Merges the replicas that are merged at intervals: each reads its changes from the outbox when it is due.

It does so in slices between two batches, as a resumed table: only the replica that is furthest behind merges a slice
before the next batch may run. If the outbox keeps too much for it, it is due at once.
"""

from collections.abc import Mapping

from tidemark.io.readers.outbox import OutboxTrimmed
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.landing.behind.slices import KeptBytes, table_slice
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.source.outbox_port import OutboxPort


class DeferredReplicas:
    """The deferred replicas of one reader's lake; used by one thread at a time."""

    def __init__(self, outbox: OutboxPort, bytes_max: int) -> None:
        self._outbox = outbox
        self._bytes_max = bytes_max
        self._kept = KeptBytes(outbox)

    def merge(self, lake: Lake, *, all_of_them: bool = False) -> bool:
        """Let the replica that is due, or the one of several that is furthest behind, merge one slice.

        Return whether one was due.
        """
        if lake.positions.outbox != self._outbox.outbox_id:
            return False  # the next batch decides whether the new outbox has their changes
        deferred = lake.deferred
        due = {of: after for of, after in deferred.items() if all_of_them or lake.is_due(of)}
        of = _furthest(due) or _furthest(deferred)
        if of is None or not (due or self._keeps_too_much(deferred[of], lake)):
            return False
        try:
            items, upto = table_slice(self._outbox, of, deferred[of], lake.positions.applied.sequence)
        except OutboxTrimmed:
            lake.give_up([of], "the outbox no longer contains its changes", FaultKind.DEFERRED)
        else:
            lake.catch_up(of, items, upto, FaultKind.DEFERRED)
        return True

    def _keeps_too_much(self, after: OutboxSequence, lake: Lake) -> bool:
        try:
            return self._kept.measure(after, lake.positions.applied.sequence) > self._bytes_max
        except OutboxTrimmed:
            return True


def _furthest(behind: Mapping[TableId, OutboxSequence]) -> TableId | None:
    """Return the replica that lacks the most changes; None if there is none."""
    return min(behind, key=lambda of: behind[of], default=None)
