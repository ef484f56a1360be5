"""Moves back to the fork at which the node left the delivered branch, and on to its current timeline (`cdcctl rewind`).

Changes delivered behind the fork are dead: the node does not have them. The change log keeps them, and a message of
the prefix `tidemark.rewind` states their range, one for each database. The replicas become correct by another copy of
the tables that the branch changed. The copy runs after everything that the node has written so far was delivered:
otherwise the log would lack changes of the node that the copied rows contain.

If nothing behind the fork was delivered, but a first copy has read it, only its tables are corrected: the stream
continues where it is.

Delivery resumes at the fork, and nothing of the new timeline is missing, if WAL from a restart LSN before it is
available, with the catalogs of that LSN. Otherwise it resumes from a new seed: a loss, like a hole in an archive.

The catalog history is cut at the fork in the transaction that moves the delivered pointer. A crash before it leaves the
capture unchanged, except for a base that no index names.
"""

from contextlib import closing
from enum import Enum
from functools import partial

from tidemark.decode.catalog.databases import by_name
from tidemark.engine.selection import Selection
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.failpoints import passed
from tidemark.io.node.node import Node
from tidemark.io.parked.parked_table import ParkedTable
from tidemark.io.process.config import Config
from tidemark.io.state.history_files import load_catalogs
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.io.state.state_views import StateView
from tidemark.io.state.wal_spool import WalSpool
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.message_prefix import REWIND_PREFIX
from tidemark.model.position import Position
from tidemark.runtime.recovery.archive_repair import loss_message, seeded
from tidemark.runtime.recovery.resumption import (
    Message,
    Resumption,
    WrongTables,
    captures_without_copies,
    resume_delivery,
    table_corrections,
)
from tidemark.runtime.recovery.rewind_plan import RewindPlan, kept_before
from tidemark.runtime.seed.seed_observer import SeedObserver
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import Fingerprint
from tidemark.wire.state.event_logs import Loss, Rewind
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import FINGERPRINT, HAND_OVER
from tidemark.wire.state.values import HandOver


class RewindPoint(Enum):
    """Failpoints before and after the transaction of a rewind."""

    PREPARED = "rewind-prepared"  # the files beside the state are ready; the state is unchanged
    REWOUND = "rewind-rewound"


def rewind(
    config: Config, store: StateStore, plan: RewindPlan, owner: Owner, observer: SeedObserver | None = None
) -> tuple[Rewind, Loss | None]:
    """Resume from the fork. `owner`: the holder of both daemons' locks."""
    before, branch = store.view(), plan.branch
    kept = kept_before(store, before, branch)
    selection = config.select.selection()
    if plan.restart_lsn is not None:
        at = _at_fork(store, kept, plan, selection)
        only, present_lsn = _wrong_tables(before, plan), _present_lsn(config, store)
        wrong = WrongTables(only, present_lsn, created_on_dead_branch=True, unknown_too=plan.planned_dead)
    else:
        at = seeded(config, store, kept, observer)
        wrong = WrongTables(None, created_on_dead_branch=True)
    if config.copy.enabled:
        tables = table_corrections(config, store, before, at, wrong)
    else:
        tables = captures_without_copies(config, store, before, at, wrong)
    rewind = Rewind(
        at_us=SystemClock().wall_us(),
        timeline=branch.timeline,
        fork_lsn=branch.fork_lsn,
        delivered=branch.delivered,
        resumed_timeline=at.timeline,
        resumed_lsn=at.lsn,
        tables=tables.count,
    )
    loss = _loss(rewind, plan) if plan.restart_lsn is None else None
    with closing(WalSpool(store.folder.copy, config.copy.spool_bytes, store.folder.file_mode)) as spool:
        spool.cut_behind(branch.fork_lsn)
    passed(RewindPoint.PREPARED)
    resume_delivery(
        config,
        store,
        before,
        at,
        owner,
        tables=tables,
        messages=[_message(rewind), *([loss_message(loss)] if loss is not None else [])],
        extra_writes=partial(_record_rewind, rewind, loss),
    )
    passed(RewindPoint.REWOUND)
    return rewind, loss


def _record_rewind(rewind: Rewind, loss: Loss | None, transaction: StateTransaction) -> None:
    # NB: the recorded marker may be on the dead branch; only the number of attempts is kept.
    transaction.put(HAND_OVER, HandOver(attempt=(transaction.get(HAND_OVER) or HandOver()).attempt))
    transaction.record_rewind(rewind)
    ParkedTable(transaction).drop_dead(Position(rewind.timeline, rewind.fork_lsn, 0), rewind.timeline)
    transaction.put(FINGERPRINT, Fingerprint((transaction.get(FINGERPRINT) or Fingerprint()).selection))
    if loss is not None:
        transaction.record_loss(loss)


def _wrong_tables(view: StateView, plan: RewindPlan) -> frozenset[TableKey] | None:
    """Return the tables to correct: changed by the branch, copied on it, or with an incomplete copy."""
    if plan.touched is None:
        return None
    fork_lsn = plan.branch.fork_lsn
    copied = {key for key, copy in view.copies.items() if copy.is_open or copy.may_show_from(fork_lsn)}
    return plan.touched | copied


def _at_fork(store: StateStore, kept: StateView, plan: RewindPlan, selection: Selection) -> Resumption:
    """Return how delivery resumes at the fork, with the catalogs as of the fork.

    If nothing behind the fork was delivered: how it resumes after the last delivered change, with the catalogs then.
    """
    assert plan.restart_lsn is not None, "decoding continues"
    assert kept.delivered is not None, "it was planned"
    captured = by_name(selection.selects_database)
    after = None if plan.is_delivered else kept.delivered.pointer.position
    catalogs_lsn = plan.branch.fork_lsn if after is None else Lsn(after.commit_lsn + 1)
    seeded_lsn = kept.beginning.lsn if kept.beginning is not None else None
    base = load_catalogs(
        store.folder.history, kept.history, kept.journal, catalogs_lsn, captured, seeded_lsn=seeded_lsn
    )
    return Resumption(
        timeline=plan.branch.next_timeline,
        lsn=plan.branch.fork_lsn,
        restart_lsn=plan.restart_lsn,
        history=kept.history,
        mirrors=base.mirrors,
        databases=base.mirrors.known().keys(),
        after=after,
    )


def _present_lsn(config: Config, store: StateStore) -> Lsn:
    """Return an LSN behind all commits so far, and make sure that a record begins there."""
    with Node(config.capture.dsn) as node:
        node.check_same_node(store.identity.system_identifier)
        present_lsn = node.insert_lsn()
        node.flush_all()
    return present_lsn


def _loss(rewind: Rewind, plan: RewindPlan) -> Loss:
    """Return the loss on the new timeline if delivery resumes from a new seed."""
    return Loss(
        at_us=rewind.at_us,
        after=Position(rewind.timeline, Lsn(rewind.fork_lsn - 1), 0),
        hole_start_lsn=rewind.fork_lsn,
        hole_end_lsn=rewind.resumed_lsn,
        resumed_timeline=rewind.resumed_timeline,
        resumed_lsn=rewind.resumed_lsn,
        tables=rewind.tables,
        damage=f"decoding cannot begin before the fork: {plan.because}",
    )


def _message(rewind: Rewind) -> Message:
    content = {
        "timeline": rewind.timeline,
        "from": format_lsn(rewind.fork_lsn),
        "to": format_lsn(rewind.delivered.commit_lsn),
        "resumed": f"{rewind.resumed_timeline}:{format_lsn(rewind.resumed_lsn)}",
        "tables_copied_anew": rewind.tables,
    }
    return REWIND_PREFIX, content
