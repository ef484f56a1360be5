"""Plans which tables are to be copied, by comparing the selection with the tables captured whole, by OID.

A table is captured whole from its first copy, or from its creation if the stream reported that, for as long as it is
selected. The state stores that under its OID (`CopyPhase`), since names change: a table that leaves the selection, by
configuration, by RENAME or by SET SCHEMA, has changes that were never delivered, and is copied again when it returns.
What the stream reports is recorded with the group that contains it (`tidemark.runtime.first_copy.selected_tables`).
"""

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field, replace

from tidemark.engine.selection import Selection
from tidemark.io.node.copy_source import CopySource
from tidemark.io.node.database_names import database_names
from tidemark.io.node.node_errors import CopyDenied
from tidemark.io.node.source_tables import SourceTable
from tidemark.io.process.config import CopyConfig, SelectConfig
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, TimelineId
from tidemark.model.table_name import TableName
from tidemark.runtime.seed.copy_sessions import CopySessions
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, DueNotice

NOTHING: dict[str, tuple[str, ...]] = {}


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


def plan_copies(
    select: SelectConfig,
    copy: CopyConfig,
    view: StateView,
    sessions: CopySessions,
    may_fail: Container[TableKey] = (),
    *,
    delivered: Collection[TableKey] = (),
    away: Collection[TableKey] = (),
    names: Callable[[], Mapping[TableKey, TableName]] = dict,
) -> CopyPlan:
    """Plan by the existing tables; raise `CopyDenied` for unreadable ones that are not in `may_fail`.

    `delivered`: the tables of which something was delivered; without a copy, nothing else is recorded of them. `away`:
    those of them whose databases have at the start a name that is not selected any more. `names`: of the tables at the
    start. A copy under another name would come before the changes of the table that had this name: unless it is in the
    first plan, the table is copied after them.
    """
    assert view.beginning is not None, "a first copy comes after the base"
    node = sessions.node()
    is_changed = is_changed_selection(select, copy, view) or _is_before(view, node.timeline())
    tasks: list[CopyTask] = []
    moves: dict[TableKey, CopyProgress] = {}
    denied: dict[TableKey, str] = {}
    vanished = {key for key, known in view.copies.items() if known.is_due(_delivered_lsn(view))}
    before = _selection_before(view)
    shown = dict(view.fingerprint.shown) if view.fingerprint is not None else {}
    later = _LaterCopies(names() if is_changed and view.fingerprint is not None else None)
    for database, name in database_names(node, view.beginning.databases).items():
        if not select.selection().selects_database(name):
            left = {key: known for key, known in view.copies.items() if key[0] == database}
            if before is not None and before.selects_database(name):
                partial = CopyProgress(CopyPhase.PARTIAL, 0)
                left = {key: partial for key in delivered if key[0] == database} | left
            moves |= {key: _left(known) for key, known in left.items()}
            vanished -= left.keys()
            continue
        due: list[SourceTable] = []
        is_shown = view.fingerprint is None and copy.enabled
        for table in _listed(sessions.source(database, name), database, shown if is_shown else None):
            key = (database, table.oid)
            vanished.discard(key)
            was_captured = before is not None and before.selects_database(name) and is_captured(before, table)
            known = _known(view.copies.get(key), was_captured=was_captured)
            if is_changed and key in away:
                move = _renamed(select, copy, table, known)
            else:
                move = _move(select, copy, table, known, is_changed=is_changed, is_first=before is None)
            if move is not None and move.is_open and key in may_fail and not table.readable:
                denied[key] = f"no SELECT on {table.namespace}.{table.name}"
            elif move is not None:
                moves[key] = move
                if move.is_due(_delivered_lsn(view)):
                    due.append(table)
                    later.find(key, table, known)
        _check_readable(name, due)
        tasks += [CopyTask(database, table.oid) for table in due if (database, table.oid) not in later.found]
    for key in vanished:  # the table or its database was dropped, which the stream reports
        moves[key] = replace(view.copies[key], phase=CopyPhase.DONE)
    return CopyPlan(tasks, moves, is_changed, denied, shown, later.found)


class _LaterCopies:
    """Finds tables that are copied once the stream has brought all until the plan."""

    def __init__(self, names: Mapping[TableKey, TableName] | None) -> None:
        """`names`: of the tables at the start; None: it is the first plan, or one that adds no table."""
        self._names = names or {}
        self._databases = {database for database, _ in self._names}
        self.found: set[TableKey] = set()

    def find(self, key: TableKey, table: SourceTable, known: CopyProgress | None) -> None:
        """Record whether a table to be copied had another name at the start, or did not exist."""
        if key[0] not in self._databases or (known is not None and known.is_open):
            return
        name = self._names.get(key)
        if name is None or (name.schema, name.table) != (table.namespace, table.name):
            self.found.add(key)


def _listed(source: CopySource, database: Oid, shown: dict[str, str] | None) -> list[SourceTable]:
    """Return the tables of a database; record in `shown` the snapshot that shows them."""
    if shown is None:
        return source.tables()
    tables, shown[str(database)] = source.listed_tables()
    return tables


def is_requested_alone(
    select: SelectConfig, copy: CopyConfig, view: StateView, requested: Collection[TableKey]
) -> bool:
    """Return whether the tables to be copied are all in `requested`, and nothing else is to be planned."""
    due = {key for key, known in view.copies.items() if known.is_due(_delivered_lsn(view))}
    return not is_changed_selection(select, copy, view) and due <= set(requested)


def is_changed_selection(select: SelectConfig, copy: CopyConfig, view: StateView) -> bool:
    """Return whether the tables of the selection have to be listed."""
    before = view.fingerprint.selection if view.fingerprint else NOTHING
    return before != selection_reported(select, copy)


def _is_before(view: StateView, timeline: TimelineId) -> bool:
    """Return whether the tables were found in catalogs of an earlier timeline, which may be a dead branch."""
    return view.planned_to is not None and view.planned_to.timeline < timeline


def _is_unfinished(view: StateView) -> bool:
    return any(copy.is_due(_delivered_lsn(view)) for copy in view.copies.values())


def waits_for(view: StateView) -> Lsn | None:
    """Return the LSN that must be delivered before a waiting table is copied; None if none waits."""
    delivered_lsn = _delivered_lsn(view)
    later = (copy.after_lsn for copy in view.copies.values() if copy.is_open and not copy.is_due(delivered_lsn))
    return min(later, default=None)


def has_waited(view: StateView, after_lsn: Lsn) -> bool:
    """Return whether a copy that waited for this LSN is still due."""
    return any(copy.is_open and copy.after_lsn == after_lsn for copy in view.copies.values())


def _delivered_lsn(view: StateView) -> Lsn:
    return view.delivered.pointer.position.commit_lsn if view.delivered is not None else INVALID_LSN


def _selection_before(view: StateView) -> Selection | None:
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


def _known(recorded: CopyProgress | None, *, was_captured: bool) -> CopyProgress | None:
    """Return what is known of the copy of a table. Nothing is recorded of one that was selected without a copy."""
    if was_captured and (recorded is None or recorded.phase is CopyPhase.LEFT):
        return replace(recorded or CopyProgress(CopyPhase.PARTIAL, 0), phase=CopyPhase.PARTIAL)
    return recorded


def _move(
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
        return _left(known) if known is not None else None
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


def _renamed(
    select: SelectConfig, copy: CopyConfig, table: SourceTable, known: CopyProgress | None
) -> CopyProgress | None:
    """Return the next progress of a table whose database the stream has yet to rename to its present, selected name.

    Changes before that are not delivered. The stream then reports the table as a new one, unless a copy shows it.
    """
    left = _left(known or CopyProgress(CopyPhase.PARTIAL, 0))
    if not is_captured(select.selection(), table) or (known is not None and known.is_open):
        return _move(select, copy, table, known, is_changed=True, is_first=False)
    return replace(left, phase=CopyPhase.WAITING, capture=DueNotice.NONE) if copy.enabled else left


def _left(known: CopyProgress) -> CopyProgress:
    """Return the progress of a table that is not selected any more."""
    # NB: a table may have been captured before its copy was refused.
    is_due = known.capture is not DueNotice.NONE and known.phase is not CopyPhase.REFUSED
    is_reported = known.phase is CopyPhase.LEFT or is_due
    capture = known.capture.after_leave if is_reported else DueNotice.ENDS
    return replace(known, phase=CopyPhase.LEFT, capture=capture)


def is_captured(selection: Selection, table: SourceTable) -> bool:
    """Return whether a table is selected, and its changes are reported under its own name."""
    is_root = table.is_partitioned and selection.is_root(table.namespace, table.name)
    is_own = is_root or not table.is_partitioned
    is_below = any(selection.is_root(*above) for above in table.ancestors)
    return is_own and not is_below and selection.selects_table(table.namespace, table.name)


def _check_readable(database: str, tables: list[SourceTable]) -> None:
    denied = [f"{table.namespace}.{table.name}" for table in tables if not table.readable]
    if denied:
        raise CopyDenied(f"database {database}: no SELECT on {', '.join(denied)}")
