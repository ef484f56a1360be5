"""Plans which tables are to be copied, by comparing the selection with the tables captured whole, by OID.

A table is captured whole from its first copy, or from its creation if the stream reported that, for as long as it is
selected. The state stores that under its OID (`CopyPhase`), since names change: a table that leaves the selection, by
configuration, by RENAME or by SET SCHEMA, has changes that were never delivered, and is copied again when it returns.
What the stream reports is recorded with the group that contains it (`tidemark.runtime.first_copy.selected_tables`).
"""

from collections.abc import Collection, Container
from dataclasses import dataclass, field, replace

from tidemark.decode.catalog.layout import HALF_DROPPED
from tidemark.engine.selection import Selection
from tidemark.io.node.copy_source import CopyDenied
from tidemark.io.node.node import Node
from tidemark.io.node.source_tables import SourceTable
from tidemark.io.process.config import Config
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, TimelineId
from tidemark.runtime.seed.copy_sessions import CopySessions
from tidemark.wire.state import CopyPhase, CopyProgress

NOTHING: dict[str, tuple[str, ...]] = {}
TableKey = tuple[Oid, Oid]  # database, relation


@dataclass(frozen=True, slots=True)
class CopyTask:
    """A table to be copied."""

    database: Oid
    relation: Oid


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The tables to be copied, and what changes in the state with the decision."""

    tasks: list[CopyTask]
    moves: dict[TableKey, CopyProgress]
    is_of_all: bool  # also of tables that were not known
    denied: dict[TableKey, str] = field(default_factory=dict)  # of those that may fail: why they are not copied


def selection_reported(config: Config) -> dict[str, tuple[str, ...]]:
    """Return what of the configuration decides which tables are copied."""
    reported = {
        "databases": config.select.databases,
        "tables": config.select.tables,
        "exclude_tables": config.select.exclude_tables,
        "copy": (str(config.copy.enabled).lower(),),
    }
    later = {"exclude_databases": config.select.exclude_databases, "partition_roots": config.select.partition_roots}
    return reported | {key: patterns for key, patterns in later.items() if patterns}  # unset they are no change


def is_due(config: Config, view: StateView) -> bool:
    """Tell if there is something to plan or to copy, from the state alone."""
    return _is_changed(config, view) or _is_unfinished(view)


def takes_time(config: Config, view: StateView) -> bool:
    """Tell if tables may have to be copied: then WAL has to wait somewhere."""
    return is_due(config, view) and (config.copy.enabled or _is_unfinished(view))


def plan_copies(
    config: Config, view: StateView, sessions: CopySessions, may_fail: Container[TableKey] = ()
) -> CopyPlan:
    """Plan by the tables that there are now; raise `CopyDenied` for those that may not be read and may not fail."""
    assert view.beginning is not None, "a first copy comes after the base"
    node = sessions.node()
    is_changed = _is_changed(config, view) or _is_before(view, node.timeline())
    tasks: list[CopyTask] = []
    moves: dict[TableKey, CopyProgress] = {}
    denied: dict[TableKey, str] = {}
    vanished = {key for key, copy in view.copies.items() if copy.is_due(_delivered_lsn(view))}
    for database, name in database_names(node, view.beginning.databases).items():
        if not config.select.selection().selects_database(name):
            left = {key: copy for key, copy in view.copies.items() if key[0] == database}
            moves |= {key: replace(copy, phase=CopyPhase.LEFT) for key, copy in left.items()}
            vanished -= left.keys()
            continue
        due: list[SourceTable] = []
        for table in sessions.source(database, name).tables():
            key = (database, table.oid)
            vanished.discard(key)
            move = _move(config, table, view.copies.get(key), is_changed=is_changed)
            if move is not None and move.is_open and key in may_fail and not table.readable:
                denied[key] = f"no SELECT on {table.namespace}.{table.name}"
            elif move is not None:
                moves[key] = move
                if move.is_due(_delivered_lsn(view)):
                    due.append(table)
        _check_readable(name, due)
        tasks += [CopyTask(database, table.oid) for table in due]
    for key in vanished:  # dropped, or their database is: the stream says so
        moves[key] = replace(view.copies[key], phase=CopyPhase.DONE)
    return CopyPlan(tasks, moves, is_changed, denied)


def is_requested_alone(config: Config, view: StateView, requested: Collection[TableKey]) -> bool:
    """Tell if the tables to be copied are all of `requested`, and nothing else is to be planned."""
    due = {key for key, copy in view.copies.items() if copy.is_due(_delivered_lsn(view))}
    return not _is_changed(config, view) and due <= set(requested)


def _is_changed(config: Config, view: StateView) -> bool:
    before = view.fingerprint.selection if view.fingerprint else NOTHING
    return before != selection_reported(config)


def _is_before(view: StateView, timeline: TimelineId) -> bool:
    """Tell if the tables were found by catalogs of an earlier timeline: some of that may never have happened."""
    return view.planned_to is not None and view.planned_to.timeline < timeline


def _is_unfinished(view: StateView) -> bool:
    return any(copy.is_due(_delivered_lsn(view)) for copy in view.copies.values())


def waits_for(view: StateView) -> Lsn | None:
    """Return what has to be delivered before a table that waits for that is copied; None: none does."""
    delivered_lsn = _delivered_lsn(view)
    later = (copy.after_lsn for copy in view.copies.values() if copy.is_open and not copy.is_due(delivered_lsn))
    return min(later, default=None)


def _delivered_lsn(view: StateView) -> Lsn:
    return view.delivered.pointer.position.commit_lsn if view.delivered is not None else INVALID_LSN


def database_names(node: Node, databases: Container[Oid]) -> dict[Oid, str]:
    """Return the present names of those databases that there are: not those of a DROP DATABASE that broke off."""
    query = f"SELECT oid::int8, datname::text FROM pg_catalog.pg_database WHERE datconnlimit <> {HALF_DROPPED}"  # noqa: S608 - a constant of ours
    rows = node.query(query)
    return {Oid(oid): str(name) for oid, name in rows if oid in databases}


def _move(config: Config, table: SourceTable, known: CopyProgress | None, *, is_changed: bool) -> CopyProgress | None:
    """Return where a table's copy goes from here; None where it stays and nothing is to be done.

    NB: the present name is ahead of the stream. Under the same configuration only what is noted counts, since whatever
    brings a table into the selection is in the stream, and noted when it comes by.
    """
    if not is_captured(config.select.selection(), table):
        return replace(known, phase=CopyPhase.LEFT) if known is not None else None
    if known is not None and known.is_open:
        return known
    is_whole = known is not None and known.phase is CopyPhase.DONE
    if is_whole or not is_changed or not config.copy.enabled:
        return None
    return replace(known or CopyProgress(CopyPhase.WAITING, 0), phase=CopyPhase.WAITING)


def is_captured(selection: Selection, table: SourceTable) -> bool:
    """Tell if a table is selected, and its changes come under its own name."""
    is_root = table.is_partitioned and selection.is_root(table.namespace, table.name)
    is_own = is_root or not table.is_partitioned
    is_below = any(selection.is_root(*above) for above in table.ancestors)
    return is_own and not is_below and selection.selects_table(table.namespace, table.name)


def _check_readable(database: str, tables: list[SourceTable]) -> None:
    denied = [f"{table.namespace}.{table.name}" for table in tables if not table.readable]
    if denied:
        raise CopyDenied(f"database {database}: no SELECT on {', '.join(denied)}")
