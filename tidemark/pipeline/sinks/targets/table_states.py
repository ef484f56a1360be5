"""The state of a table of the lake after its log and replica were written, as the positions table records it."""

from collections.abc import Sequence
from dataclasses import replace

from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import NO_COMMIT_TIME, SchemaChange, SchemaEvent
from tidemark.pipeline.lake.faults import NOT_SELECTED, OPEN_END, FaultKind, LakeEntry, LogBreak
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.sinks.steps import Delivered, TableItem, begins_table, last_position
from tidemark.pipeline.sinks.targets.targets import Outcome

_OF_REPLICA = (TableState.LIVE, TableState.BLOCKED, TableState.STALE)


def breaks_after(known: TablePosition | None, log: Outcome, items: Sequence[Delivered] = ()) -> tuple[LogBreak, ...]:
    """Return the breaks of a log, with the one that its last write caused, and those that its items report."""
    breaks = captured_breaks(known, items)
    return breaks if log.broke is None else (*breaks, log.broke)


def captured_breaks(known: TablePosition | None, items: Sequence[Delivered]) -> tuple[LogBreak, ...]:
    """Return the breaks of a log, of which the changes are missing in which its table was not selected.

    NB: items may come again, also those of earlier batches. Before the first one there is nothing to miss.
    """
    breaks, last = (list(known.breaks), known.position) if known is not None else ([], None)
    for item in (delivered.item for delivered in items):
        at, change = last_position(item), _capture_change(item)
        unfinished = next((number for number, gap in enumerate(breaks) if gap.is_open), None)
        if unfinished is not None:
            if _begins_capture(item) and at > breaks[unfinished].after:
                breaks[unfinished] = replace(breaks[unfinished], to=at)
        elif last is not None and not any(gap.keeps_earlier and gap.to >= at for gap in breaks):
            if change is CaptureChange.ENDS:  # NB: a copy may be ahead of the stream
                breaks.append(LogBreak(NOT_SELECTED, min(last, at), OPEN_END))
            elif change is CaptureChange.BEGINS and at > last:
                breaks.append(LogBreak(NOT_SELECTED, last, at))
        last = at if last is None else max(last, at)
    return tuple(breaks)


def _capture_change(item: TableItem) -> CaptureChange:
    return item.capture if isinstance(item, SchemaEvent) else CaptureChange.NONE


def _begins_capture(item: TableItem) -> bool:
    """Return whether the changes of a table are delivered from an item on."""
    return begins_table(item) or _capture_change(item) is CaptureChange.BEGINS


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
        return LakeEntry(entry.recorded, fault.given_up(reason))

    state = table.state if table.state is TableState.DROPPED else TableState.DIVERGED
    return replace(table, state=state, log=diverged(table.log), replica=diverged(table.replica))


def state_after(items: Sequence[Delivered], log: Outcome, replica: Outcome, known: TablePosition | None) -> TableState:
    """Return the state of a table after a batch."""
    if _is_dropped(items, known):
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


def _is_dropped(items: Sequence[Delivered], known: TablePosition | None) -> bool:
    """Return whether the last of what drops a table, or begins its capture, is a DROP.

    A table that becomes unlogged and logged again is dropped and created under one OID; if it has left the selection,
    it returns with a copy, or with the event by which its capture begins.
    """
    for item in (delivered.item for delivered in reversed(items)):
        if _begins_capture(item):
            return False
        if isinstance(item, SchemaEvent) and item.change is SchemaChange.DROP:
            return True
    return known is not None and known.state is TableState.DROPPED


def dropped_us(items: Sequence[Delivered], state: TableState, known: TablePosition | None) -> int:
    """Return the commit time of the DROP of a table; `NO_COMMIT_TIME` if it exists, or may exist, at the source."""
    if state is not TableState.DROPPED:
        return NO_COMMIT_TIME
    drops = [one.item for one in items if isinstance(one.item, SchemaEvent) and one.item.change is SchemaChange.DROP]
    if not drops:
        return known.dropped_us if known is not None else NO_COMMIT_TIME
    is_certain = drops[-1].capture is CaptureChange.NONE and not drops[-1].still_exists
    return drops[-1].commit_time_us if is_certain else NO_COMMIT_TIME


def _unwritten_state(log: Outcome, replica: Outcome, known: TablePosition | None) -> TableState:
    """Return the state of a table whose replica is deferred or excluded."""
    if replica.target.is_faulty(FaultKind.DEFERRED) and known is not None and known.state in _OF_REPLICA:
        return known.state
    return TableState.COPYING if log.applied.copy_sequence else TableState.LIVE
