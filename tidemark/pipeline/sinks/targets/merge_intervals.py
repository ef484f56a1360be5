"""Replicas that are merged at intervals (`merge_interval_s` in `[[lake.tables]]`).

Between two merges such a replica is *deferred*: the outbox keeps its changes, and `_positions` has its own position.
When it is due, it reads them from the outbox and merges them, between two batches of the lake.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tidemark.io.process.lake_config import LakeTableConfig
from tidemark.model.change import CopyBoundary
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.faults import Fault, FaultKind
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.pipeline.sinks.steps import Delivered
from tidemark.pipeline.sinks.targets.targets import Outcome, TargetTable


class MergeIntervals:
    """When each replica was merged last; after a start, every replica is due."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._merged_s: dict[TableId, float] = {}

    def is_due(self, of: TableId, settings: LakeTableConfig) -> bool:
        """Return whether the interval of a replica has passed since its last merge."""
        merged_s = self._merged_s.get(of)
        return merged_s is None or self._monotonic_s() - merged_s >= settings.merge_interval_s

    def record_merge(self, of: TableId) -> None:
        """Record that a replica contains all changes now."""
        self._merged_s[of] = self._monotonic_s()

    def forget(self, of: TableId) -> None:
        """Forget the last merge of a dropped table."""
        self._merged_s.pop(of, None)

    def deferred(
        self,
        of: TableId,
        target: TargetTable,
        known: TablePosition | None,
        items: Sequence[Delivered],
        *,
        since: Applied,
        settings: LakeTableConfig,
    ) -> Outcome | None:
        """Return the result for a replica that is not merged in this batch, which begins after `since`; else None.

        A copy is not deferred, nor is a replica that does not exist yet.
        """
        if not settings.merge_interval_s or not items or target.known.fault is not None:
            return None
        is_new = known is None or target.known.recorded.version < 0
        is_copied = (known is not None and known.state is TableState.COPYING) or any(_begins_copy(one) for one in items)
        if is_new or is_copied or self.is_due(of, settings):
            self.record_merge(of)
            return None
        reason = f"merge_interval_s = {settings.merge_interval_s} in [[lake.tables]], pattern {settings.pattern}"
        fault = Fault(FaultKind.DEFERRED, reason, target.applied.position, since.sequence, since.position)
        return Outcome(replace(target.known, fault=fault), target.applied)


def _begins_copy(delivered: Delivered) -> bool:
    return isinstance(delivered.item, CopyBoundary) and delivered.item.begin
