"""The state of a table of the lake after its log and replica were written, as the positions table records it."""

from collections.abc import Sequence
from dataclasses import replace

from tidemark.model.change import SchemaChange, SchemaEvent
from tidemark.pipeline.lake.faults import Fault, FaultKind, LakeEntry, LogBreak
from tidemark.pipeline.lake.positions import TablePosition, TableState
from tidemark.pipeline.sinks.steps import Delivered
from tidemark.pipeline.sinks.targets import Outcome

_OF_REPLICA = (TableState.LIVE, TableState.BLOCKED, TableState.STALE)


def breaks_after(known: TablePosition | None, log: Outcome) -> tuple[LogBreak, ...]:
    """Return the breaks of a log, with the one that its last write caused."""
    earlier = known.breaks if known else ()
    return earlier if log.broke is None else (*earlier, log.broke)


def fault_state(*targets: Outcome) -> TableState | None:
    """Return the state of a table of which a log or replica is not written; None if both are."""
    kinds = {outcome.target.fault.kind for outcome in targets if outcome.target.fault is not None}
    states = (
        (FaultKind.DIVERGED, TableState.DIVERGED),
        (FaultKind.PAUSED, TableState.PAUSED),
        (FaultKind.STOPPED, TableState.STOPPED),
    )
    return next((state for kind, state in states if kind in kinds), None)


def diverged_table(table: TablePosition, reason: str, kind: FaultKind) -> TablePosition:
    """Return a paused or deferred table as one that needs a new copy."""

    def diverged(entry: LakeEntry) -> LakeEntry:
        fault = entry.fault
        if fault is None or fault.kind is not kind:
            return entry
        text = f"it was {kind.value} ({fault.reason}), and {reason}"
        return LakeEntry(entry.recorded, Fault(FaultKind.DIVERGED, text, fault.position))

    state = table.state if table.state is TableState.DROPPED else TableState.DIVERGED
    return replace(table, state=state, log=diverged(table.log), replica=diverged(table.replica))


def state_after(items: Sequence[Delivered], log: Outcome, replica: Outcome, known: TablePosition | None) -> TableState:
    """Return the state of a table after a batch."""
    # A table that becomes unlogged and logged again is dropped and created under one OID.
    schema_changes = [i.item.change for i in items if isinstance(i.item, SchemaEvent)]
    creations_and_drops = [change for change in schema_changes if change is not SchemaChange.ALTER]
    if creations_and_drops[-1:] == [SchemaChange.DROP] or (
        not creations_and_drops and known and known.state is TableState.DROPPED
    ):
        return TableState.DROPPED
    fault = fault_state(log, replica)
    if fault is not None:
        return fault
    if replica.table is None:
        return _unwritten_state(log, replica, known)
    if replica.applied.copy_sequence:
        return TableState.COPYING
    if replica.applied.blocked and replica.target.recorded.version >= 0:
        return TableState.STALE
    is_collected = replica.table.exists and replica.target.recorded.version < 0
    return TableState.BLOCKED if is_collected or replica.applied.blocked else TableState.LIVE


def _unwritten_state(log: Outcome, replica: Outcome, known: TablePosition | None) -> TableState:
    """Return the state of a table whose replica is deferred or excluded."""
    if replica.target.is_faulty(FaultKind.DEFERRED) and known is not None and known.state in _OF_REPLICA:
        return known.state
    return TableState.COPYING if log.applied.copy_sequence else TableState.LIVE
