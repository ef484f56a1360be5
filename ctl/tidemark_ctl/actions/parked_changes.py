"""`cdcctl parked drop` and `cdcctl parked retry`: delete parked changes, or request that they are delivered again."""

from collections.abc import Callable, Collection
from pathlib import Path

import click

from tidemark.io.parked.parked_table import ParkedTable
from tidemark.io.state.locking.write_guard import reporting_stuck_writers
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark_ctl.requests.confirmation import confirm
from tidemark_ctl.terminal_log import TerminalLog

QUESTION = "These changes are then never delivered. Drop them?"
ParkedAction = Callable[[ParkedTable, Collection[int] | None], int]


def drop_parked(state: Path, numbers: tuple[int, ...], *, every: bool, yes: bool) -> None:
    """Run the command."""
    if not yes:
        _changed(_check, state, numbers, every=every)
        confirm(QUESTION, yes=yes)
    click.echo(f"{_changed(ParkedTable.drop, state, numbers, every=every)} parked changes dropped")


def retry_parked(state: Path, numbers: tuple[int, ...], *, every: bool) -> None:
    """Run the command."""
    count = _changed(ParkedTable.request, state, numbers, every=every)
    click.echo(f"{count} parked changes are delivered to the consumer again; see `cdcctl parked list`")


def _check(table: ParkedTable, numbers: Collection[int] | None) -> int:
    """Raise `UnknownParked` before a question."""
    table.check(numbers)
    return 0


def _changed(action: ParkedAction, state: Path, numbers: tuple[int, ...], *, every: bool) -> int:
    if every == bool(numbers):
        raise click.UsageError("give the numbers of parked changes, or --all")
    guarded = reporting_stuck_writers(TerminalLog())
    with StateStore.open(StateFolder(state), guarded=guarded) as store, store.transaction(None) as transaction:
        return action(ParkedTable(transaction), None if every else numbers)
