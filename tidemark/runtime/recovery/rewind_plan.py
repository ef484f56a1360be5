"""Plans `cdcctl rewind` from the state, the node, and the available WAL, without changing anything."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.engine.dead_branch import DeadBranch, find_dead_branch, happened, precedes, restart_before
from tidemark.io.archive.archive_state import NoArchive, archive_state
from tidemark.io.node.replication import TimelineEnd, WalStream
from tidemark.io.process.config import Config
from tidemark.io.state.history_files import before_fork
from tidemark.io.state.outbox_table import OutboxTable
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import ConfigError, NodeUnreachable, WalGap
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.mode import Stage
from tidemark.model.position import Pointer, Sequence
from tidemark.runtime.recovery.dead_wal import DeadWalMissing, touched_tables
from tidemark.runtime.recovery.marker_search import newest_marked, sources_of
from tidemark.wal.segments import TimelineHistory, WalSlice, first_page_lsn
from tidemark.wire.recopies import TableKey

REWOUND_IN = (Stage.REALTIME, Stage.ARCHIVE, Stage.HELD)
PROBE_S = 1.0  # for one read: a node that has the WAL sends some at once
PROBES_MAX = 30


class NotRewindable(ConfigError):
    """A state that must not be rewound."""

    hint = "`cdcctl status` shows which process delivers; during a return to realtime, start the sidecar once"


class NothingDiverged(ConfigError):
    """The node has all delivered changes."""

    hint = "start the daemons"


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """The effects of a rewind."""

    branch: DeadBranch
    restart_lsn: Lsn | None  # before the fork; decoding begins here; None: a new seed is taken
    because: str  # why there is no restart LSN
    touched: frozenset[TableKey] | None  # None: unknown, so all tables are copied again
    why_unknown: str  # why `touched` is None
    is_delivered: bool = True  # False: only first copies have read the branch
    planned_dead: bool = False  # the tables to copy were found on the dead branch: the node may have others


def plan_rewind(config: Config, store: StateStore, dead_wal: Path | None) -> RewindPlan:
    """Return the plan of a rewind without changing anything; raise a specific error if there is nothing to do."""
    view = store.view()
    if view.stage not in REWOUND_IN or view.followed is not None:
        raise NotRewindable(f"the capture is in stage {view.stage.value}, in which a rewind is not possible")
    if view.delivered is None or view.beginning is None:
        raise NotRewindable("the capture has not begun", hint="complete it with cdcctl init")
    delivered = view.delivered.pointer.position
    history = _history_of_node(config, store)
    branch = find_dead_branch(history, delivered)
    if branch is None:
        return _plan_for_copies(view, history, view.delivered.pointer)
    restart_lsn, because = _restart(config, store, view, history, branch)
    touched, why_unknown = _touched(config, store, view, branch, dead_wal)
    planned_dead = view.planned_to is not None and not happened(history, view.planned_to)
    return RewindPlan(branch, restart_lsn, because, touched, why_unknown, planned_dead=planned_dead)


def kept_before(store: StateStore, view: StateView, branch: DeadBranch) -> StateView:
    """Return the state with its catalog history up to the fork."""
    history, journal = before_fork(store.folder.history, view.history, view.journal, branch.fork_lsn)
    return replace(view, history=history, journal=journal)


def _plan_for_copies(view: StateView, history: TimelineHistory, delivered: Pointer) -> RewindPlan:
    """Return the plan for a stream that has delivered nothing of a dead branch: only copies are corrected."""
    shown = {key: copy.shown_to for key, copy in view.copies.items()}
    branches = {key: find_dead_branch(history, position) for key, position in shown.items() if position is not None}
    dead = {key: branch for key, branch in branches.items() if branch is not None}
    planned = find_dead_branch(history, view.planned_to) if view.planned_to is not None else None
    known = [*dead.values(), *([planned] if planned is not None else [])]
    if not known:
        raise NothingDiverged(
            f"the node has all changes up to {delivered.position}; it is on timeline {history.timeline}"
        )
    first = min(branch.timeline for branch in known)
    branch = max((branch for branch in known if branch.timeline == first), key=lambda dead: dead.delivered)
    touched, planned_dead = frozenset(dead), planned is not None
    return RewindPlan(branch, delivered.restart_lsn, "", touched, "", is_delivered=False, planned_dead=planned_dead)


def _history_of_node(config: Config, store: StateStore) -> TimelineHistory:
    with closing(WalStream(config.capture.dsn)) as stream:
        here = stream.identify(store.identity.system_identifier)
        return stream.timeline_history(here.timeline)


def _restart(
    config: Config, store: StateStore, view: StateView, history: TimelineHistory, branch: DeadBranch
) -> tuple[Lsn | None, str]:
    """Return the restart LSN before the fork whose WAL is available; None, and the reason, if there is none."""
    bases = [(base.lsn, base.restart_lsn) for base in kept_before(store, view, branch).history.bases]
    pointers = list(_pointers(store, view, history, branch))
    restart_lsn = restart_before(history, branch, pointers, bases)
    because = _unreadable(config, view, history, restart_lsn)
    if because:
        sources = sources_of(config, store, view.stage, history)
        marked = newest_marked(config, store, history, branch, sources)
        known = [*pointers, *([marked] if marked is not None else [])]
        later_lsn = restart_before(history, branch, known, bases)
        if later_lsn != restart_lsn:
            restart_lsn, because = later_lsn, _unreadable(config, view, history, later_lsn)
    return None if because else restart_lsn, because


def _pointers(store: StateStore, view: StateView, history: TimelineHistory, branch: DeadBranch) -> Iterator[Pointer]:
    """Yield the pointers in the state, down to the newest one before the fork."""
    if view.confirmed is not None:
        yield view.confirmed.pointer
    with store.environment.read() as transaction:
        outbox = OutboxTable(transaction, store.environment, store.scope)
        for sequence in range(view.ledger.head, view.ledger.trimmed, -1):
            header = outbox.header(Sequence(sequence))
            if header is not None and precedes(history, header.pointer.position, branch):
                yield header.pointer
                return


def _unreadable(config: Config, view: StateView, history: TimelineHistory, restart_lsn: Lsn | None) -> str:
    """Return why the capture cannot read WAL from `restart_lsn` on; an empty text if it can."""
    if restart_lsn is None:
        return "no catalog base from before the fork is kept"
    reasons: list[str] = []
    if config.has_archive:
        try:
            archive = archive_state(Path(config.archive.folder), view.identity.segment_bytes)
        except NoArchive as error:
            reasons.append(str(error))
        else:
            holds = any(stretch.start_lsn <= restart_lsn < stretch.end_lsn for stretch in archive.path)
            if holds and archive.gap_after(restart_lsn) is None:
                return ""
            reasons.append(f"WAL from {format_lsn(restart_lsn)} on is not in {archive.folder}")
    if view.stage is Stage.REALTIME:
        try:
            _probe(config, view, history, restart_lsn)
        except WalGap as error:
            reasons.append(str(error))
        else:
            return ""
    return "; ".join(reasons)


def _probe(config: Config, view: StateView, history: TimelineHistory, restart_lsn: Lsn) -> None:
    """Request the first needed WAL from the node; raise `WalGap` if the node has removed it."""
    page_lsn = first_page_lsn(restart_lsn)
    with closing(WalStream(config.capture.dsn)) as stream:
        stream.identify(view.identity.system_identifier)
        stream.start(page_lsn, history.timeline_at(page_lsn))
        for _ in range(PROBES_MAX):
            if isinstance(stream.read(PROBE_S), WalSlice | TimelineEnd):
                return
        raise NodeUnreachable(f"{stream.where} sends no WAL from {format_lsn(page_lsn)} on")


def _touched(
    config: Config, store: StateStore, view: StateView, branch: DeadBranch, dead_wal: Path | None
) -> tuple[frozenset[TableKey] | None, str]:
    selection = config.select.selection()
    if dead_wal is not None:
        return touched_tables(store, view, dead_wal, branch, selection), ""
    if not config.has_archive:
        return None, "no folder contains the WAL of the dead branch (--dead-wal)"
    try:
        return touched_tables(store, view, Path(config.archive.folder), branch, selection), ""
    except DeadWalMissing as error:
        return None, str(error)
