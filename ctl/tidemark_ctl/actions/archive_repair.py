"""`cdcctl archive repair`: gives up WAL that is missing in the archive, or damaged there, for good."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from tidemark.io.archive.archive_state import ArchiveState
from tidemark.io.host.failpoints import arm_from_environment
from tidemark.io.state.environment import WritePoint
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.locking.write_guard import reporting_stuck_writers
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.change import NO_COMMIT_TIME
from tidemark.model.position import Position
from tidemark.runtime.recovery.archive_repair import ArchiveBreak, RepairPoint, find_break, give_up, last_confirmed
from tidemark.runtime.seed.copy_rights import lacking_rights
from tidemark_ctl import settings
from tidemark_ctl.output.seed_progress import SeedProgress
from tidemark_ctl.requests.confirmation import confirm
from tidemark_ctl.terminal_log import TerminalLog
from tidemark_ctl.views.archive_tree import archive_of, loss_text, names_text, time_text, usecs_text
from tidemark_ctl.views.embedded import refuse_running_engine
from tidemark_ctl.views.realtime_tree import MISSING_WAL_HINT


def repair(state: Path, *, config: Path | None, yes: bool) -> None:
    """Run the command."""
    arm_from_environment(RepairPoint, WritePoint)
    chosen, folder = settings.load_with_folder(state, config)
    with (
        StateStore.open(folder, guarded=reporting_stuck_writers(TerminalLog())) as store,
        RoleLock.acquire(folder, "archiver") as lock,
    ):
        refuse_running_engine(store)
        view = store.view()
        found = archive_of(chosen, view)
        broken = find_break(view, found)
        if broken is None:
            click.echo(
                "the archive has no hole and no damage between the delivered pointer and its end: nothing to repair"
            )
            return
        for line in _loss_lines(found, broken, view, last_confirmed(store, view), copies=chosen.copy.enabled):
            click.echo(line, err=True)
        confirm("Give up this WAL?", yes=yes)
        loss = give_up(chosen, store, broken, replace(lock.owner, role="cdcctl"), SeedProgress())
    click.echo(loss_text(loss))
    for line in lacking_rights(chosen, folder):
        click.echo(line, err=True)
    click.echo(f"start the archiver again; a sidecar copies {loss.tables} tables at its next start")


def _loss_lines(
    found: ArchiveState, broken: ArchiveBreak, view: StateView, last: Position, *, copies: bool
) -> Iterator[str]:
    """Print the loss, as far as it is known."""
    stretch = broken.stretch
    if broken.damage:
        yield f"damaged in {found.folder}: WAL from {stretch}: {broken.damage}"
    else:
        yield f"missing in {found.folder}: WAL from {stretch}: {names_text(found, stretch)}"
    names = set(found.names_in(stretch))
    for given_up in (given_up for given_up in found.holes if given_up.name in names):
        yield f"  given up at {time_text(given_up.at_s)}: {given_up.name}: {given_up.reason}"
    yield f"Before that: {MISSING_WAL_HINT}."
    if view.delivered is not None:
        at_us = view.delivered.commit_time_us if view.delivered.pointer.position == last else NO_COMMIT_TIME
        when = f", committed at {usecs_text(at_us)}" if at_us else ""
        yield f"the last delivered position: {last}{when}"
    yield "All changes that committed since then are lost, including those of transactions that began before."
    yield "WAL after the lost part cannot be decoded either: the lost part may contain DDL."
    if copies:
        yield "The tables are copied again, which corrects the replicas; the change log keeps the gap."
    else:
        yield "copy.enabled is off: no table is copied again, and the replicas keep the old rows."
