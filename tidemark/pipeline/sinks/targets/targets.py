"""Applies a batch to one log or replica, or leaves the target unchanged if it must not be written.

live      -> applied to; tried again if maintenance by another writer interrupts it
diverged  -> changed by another writer, or damaged: skipped until a new copy of the source's rows begins. A log needs
             the operator's acceptance as well, since it then has a break
stopped   -> its items wait beside it (`tidemark.pipeline.sinks.waiting`) until the property is undone
deferred  -> a replica that is merged at intervals (`merge_intervals`): skipped until the interval has passed
paused    -> writes to it failed repeatedly, or delayed the other tables (`slow_writes`): skipped; the outbox keeps its
             items until the operator resumes it
A deferred or paused replica continues with a new copy, which replaces its rows: it does not need the items before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

import pyarrow as pa
from deltalake.exceptions import DeltaError

from tidemark.io.host.disk import is_full
from tidemark.model.change import CopyBoundary
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.commits import CommitUnreadable, changed_columns, read_commit
from tidemark.pipeline.delta_log.damage import ScanStopped, damage_of
from tidemark.pipeline.delta_log.lineage import NO_VERSION, Recorded, TableDiverged, TableStopped, check_restrictions
from tidemark.pipeline.failures import first_reason, is_of_host, is_of_process, reports_full_disk
from tidemark.pipeline.lake.faults import UNTOUCHED, Fault, FaultKind, LakeEntry, LogBreak, UnfitSettings
from tidemark.pipeline.lake.layout import UnfitRows
from tidemark.pipeline.lake.tables.lake_table import REOPENED_MAX, LakeTable
from tidemark.pipeline.lake.tables.table_errors import REASON_MAX, LakeFailed, LakeFull, TableMoved, unavailable_store
from tidemark.pipeline.lake.tables.table_opening import table_id
from tidemark.pipeline.sinks.targets.schema_policy import SchemaChangeRefused
from tidemark.pipeline.sinks.waiting import StoredItem, WaitingItems
from tidemark.pipeline.storage.store_errors import store_failure
from tidemark.pipeline.storage.stores import open_delta, store_of
from tidemark.pipeline.storage.turns import waiting

RETRY_WAITS_S = (0.1, 1.0)  # between the attempts to write one table; those of other tables continue
_PAUSING = (LakeFailed, TableMoved, UnfitRows, UnfitSettings, CommitUnreadable, SchemaChangeRefused)
_BEHIND = (FaultKind.PAUSED, FaultKind.DEFERRED)
_NOT_WRITTEN = "a new copy could not be written"

Applying = Callable[[Sequence[StoredItem], Recorded | None], LakeTable]
"""Applies items to a table, which is checked against its record when it is opened; None: not checked."""


Restart = Callable[[Sequence[StoredItem], Applied, Fault], tuple[int, Position] | None]
"""Finds the item from which a diverged table can be recreated, and its position; None: there is none yet."""


def new_copy(items: Sequence[StoredItem], applied: Applied, fault: Fault) -> tuple[int, Position] | None:
    """Find the begin of a first copy that the table did not have before it diverged; such a copy may be repeated."""
    for at, (_, item) in enumerate(items):
        if isinstance(item, CopyBoundary) and item.begin:
            is_new = item.position > fault.position or item.generation > applied.generation
            if is_new:
                return at, item.position
    return None


@dataclass(frozen=True, slots=True, eq=False)
class TargetTable:
    """A log or replica, its last record, and how to write it."""

    uri: str
    app: str
    known: LakeEntry
    applied: Applied  # of the table that log and replica belong to, as recorded
    apply: Applying
    restart: Restart = new_copy
    contains: Applied | None = None  # it contains everything up to here; None: all before the batch


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The result for a log or replica; `table` is None if it was not written."""

    target: LakeEntry
    applied: Applied
    table: LakeTable | None = None
    broke: LogBreak | None = None  # the new gap in a log
    beside: tuple[str, int] | None = None  # URI and version of a Delta table that was written instead of this one


def copy_of_replica(target: TargetTable, items: Sequence[StoredItem]) -> Sequence[StoredItem] | None:
    """Return the items from the new copy on that replaces a paused or deferred replica; None if there is none."""
    fault = target.known.fault
    if fault is None or fault.kind not in _BEHIND:
        return None
    found = new_copy(items, target.applied, fault)
    return None if found is None else items[found[0] :]


def continued(target: TargetTable) -> TargetTable:
    """Return a paused or deferred target as one that is written again, from its own position on."""
    fault = target.known.fault
    assert fault is not None, target
    known, applied = replace(target.known, fault=None), replace(target.applied, position=fault.position)
    return replace(target, known=known, applied=applied, contains=fault.contained)


def apply_batch(
    target: TargetTable,
    items: Sequence[StoredItem],
    since: Applied,
    is_over: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Apply `items`, or determine why that is not possible; retries and a search for damage end with `is_over`.

    If all attempts fail, the target is paused; it contains everything up to `since`. A deferred target without items is
    opened, to record the commits of maintenance.
    """
    fault = target.known.fault
    if fault is not None and fault.kind is FaultKind.DEFERRED and not items:
        return catch_up(target, items, fault.sequence, is_last=False, is_over=is_over)
    if fault is not None and fault.kind in _BEHIND:
        return Outcome(target.known, target.applied)
    try:
        return _retried(_apply_batch, target, items, is_over)
    except _PAUSING as error:
        if is_over() or is_of_process(error):
            raise
        return _failed(target, error, since if target.contains is None else target.contains)


def catch_up(
    target: TargetTable,
    items: Sequence[StoredItem],
    upto: OutboxSequence,
    *,
    is_last: bool,
    is_over: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Apply to a target the items that it lacks, up to the outbox value `upto`; its fault ends with the last.

    It is paused or deferred, or was given up: its items come from elsewhere, and an error is raised.
    """
    fault = target.known.fault
    assert fault is not None, target
    try:
        outcome = _retried(_apply_waiting, target, items, is_over)
    except (TableStopped, *_PAUSING) as error:
        if fault.is_given_up or is_over() or is_of_process(error):
            raise
        return _failed(target, error, fault.contained)
    if is_last or outcome.target.fault is not None:
        return outcome
    position = max(fault.position, outcome.applied.position)
    behind = replace(fault, position=position, sequence=max(fault.sequence, upto))
    return replace(outcome, target=replace(outcome.target, fault=behind))


def paused_outcome(outcome: Outcome, reason: str, upto: Applied) -> Outcome:
    """Return the outcome of a target that contains everything up to `upto`, and is paused from there on."""
    if outcome.table is None or outcome.beside is not None or outcome.target.fault is not None:
        return outcome
    paused = Fault(FaultKind.PAUSED, reason, outcome.applied.position, upto.sequence, upto.position)
    return replace(outcome, target=replace(outcome.target, fault=paused))


def _failed(target: TargetTable, error: Exception, since: Applied) -> Outcome:
    fault, recorded, reason = target.known.fault, target.known.recorded, first_reason(str(error))
    if fault is not None and fault.kind is FaultKind.DIVERGED:
        # NB: the reason is kept: it names the damaged files.
        known = fault.reason if _NOT_WRITTEN in fault.reason else f"{fault.reason} ({_NOT_WRITTEN}: {reason})"
        return Outcome(LakeEntry(recorded, replace(fault, reason=known)), target.applied)
    paused = Fault(FaultKind.PAUSED, reason, _last_written(target), since.sequence, since.position)
    return Outcome(LakeEntry(recorded, paused), target.applied)


def _retried(
    write: Callable[[TargetTable, Sequence[StoredItem]], Outcome],
    target: TargetTable,
    items: Sequence[StoredItem],
    is_over: Callable[[], bool],
) -> Outcome:
    for wait_s in RETRY_WAITS_S:
        try:
            return _checked(write, target, items, is_over)
        except _PAUSING as error:
            if is_over() or is_of_process(error):
                raise
        with waiting():
            time.sleep(wait_s)
    return _checked(write, target, items, is_over)


def _checked(
    write: Callable[[TargetTable, Sequence[StoredItem]], Outcome],
    target: TargetTable,
    items: Sequence[StoredItem],
    is_over: Callable[[], bool],
) -> Outcome:
    """Write; if that fails, find out whether the target is damaged."""
    try:
        return write(target, items)
    except (LakeFailed, DeltaError, OSError, pa.ArrowException) as error:
        damage = "" if is_of_host(error) or store_failure(error) else _damage(target, is_over)
        if damage:
            return _recreate(target, items, Fault(FaultKind.DIVERGED, damage, _last_written(target)))
        unavailable = unavailable_store(error, target.uri)
        if unavailable is not None:
            raise unavailable from error
        if isinstance(error, LakeFailed) or is_full(error):
            raise
        kind = LakeFull if reports_full_disk(str(error)) else LakeFailed
        raise kind(f"{target.uri}: {first_reason(str(error))[:REASON_MAX]}") from error


def _apply_batch(target: TargetTable, items: Sequence[StoredItem]) -> Outcome:
    fault = target.known.fault
    if fault is not None and fault.kind is FaultKind.DIVERGED:
        return _recreate(target, items, fault)
    try:
        table = _catch_up(target, items) if fault is not None else _apply(target, items, target.known.recorded)
    except TableDiverged as error:
        return _recreate(target, items, Fault(FaultKind.DIVERGED, str(error), _last_written(target)))
    except TableStopped as error:
        waiting = WaitingItems(target.uri, target.app)
        waiting.keep(items)
        stopped = Fault(FaultKind.STOPPED, str(error), _last_written(target))
        return Outcome(LakeEntry(target.known.recorded, stopped), target.applied, beside=waiting.written)
    return _written(target, table)


def _apply_waiting(target: TargetTable, items: Sequence[StoredItem]) -> Outcome:
    """Apply the items that waited while the target was stopped, then `items`."""
    try:
        return _written(target, _catch_up(target, items))
    except TableDiverged as error:
        return _recreate(target, items, Fault(FaultKind.DIVERGED, str(error), _last_written(target)))


def _damage(target: TargetTable, is_over: Callable[[], bool]) -> str:
    """Return what is lost or damaged of a target; "" if nothing is, or if a stop interrupted the check."""
    try:
        return next(filter(None, (damage_of(part, is_over=is_over) for part in _parts(target))), "")
    except ScanStopped:
        return ""


def _parts(target: TargetTable) -> list[str]:
    """Return the Delta tables of a target: itself, and existing ones beside it (staged or waiting rows)."""
    folder, _, name = target.uri.rpartition("/")
    beside = [other for other in store_of(folder).folders(folder) if other.startswith(f"{name}-")]
    return [target.uri, *(f"{folder}/{other}" for other in beside if f".{FaultKind.DIVERGED.value}-" not in other)]


def _written(target: TargetTable, table: LakeTable, broke: LogBreak | None = None) -> Outcome:
    if table.uri == target.uri:
        return Outcome(LakeEntry(table.recorded), table.applied, table, broke)
    beside = (table.uri, table.version) if table.exists else None  # rows without a key
    return Outcome(UNTOUCHED, table.applied, table, broke, beside)


def _last_written(target: TargetTable) -> Position:
    return target.known.fault.position if target.known.fault is not None else target.applied.position


def _apply(target: TargetTable, items: Sequence[StoredItem], recorded: Recorded | None) -> LakeTable:
    """Apply `items`; reopen the table and continue when another writer's maintenance interrupts."""
    applied, reopened = NOTHING, 0
    while True:
        try:
            return target.apply(items, recorded)
        except TableMoved as moved:
            reopened = reopened + 1 if moved.applied == applied else 0
            applied = moved.applied
            if reopened == REOPENED_MAX:
                raise


def _catch_up(target: TargetTable, items: Sequence[StoredItem]) -> LakeTable:
    """Apply the waiting items, then `items`; raise `TableStopped` if the property is still set."""
    LakeTable(target.uri, target.app, target.known.recorded)
    waiting = WaitingItems(target.uri, target.app)
    for portion in waiting.portions():
        _apply(target, portion, target.known.recorded)
    table = _apply(target, items, target.known.recorded)
    waiting.clear()
    return table


def _recreate(target: TargetTable, items: Sequence[StoredItem], fault: Fault) -> Outcome:
    """Recreate a diverged table from the item of `items` that permits it; without one leave the table unchanged."""
    diverged = Outcome(LakeEntry(target.known.recorded, fault), target.applied)
    found = target.restart(items, target.applied, fault)
    if found is None:
        return diverged
    at, position = found
    try:
        _set_aside(target, position, fault)
        _check_writable(target.uri)
        table = _apply(target, items[at:], None)
    except (TableDiverged, TableStopped) as error:
        reason = f"{error} (a new copy began at {position} and could not be written)"
        again = Fault(FaultKind.DIVERGED, reason, fault.position)
        return Outcome(LakeEntry(target.known.recorded, again), target.applied)
    WaitingItems(target.uri, target.app).clear()
    return _written(target, table, LogBreak(fault.reason, fault.position, position))


def _set_aside(target: TargetTable, position: Position, fault: Fault) -> None:
    """Rename a table that cannot be continued, so that nothing is deleted.

    Such a table is damaged, or another writer created it or changed its columns. Another table of Tidemark is kept: a
    new copy empties a replica, and a log continues. The table restarts at `position`; a table that has already applied
    `position` comes from an interrupted attempt.
    """
    for part in _parts(target):
        # NB: everything was read when the fault was found. Later damage is found at its next use.
        if damage_of(part, is_read=lambda path: path in fault.reason):
            _rename(part)
    found, recorded = table_id(target.uri), target.known.recorded
    if found == "":
        return
    if recorded.version != NO_VERSION and recorded.id in ("", found):
        table = LakeTable(target.uri, target.app)
        is_older, is_begun = table.version < recorded.version, table.applied.position >= position
        if is_older or is_begun or not changed_columns(target.uri, recorded.version, table.version):
            return
    else:
        first = read_commit(target.uri, target.app, 0)
        if first is not None and not first.foreign:
            return  # created by an interrupted attempt
    _rename(target.uri)


def _check_writable(uri: str) -> None:
    """Raise `TableStopped` if a property of the table at `uri` restricts writes."""
    if table_id(uri):
        check_restrictions(uri, open_delta(uri))


def _rename(uri: str) -> None:
    folder, _, name = uri.rpartition("/")
    store = store_of(folder)
    there, wanted = set(store.folders(folder)), f"{name}.{FaultKind.DIVERGED.value}"
    free = next(number for number in count(1) if f"{wanted}-{number}" not in there)
    last = f"{folder}/{wanted}-{free - 1}"
    is_continued = free > 1 and store.is_unfinished_move(uri, last)
    store.move(uri, last if is_continued else f"{folder}/{wanted}-{free}")
