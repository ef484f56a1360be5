"""Makes the plan of the copies at a start: lists the tables of the selected databases, and what has left."""

from collections.abc import Collection, Container, Mapping

from tidemark.engine.selection import Selection
from tidemark.io.node.copy_source import CopySource
from tidemark.io.node.database_names import database_names
from tidemark.io.node.node_errors import CopyDenied
from tidemark.io.node.source_tables import Denial, SourceTable
from tidemark.io.process.config import CopyConfig, SelectConfig
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import Oid
from tidemark.runtime.seed.copy_plan import (
    NO_DATABASES,
    NO_TABLES,
    CopyPlan,
    CopyTask,
    StartTable,
    after_drop,
    after_leave,
    delivered_lsn,
    is_before,
    is_captured,
    is_changed_selection,
    is_not_begun,
    is_untouched,
    known_copy,
    next_progress,
    renamed_progress,
    selection_before,
)
from tidemark.runtime.seed.copy_sessions import CopySessions
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress


def plan_copies(
    select: SelectConfig,
    copy: CopyConfig,
    view: StateView,
    sessions: CopySessions,
    may_fail: Container[TableKey] = (),
    *,
    delivered: Collection[TableKey] | None = (),
    databases: Mapping[Oid, str] = NO_DATABASES,
    at_start: Mapping[TableKey, StartTable] = NO_TABLES,
) -> CopyPlan:
    """Plan by the existing tables; raise `CopyDenied` for unreadable ones that are not in `may_fail`.

    `delivered`: the tables of which something was delivered; without a copy, nothing else is recorded of them. None: a
    state without an outbox does not record it, and any table at the start may be one.
    `databases`: the names at the start. `at_start`: the tables there. A copy under another name would come before the
    changes of the table that had this name: unless it is in the first plan, the table is copied after them.
    """
    assert view.beginning is not None, "a first copy comes after the base"
    node = sessions.node()
    is_changed = is_changed_selection(select, copy, view) or is_before(view, node.timeline())
    planning = _Planning(
        select, copy, view, may_fail, is_changed=is_changed, delivered=delivered, databases=databases, at_start=at_start
    )
    names = database_names(node, view.beginning.databases)
    selected = {oid: name for oid, name in names.items() if select.selection().selects_database(name)}
    planning.leave_databases(names, selected)
    for database, name in selected.items():
        planning.plan_database(database, name, sessions.source(database, name))
    return planning.finished()


class _Planning:
    """One plan while it is made."""

    def __init__(
        self,
        select: SelectConfig,
        copy: CopyConfig,
        view: StateView,
        may_fail: Container[TableKey],
        *,
        is_changed: bool,
        delivered: Collection[TableKey] | None,
        databases: Mapping[Oid, str],
        at_start: Mapping[TableKey, StartTable],
    ) -> None:
        """Take the arguments of `plan_copies`; `is_changed`: unknown tables are considered too."""
        self._select = select
        self._copy = copy
        self._view = view
        self._may_fail = may_fail
        self._is_changed = is_changed
        self._delivered = frozenset(at_start if delivered is None else delivered)
        self._databases = databases
        self._captured = {oid for oid, name in databases.items() if select.selection().selects_database(name)}
        self._at_start = at_start
        self._before = selection_before(view)
        self._existing = at_start.keys() & self._delivered  # a dropped one has nothing to report
        self._listed: set[TableKey] = set()
        self._vanished = {key for key, known in view.copies.items() if known.is_due(delivered_lsn(view))}
        self._later = _LaterCopies(at_start if is_changed and view.fingerprint is not None else NO_TABLES)
        self._shown: dict[str, str] = {}  # by the databases' OIDs
        self._tasks: list[CopyTask] = []
        self._moves: dict[TableKey, CopyProgress] = {}
        self._denied: dict[TableKey, str] = {}

    def leave_databases(self, names: Mapping[Oid, str], selected: Mapping[Oid, str]) -> None:
        """Plan the tables of databases that are not `selected`; `names`: of those that exist.

        NB: of a dropped one that is captured at the start, the stream reports the tables by itself.
        """
        assert self._view.beginning is not None, "a first copy comes after the base"
        reported = self._captured - names.keys()
        unselected = (self._view.beginning.databases.keys() | names.keys()) - selected.keys() - reported
        before = self._before
        at_start = unselected & self._databases.keys()
        was_selected = {oid for oid in at_start if before is not None and before.selects_database(self._databases[oid])}
        # NB: nothing is recorded of a table that was selected without a copy.
        left = {
            key: CopyProgress(CopyPhase.PARTIAL, 0)
            for key in self._existing
            if key[0] in was_selected and before is not None and is_captured(before, self._at_start[key])
        }
        left |= {key: known for key, known in self._view.copies.items() if key[0] in unselected}
        self._moves |= {key: after_leave(known) for key, known in left.items()}
        self._vanished -= left.keys()

    def plan_database(self, database: Oid, name: str, source: CopySource) -> None:
        """Plan the tables of a selected database; raise `CopyDenied` for unreadable ones that may not fail."""
        due: list[SourceTable] = []
        is_first = self._view.fingerprint is None and self._copy.enabled
        is_shown = is_first or any(key[0] == database and is_untouched(self._view, key) for key in self._vanished)
        for table in _listed(source, database, self._shown if is_shown else None):
            key = (database, table.oid)
            self._listed.add(key)
            self._vanished.discard(key)
            known = self._known(key, table, name)
            move = self._next(key, table, known)
            if move is not None and move.is_open and key in self._may_fail and table.denial is not None:
                self._denied[key] = f"{table.denial.value} {table.namespace}.{table.name}"
            elif move is not None:
                self._moves[key] = move
                if move.is_due(delivered_lsn(self._view)):
                    due.append(table)
                    self._later.find(key, table, known)
        _check_readable(name, due)
        at_once = [table for table in due if (database, table.oid) not in self._later.found]
        self._tasks += [CopyTask(database, table.oid) for table in at_once]

    def _known(self, key: TableKey, table: SourceTable, database: str) -> CopyProgress | None:
        before = self._before
        was_selected = before is not None and before.selects_database(database) and is_captured(before, table)
        # NB: one that was created since is not in the catalogs of the start, and has no changes before it.
        was_captured = was_selected and (key in self._at_start or key in self._delivered)
        return known_copy(self._view.copies.get(key), was_captured=was_captured)

    def _next(self, key: TableKey, table: SourceTable, known: CopyProgress | None) -> CopyProgress | None:
        """Return the next progress of a table's copy; None if nothing changes."""
        if self._is_changed and key in self._existing and key[0] not in self._captured:
            return renamed_progress(self._select, self._copy, table, known)
        is_first = self._before is None
        return next_progress(self._select, self._copy, table, known, is_changed=self._is_changed, is_first=is_first)

    def finished(self) -> CopyPlan:
        """Return the plan."""
        view, existing = self._view, self._existing
        # A table or its database was dropped: the stream reports it, if there is something to drop.
        for key in self._vanished:
            self._moves[key] = after_drop(view, key, self._shown.get(str(key[0])))
        unlisted = existing - self._listed if self._is_changed else set()
        gone = {key: self._at_start[key] for key in unlisted if key[0] in self._captured}
        self._moves |= _dropped_unselected(self._select.selection(), self._before, view.copies, gone)
        shown = self._shown if view.fingerprint is None else dict(view.fingerprint.shown)
        left = {key for key, move in self._moves.items() if move.phase is CopyPhase.LEFT}
        forgotten = {key for key in left - self._delivered if is_not_begun(view.copies.get(key))}
        moves = {key: move for key, move in self._moves.items() if key not in forgotten}
        return CopyPlan(self._tasks, moves, self._is_changed, self._denied, shown, self._later.found, forgotten)


class _LaterCopies:
    """Finds tables that are copied once the stream has brought all until the plan."""

    def __init__(self, at_start: Mapping[TableKey, StartTable]) -> None:
        """`at_start`: the tables at the start; none: it is the first plan, or one that adds no table."""
        self._at_start = at_start
        self._databases = {database for database, _ in at_start}
        self.found: set[TableKey] = set()

    def find(self, key: TableKey, table: SourceTable, known: CopyProgress | None) -> None:
        """Record whether a table to be copied had another name at the start, or did not exist."""
        if key[0] not in self._databases or (known is not None and known.is_open):
            return
        former = self._at_start.get(key)
        if former is None or (former.namespace, former.name) != (table.namespace, table.name):
            self.found.add(key)


def _listed(source: CopySource, database: Oid, shown: dict[str, str] | None) -> list[SourceTable]:
    """Return the tables of a database; record in `shown` the snapshot that shows them."""
    if shown is None:
        return source.tables()
    tables, shown[str(database)] = source.listed_tables()
    return tables


def _dropped_unselected(
    selection: Selection,
    before: Selection | None,
    copies: Mapping[TableKey, CopyProgress],
    gone: Mapping[TableKey, StartTable],
) -> dict[TableKey, CopyProgress]:
    """Return the next progress of captured tables that have left the selection, and were dropped before the plan.

    The stream has yet to bring the DROP, and maybe changes, of a table that is not selected by its name at the start.
    """
    moves: dict[TableKey, CopyProgress] = {}
    for key, table in gone.items():
        was_selected, is_selected = (each is not None and is_captured(each, table) for each in (before, selection))
        known = known_copy(copies.get(key), was_captured=was_selected)
        if known is not None and known.phase is not CopyPhase.LEFT and not is_selected:
            moves[key] = after_leave(known)
    return moves


def _check_readable(database: str, tables: list[SourceTable]) -> None:
    denied = [
        f"{denial.value} {', '.join(names)}"
        for denial in Denial
        if (names := [f"{table.namespace}.{table.name}" for table in tables if table.denial is denial])
    ]
    if denied:
        raise CopyDenied(f"database {database}: {'; '.join(denied)}")
