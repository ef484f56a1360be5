"""`cdcctl rewind`: corrects a capture that delivered changes which the node, as it is now, never had."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from tidemark.io.host.failpoints import arm_from_environment
from tidemark.io.state.confirmed_file import TAKEN
from tidemark.io.state.environment import WritePoint
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.locking.write_guard import reporting_stuck_writers
from tidemark.io.state.state import StateStore
from tidemark.model.lsn import format_lsn
from tidemark.runtime.recovery.rewind_plan import RewindPlan, plan_rewind
from tidemark.runtime.recovery.rewinding import RewindPoint
from tidemark.runtime.recovery.rewinding import rewind as go_back
from tidemark_ctl import settings
from tidemark_ctl.output.seed_progress import SeedProgress
from tidemark_ctl.requests.confirmation import confirm
from tidemark_ctl.terminal_log import TerminalLog
from tidemark_ctl.views.archive_tree import loss_text
from tidemark_ctl.views.embedded import embedded_engine, refuse_running_engine
from tidemark_ctl.views.realtime_tree import rewind_text


def rewind(state: Path, *, config: Path | None, dead_wal: Path | None, yes: bool) -> None:
    """Run the command."""
    arm_from_environment(RewindPoint, WritePoint)
    chosen, folder = settings.load_with_folder(state, config)
    with (
        StateStore.open(folder, guarded=reporting_stuck_writers(TerminalLog())) as store,
        _role_of_deliverer(store),
        RoleLock.acquire(folder, "archiver") as lock,
    ):
        started = "the daemons" if embedded_engine(store) is None else "the application"
        if (taken := store.take_confirmation()) is not None:
            click.echo(f"{TAKEN}: {taken.confirmed}, after {taken.delivered}", err=True)
        plan = plan_rewind(chosen, store, dead_wal)
        for line in _plan_lines(plan, copies=chosen.copy.enabled):
            click.echo(line, err=True)
        confirm("Go back?", yes=yes)
        done, loss = go_back(chosen, store, plan, replace(lock.owner, role="cdcctl"), SeedProgress())
    click.echo(rewind_text(done))
    if loss is not None:
        click.echo(loss_text(loss))
    click.echo(f"start {started} again; {done.tables} tables are copied once the stream has caught up")


def _role_of_deliverer(store: StateStore) -> RoleLock:
    """Take the role of the sidecar, or of an engine."""
    refuse_running_engine(store)
    return RoleLock.acquire(store.folder, "sidecar")


def _plan_lines(plan: RewindPlan, *, copies: bool) -> Iterator[str]:
    """Print the dead branch, the position from which delivery continues, and the consequences for the tables."""
    given = "delivered" if plan.is_delivered else "copied by first copies, but not delivered by the stream"
    yield f"{given}, but not part of the node's history: {plan.branch}"
    if not plan.is_delivered:
        yield "the stream continues from its current position"
    elif plan.restart_lsn is not None:
        yield (
            f"all transactions that commit from {format_lsn(plan.branch.fork_lsn)} on, on timeline "
            f"{plan.branch.next_timeline}, are delivered: decoding restarts at {format_lsn(plan.restart_lsn)}"
        )
    else:
        yield f"decoding cannot begin before the fork: {plan.because}"
        yield "All changes since the fork are lost; delivery continues from now, with a new seed."
    if not copies:
        yield "copy.enabled is off: no table is copied again, and rows of the dead branch remain in the replicas."
    elif plan.restart_lsn is None:
        yield "Every table is copied again."
    elif plan.touched is None:
        yield f"every table is copied again: {plan.why_unknown}"
    else:
        yield f"{len(plan.touched)} tables were changed; those that still exist are copied again"
