"""The rules by which tables are copied: the selection is compared with the tables captured whole, by OID.

A table is captured whole from its first copy, or from its creation if the stream reported that, for as long as it is
selected. The state stores that under its OID (`CopyPhase`), since names change: a table that leaves the selection, by
configuration, by RENAME or by SET SCHEMA, has changes that were never delivered, and is copied again when it returns.
What the stream reports is recorded with the group that contains it (`tidemark.runtime.first_copy.selected_tables`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from tidemark.engine.selection import Selection
from tidemark.io.node.source_tables import SourceTable
from tidemark.io.process.config import CopyConfig, SelectConfig
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, TimelineId
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, DueNotice
from tidemark.wire.values import NO_SCHEMA_VERSION

NOTHING: dict[str, tuple[str, ...]] = {}


class StartTable(NamedTuple):
    """A table as of the start, named as in `SourceTable`."""

    namespace: str
    name: str
    is_partitioned: bool
    ancestors: tuple[tuple[str, str], ...]


NO_TABLES: Mapping[TableKey, StartTable] = MappingProxyType({})
NO_DATABASES: Mapping[Oid, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CopyTask:
    """A table to be copied."""

    database: Oid
    relation: Oid


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The tables to be copied, and the resulting changes in the state."""

    tasks: list[CopyTask]
    moves: dict[TableKey, CopyProgress]
    is_of_all: bool  # unknown tables were considered too
    denied: dict[TableKey, str] = field(default_factory=dict)  # why tables that may fail are not copied
    shown: dict[str, str] = field(default_factory=dict)  # `Fingerprint.shown`
    later: set[TableKey] = field(default_factory=set)  # tables that wait until the stream has reached the plan
    forgotten: set[TableKey] = field(default_factory=set)  # left before something was delivered: no report, no record


def selection_reported(select: SelectConfig, copy: CopyConfig) -> dict[str, tuple[str, ...]]:
    """Return the part of the configuration that selects the tables to copy."""
    changed = {
        "databases": select.databases,
        "tables": select.tables,
        "exclude_tables": select.exclude_tables,
        "copy": (str(copy.enabled).lower(),),
    }
    later = {"exclude_databases": select.exclude_databases, "partition_roots": select.partition_roots}
    return changed | {key: patterns for key, patterns in later.items() if patterns}  # unset keys are no change


def is_due(select: SelectConfig, copy: CopyConfig, view: StateView) -> bool:
    """Return whether there is something to plan or to copy, from the state alone."""
    return is_changed_selection(select, copy, view) or _is_unfinished(view)


def needs_wal_buffer(select: SelectConfig, copy: CopyConfig, view: StateView) -> bool:
    """Return whether tables may have to be copied, so that WAL must be buffered."""
    return is_due(select, copy, view) and (copy.enabled or _is_unfinished(view))


def is_requested_alone(
    select: SelectConfig, copy: CopyConfig, view: StateView, requested: Collection[TableKey]
) -> bool:
    """Return whether the tables to be copied are all in `requested`, and nothing else is to be planned."""
    due = {key for key, known in view.copies.items() if known.is_due(delivered_lsn(view))}
    return not is_changed_selection(select, copy, view) and due <= set(requested)


def is_changed_selection(select: SelectConfig, copy: CopyConfig, view: StateView) -> bool:
    """Return whether the tables of the selection have to be listed."""
    before = view.fingerprint.selection if view.fingerprint else NOTHING
    return before != selection_reported(select, copy)


def is_before(view: StateView, timeline: TimelineId) -> bool:
    """Return whether the tables were found in catalogs of an earlier timeline, which may be a dead branch."""
    return view.planned_to is not None and view.planned_to.timeline < timeline


def _is_unfinished(view: StateView) -> bool:
    return any(copy.is_due(delivered_lsn(view)) for copy in view.copies.values())


def waits_for(view: StateView) -> Lsn | None:
    """Return the LSN that must be delivered before a waiting table is copied; None if none waits."""
    to_lsn = delivered_lsn(view)
    later = (copy.after_lsn for copy in view.copies.values() if copy.is_open and not copy.is_due(to_lsn))
    return min(later, default=None)


def has_waited(view: StateView, after_lsn: Lsn) -> bool:
    """Return whether a copy that waited for this LSN is still due."""
    return any(copy.is_open and copy.after_lsn == after_lsn for copy in view.copies.values())


def after_drop(view: StateView, key: TableKey, snapshot: str | None) -> CopyProgress:
    """Return the progress of a planned table that `snapshot`, if it is known, no longer shows: nothing is copied."""
    dropped = replace(view.copies[key], phase=CopyPhase.DONE)
    return replace(dropped, snapshot=snapshot) if snapshot is not None and is_untouched(view, key) else dropped


def after_leave(known: CopyProgress) -> CopyProgress:
    """Return the progress of a table that is not selected any more."""
    # NB: a table may have been captured before its copy was refused.
    is_due = known.capture is not DueNotice.NONE and known.phase is not CopyPhase.REFUSED
    is_reported = known.phase is CopyPhase.LEFT or is_due
    capture = known.capture.after_leave if is_reported else DueNotice.ENDS
    left_as = known.left_as if known.phase is CopyPhase.LEFT else NO_SCHEMA_VERSION
    return replace(known, phase=CopyPhase.LEFT, capture=capture, left_as=left_as)


def is_not_begun(known: CopyProgress | None) -> bool:
    """Return whether no copy of a table has begun; changes of it may have been delivered nevertheless."""
    return known is not None and known.phase is CopyPhase.WAITING and known.generation == 0


def is_untouched(view: StateView, key: TableKey) -> bool:
    """Return whether the first plan listed a table of which nothing was delivered yet."""
    assert view.beginning is not None, "a plan comes after the base"
    copy, listed = view.copies.get(key), view.fingerprint.shown if view.fingerprint is not None else {}
    is_begun = delivered_lsn(view) >= view.beginning.lsn
    return not is_begun and str(key[0]) in listed and copy is not None and copy.generation == 0


def delivered_lsn(view: StateView) -> Lsn:
    """Return the LSN of the commit that was delivered last."""
    return view.delivered.pointer.position.commit_lsn if view.delivered is not None else INVALID_LSN


def selection_before(view: StateView) -> Selection | None:
    """Return the selection by which the tables were listed before; None: they are listed for the first time."""
    if view.fingerprint is None or not view.fingerprint.selection:
        return None
    patterns = view.fingerprint.selection
    return Selection(
        databases=patterns.get("databases", ()),
        tables=patterns.get("tables", ()),
        exclude_tables=patterns.get("exclude_tables", ()),
        exclude_databases=patterns.get("exclude_databases", ()),
        partition_roots=patterns.get("partition_roots", ()),
    )


def known_copy(recorded: CopyProgress | None, *, was_captured: bool) -> CopyProgress | None:
    """Return what is known of the copy of a table. Nothing is recorded of one that was selected without a copy."""
    if was_captured and (recorded is None or recorded.phase is CopyPhase.LEFT):
        return replace(recorded or CopyProgress(CopyPhase.PARTIAL, 0), phase=CopyPhase.PARTIAL)
    return recorded


def next_progress(
    select: SelectConfig,
    copy: CopyConfig,
    table: SourceTable,
    known: CopyProgress | None,
    *,
    is_changed: bool,
    is_first: bool,
) -> CopyProgress | None:
    """Return the next progress of a table's copy; None if nothing changes. `is_first`: the capture begins.

    NB: the current name is ahead of the stream. Without a change of the configuration only the recorded progress
    counts: the stream contains, and records, every change that brings a table into the selection.
    """
    if not is_captured(select.selection(), table):
        return after_leave(known) if known is not None else None
    if known is not None and known.is_open:
        return known
    is_complete = known is not None and known.phase is CopyPhase.DONE
    if is_complete or not is_changed:
        return None
    if copy.enabled:
        waiting = known or CopyProgress(CopyPhase.WAITING, 0)
        return replace(waiting, phase=CopyPhase.WAITING, capture=DueNotice.NONE)
    if is_first or (known is not None and known.phase is not CopyPhase.LEFT):
        return None
    left = known or CopyProgress(CopyPhase.LEFT, 0)
    return replace(left, capture=left.capture.after_return)


def renamed_progress(
    select: SelectConfig, copy: CopyConfig, table: SourceTable, known: CopyProgress | None
) -> CopyProgress | None:
    """Return the next progress of a table whose database the stream has yet to rename to its present, selected name.

    Changes before that are not delivered. The stream then reports the table as a new one, unless a copy shows it.
    """
    left = after_leave(known or CopyProgress(CopyPhase.PARTIAL, 0))
    if not is_captured(select.selection(), table) or (known is not None and known.is_open):
        return next_progress(select, copy, table, known, is_changed=True, is_first=False)
    return replace(left, phase=CopyPhase.WAITING, capture=DueNotice.NONE) if copy.enabled else left


def is_captured(selection: Selection, table: SourceTable | StartTable) -> bool:
    """Return whether a table is selected, and its changes are reported under its own name."""
    is_root = table.is_partitioned and selection.is_root(table.namespace, table.name)
    is_own = is_root or not table.is_partitioned
    is_below = any(selection.is_root(*above) for above in table.ancestors)
    return is_own and not is_below and selection.selects_table(table.namespace, table.name)
