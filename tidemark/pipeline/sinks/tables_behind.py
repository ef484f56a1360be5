"""The tables that lack values which the lake contains: paused tables, and those whose replica is deferred.

The outbox keeps these values. A table whose values are given up, or missing in another outbox, needs a new copy.
"""

from collections.abc import Collection
from dataclasses import replace

from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.sinks.lake_batch import LakeBatch
from tidemark.pipeline.sinks.steps import last_position
from tidemark.pipeline.sinks.targets.table_faults import TableFaults
from tidemark.pipeline.sinks.targets.table_states import diverged_table


class TablesBehind:
    """The tables of one lake that are behind it."""

    def __init__(self, positions: Positions, faults: TableFaults) -> None:
        self._positions = positions
        self._faults = faults

    @property
    def paused(self) -> dict[TableId, OutboxSequence]:
        """Return the paused tables, each with the value of the outbox after which its changes are needed."""
        return self._with_fault(FaultKind.PAUSED)

    @property
    def deferred(self) -> dict[TableId, OutboxSequence]:
        """Return the tables whose replica is deferred, each with the value after which its changes are needed."""
        return self._with_fault(FaultKind.DEFERRED)

    def _with_fault(self, kind: FaultKind) -> dict[TableId, OutboxSequence]:
        found = {}
        for of, faults in self._faults.of(self._positions.tables).items():
            needed = [fault.sequence for fault in faults if fault.kind is kind]
            if needed:
                found[of] = min(needed)
        return found

    @property
    def contained(self) -> OutboxSequence:
        """Return the sequence up to which every table contains the values of the outbox, also those that are behind."""
        return min([self._positions.applied.sequence, *self.paused.values(), *self.deferred.values()])

    def give_up(self, tables: Collection[TableId], reason: str, kind: FaultKind = FaultKind.PAUSED) -> None:
        """Make paused or deferred tables diverge: they need a new copy. The next batch records it."""
        given_up = {of: diverged_table(self._positions.tables[of], reason, kind) for of in tables}
        self._positions.tables = {**self._positions.tables, **given_up}

    def change_outbox(self, batch: LakeBatch, since: OutboxSequence) -> None:
        """Give up the tables whose values a new outbox lacks, which continues the lake with `batch` after `since`."""
        self.give_up(self.paused.keys(), "another outbox continues the lake, without the changes of its pause")
        self._rebase_deferred(batch, since)

    def _rebase_deferred(self, batch: LakeBatch, since: OutboxSequence) -> None:
        """Let deferred replicas continue with a new outbox, which ends after `since`, if it has all their changes.

        It has them if it repeats a change that the replica contains: an outbox has no holes.
        """
        first = last_position(batch.items[0][1]) if batch.items else None
        for of in self.deferred:
            table = self._positions.tables[of]
            fault = table.replica.fault
            assert fault is not None, table
            if first is not None and first <= fault.position:
                rebased = replace(table, replica=replace(table.replica, fault=replace(fault, sequence=since)))
                self._positions.tables = {**self._positions.tables, of: rebased}
            else:
                reason = "another outbox continues the lake, without the changes since its last merge"
                self.give_up([of], reason, FaultKind.DEFERRED)
