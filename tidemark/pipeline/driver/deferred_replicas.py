"""Merges the replicas that are merged at intervals: each reads its changes from the outbox when it is due.

It does so in slices between two batches, as a resumed table. If the outbox keeps too much for them, the one that is
furthest behind is due at once.
"""

from tidemark.io.state.outbox import OutboxReader, OutboxTrimmed
from tidemark.pipeline.driver.slices import KeptBytes, table_slice
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.positions import TableId
from tidemark.pipeline.sinks.sinks import Lake


class DeferredReplicas:
    """The deferred replicas of one reader's lake; used by one thread at a time."""

    def __init__(self, outbox: OutboxReader, bytes_max: int) -> None:
        self._outbox = outbox
        self._bytes_max = bytes_max
        self._kept = KeptBytes(outbox)

    def merge(self, lake: Lake, *, all_of_them: bool = False) -> bool:
        """Let each replica that is due merge one slice; return whether there was one."""
        if lake.positions.outbox != self._outbox.outbox_id:
            return False  # the next batch decides whether the new outbox has their changes
        due = [of for of in lake.deferred if all_of_them or lake.is_due(of)] or self._furthest(lake)
        for of in due:
            try:
                items, upto = table_slice(self._outbox, of, lake.deferred[of], lake.positions.applied.sequence)
            except OutboxTrimmed:
                lake.give_up([of], "the outbox no longer contains its changes", FaultKind.DEFERRED)
                continue
            lake.catch_up(of, items, upto, FaultKind.DEFERRED)
        return bool(due)

    def _furthest(self, lake: Lake) -> list[TableId]:
        """Return the replica that is furthest behind if the outbox keeps too much for it."""
        deferred = lake.deferred
        if not deferred:
            return []
        of = min(deferred, key=lambda of: deferred[of])
        try:
            kept = self._kept.measure(deferred[of], lake.positions.applied.sequence)
        except OutboxTrimmed:
            return [of]
        return [of] if kept > self._bytes_max else []
