"""Going back to the fork where the node left what was delivered, and on along its own timeline (`cdcctl rewind`).

What was delivered behind the fork is dead: it never happened at the node. The change log keeps it, and a message of the
prefix `tidemark.rewind` tells its range, one for each database. The replicas become right by copying the tables that
the branch touched once more: after what the node has written by now was delivered, so that no change of its own is
left out of the log for being in the copied rows.

Delivering goes on at the fork, and nothing of the new timeline is missing, where WAL from a restart LSN before it on is
to be had, with the catalogs of that place. Where not, it goes on from a new seed: a loss, as of an archive's hole.

The catalogs' past is cut at the fork in the transaction that moves the delivered pointer. A crash before it leaves the
capture as it was, but for a base that no index names.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path

from tidemark.decode.catalog.databases import by_name
from tidemark.engine.dead_branch import DeadBranch, find_dead_branch, precedes, restart_before
from tidemark.engine.selection import Selection
from tidemark.io.archive_state import NoArchive, archive_state
from tidemark.io.clock import SystemClock
from tidemark.io.config import Config
from tidemark.io.failpoints import passed
from tidemark.io.history_files import before_fork, load_catalogs
from tidemark.io.node import Node
from tidemark.io.outbox import OutboxTable
from tidemark.io.replication import TimelineEnd, WalStream
from tidemark.io.state import StateStore
from tidemark.io.state_transaction import StateTransaction
from tidemark.io.state_views import StateView
from tidemark.io.wal_spool import WalSpool
from tidemark.model.change import REWIND_PREFIX
from tidemark.model.errors import ConfigError, NodeUnreachable, WalGap
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.mode import Stage
from tidemark.model.position import Pointer, Position, Sequence
from tidemark.runtime.archive_repair import loss_message, seeded
from tidemark.runtime.copy_plan import TableKey
from tidemark.runtime.dead_wal import DeadWalMissing, touched_tables
from tidemark.runtime.marker_search import newest_marked, sources_of
from tidemark.runtime.resumption import Message, Resumption, Tables, Wrong, go_on, set_right
from tidemark.runtime.seeding import SeedObserver
from tidemark.wal.segments import ReadSegment, TimelineHistory, first_page_lsn
from tidemark.wire.state import HAND_OVER, HandOver, Loss, Owner, Rewind

REWOUND_IN = (Stage.REALTIME, Stage.ARCHIVE, Stage.HELD)
PROBE_S = 1.0  # a time: a node that has the WAL sends some at once
PROBES_MAX = 30


class RewindPoint(Enum):
    """Places around what is durable of a rewind where a test may stop the process dead."""

    PREPARED = "rewind-prepared"  # what stands beside the state is ready; the state is as it was
    REWOUND = "rewind-rewound"


class NotRewindable(ConfigError):
    """A state that is not to be rewound."""

    hint = "`cdcctl status` says who delivers; on its way back to realtime the sidecar has to be started once"


class NothingDiverged(ConfigError):
    """All that was delivered happened at the node."""

    hint = (
        "start the daemons; if they end by a dead branch all the same, only a first copy saw it: make a new one "
        "(cdcctl init in a new state folder, with a new lake)"
    )


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind would do."""

    branch: DeadBranch
    restart_lsn: Lsn | None  # decoding begins again here, before the fork; None: a new seed is taken
    because: str  # why there is no restart LSN
    touched: frozenset[TableKey] | None  # None: nobody knows, so all are copied again
    untold: str  # why nobody knows


def plan_rewind(config: Config, store: StateStore, dead_wal: Path | None) -> RewindPlan:
    """Return what a rewind would do, having changed nothing; raise by name where there is nothing to be done."""
    view = store.view()
    if view.stage not in REWOUND_IN or view.followed is not None:
        raise NotRewindable(f"the capture is in stage {view.stage.value}, in which nobody rewinds")
    if view.delivered is None or view.beginning is None:
        raise NotRewindable("nothing was begun yet", hint="finish it by cdcctl init")
    delivered = view.delivered.pointer.position
    history = _history_of_node(config, store)
    branch = find_dead_branch(history, delivered)
    if branch is None:
        raise NothingDiverged(f"all up to {delivered} happened at the node, which is on timeline {history.timeline}")
    restart_lsn, because = _restart(config, store, view, history, branch)
    touched, untold = _touched(config, store, view, branch, dead_wal)
    return RewindPlan(branch, restart_lsn, because, touched, untold)


def rewind(
    config: Config, store: StateStore, plan: RewindPlan, owner: Owner, observer: SeedObserver | None = None
) -> tuple[Rewind, Loss | None]:
    """Go back to the fork, and on from there. `owner`: who holds the locks of both daemons."""
    before, branch = store.view(), plan.branch
    kept = _before(store, before, branch)
    selection = config.select.selection()
    if plan.restart_lsn is not None:
        at = _at_fork(store, kept, branch, plan.restart_lsn, selection)
        wrong = Wrong(_wrong_tables(before, plan), _present_lsn(config, store), never_were=True)
    else:
        at = seeded(config, store, kept, observer)
        wrong = Wrong(None, never_were=True)
    tables = set_right(store, before, at, selection, wrong) if config.copy.enabled else Tables()
    told = Rewind(
        at_us=SystemClock().wall_us(),
        timeline=branch.timeline,
        fork_lsn=branch.fork_lsn,
        delivered=branch.delivered,
        resumed_timeline=at.timeline,
        resumed_lsn=at.lsn,
        tables=tables.count,
    )
    loss = _loss(told, plan) if plan.restart_lsn is None else None
    with closing(WalSpool(store.folder.copy, config.copy.spool_bytes, store.folder.file_mode)) as spool:
        spool.cut_behind(branch.fork_lsn)
    passed(RewindPoint.PREPARED)
    go_on(
        config,
        store,
        before,
        at,
        owner,
        tables=tables,
        messages=[_message(told), *([loss_message(loss)] if loss is not None else [])],
        note=partial(_note, told, loss),
    )
    passed(RewindPoint.REWOUND)
    return told, loss


def _note(told: Rewind, loss: Loss | None, moving: StateTransaction) -> None:
    # NB: a marker that was met may stand on the dead branch; attempts are counted on.
    moving.put(HAND_OVER, HandOver(attempt=(moving.get(HAND_OVER) or HandOver()).attempt))
    moving.note_rewind(told)
    if loss is not None:
        moving.note_loss(loss)


def _before(store: StateStore, view: StateView, branch: DeadBranch) -> StateView:
    """Return the state with the catalogs' past up to the fork."""
    history, journal = before_fork(store.folder.history, view.history, view.journal, branch.fork_lsn)
    return replace(view, history=history, journal=journal)


def _history_of_node(config: Config, store: StateStore) -> TimelineHistory:
    with closing(WalStream(config.capture.dsn)) as stream:
        here = stream.identify(store.identity.system_identifier)
        return stream.timeline_history(here.timeline)


def _restart(
    config: Config, store: StateStore, view: StateView, history: TimelineHistory, branch: DeadBranch
) -> tuple[Lsn | None, str]:
    """Return the restart LSN of before the fork whose WAL is to be had; None, and why, where there is none."""
    bases = [(base.lsn, base.restart_lsn) for base in _before(store, view, branch).history.bases]
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
    """Give the pointers that the state has, up to the newest of before the fork."""
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
    """Return why WAL from `restart_lsn` on cannot be read where the capture goes on; nothing where it can be."""
    if restart_lsn is None:
        return "no catalog base of before the fork is kept"
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
    """Have the node send the first of what would be read; raise `WalGap` where it has removed it."""
    page_lsn = first_page_lsn(restart_lsn)
    with closing(WalStream(config.capture.dsn)) as stream:
        stream.identify(view.identity.system_identifier)
        stream.start(page_lsn, history.timeline_at(page_lsn))
        for _ in range(PROBES_MAX):
            if isinstance(stream.read(PROBE_S), ReadSegment | TimelineEnd):
                return
        raise NodeUnreachable(f"{stream.where} sends no WAL from {format_lsn(page_lsn)} on")


def _touched(
    config: Config, store: StateStore, view: StateView, branch: DeadBranch, dead_wal: Path | None
) -> tuple[frozenset[TableKey] | None, str]:
    selection = config.select.selection()
    if dead_wal is not None:
        return touched_tables(store, view, dead_wal, branch, selection), ""
    if not config.has_archive:
        return None, "no folder has the dead branch's WAL (--dead-wal)"
    try:
        return touched_tables(store, view, Path(config.archive.folder), branch, selection), ""
    except DeadWalMissing as error:
        return None, str(error)


def _wrong_tables(view: StateView, plan: RewindPlan) -> frozenset[TableKey] | None:
    """Return the tables that are to be set right: those touched, and those copied on the branch or not to their end."""
    if plan.touched is None:
        return None
    fork_lsn = plan.branch.fork_lsn
    copied = {key for key, copy in view.copies.items() if copy.is_open or copy.may_show_from(fork_lsn)}
    return plan.touched | copied


def _at_fork(
    store: StateStore, kept: StateView, branch: DeadBranch, restart_lsn: Lsn, selection: Selection
) -> Resumption:
    """Return what goes on at the fork, by the catalogs as they were there."""
    captured = by_name(selection.selects_database)
    base = load_catalogs(store.folder.history, kept.history, kept.journal, branch.fork_lsn, captured)
    return Resumption(
        timeline=branch.next_timeline,
        lsn=branch.fork_lsn,
        restart_lsn=restart_lsn,
        history=kept.history,
        mirrors=base.mirrors,
        databases=base.mirrors.known().keys(),
    )


def _present_lsn(config: Config, store: StateStore) -> Lsn:
    """Return an LSN behind all that has committed by now, and see that a record stands there."""
    with Node(config.capture.dsn) as node:
        node.check_same_node(store.identity.system_identifier)
        present_lsn = node.insert_lsn()
        node.flush_all()
    return present_lsn


def _loss(told: Rewind, plan: RewindPlan) -> Loss:
    """Return what is lost of the new timeline where delivering goes on from a new seed."""
    return Loss(
        at_us=told.at_us,
        after=Position(told.timeline, Lsn(told.fork_lsn - 1), 0),
        hole_start_lsn=told.fork_lsn,
        hole_end_lsn=told.resumed_lsn,
        resumed_timeline=told.resumed_timeline,
        resumed_lsn=told.resumed_lsn,
        tables=told.tables,
        damage=f"it cannot be decoded from before the fork: {plan.because}",
    )


def _message(told: Rewind) -> Message:
    content = {
        "timeline": told.timeline,
        "from": format_lsn(told.fork_lsn),
        "to": format_lsn(told.delivered.commit_lsn),
        "resumed": f"{told.resumed_timeline}:{format_lsn(told.resumed_lsn)}",
        "tables_copied_anew": told.tables,
    }
    return REWIND_PREFIX, content
