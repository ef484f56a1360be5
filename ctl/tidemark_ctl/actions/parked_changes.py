"""`cdcctl parked drop` and `cdcctl parked retry`: delete parked changes, or request that they are handed over again."""

from collections.abc import Callable, Collection
from pathlib import Path

import click

from tidemark.io.parked.parked_table import ParkedTable
from tidemark_ctl.actions.reader_changes import changing

ParkedAction = Callable[[ParkedTable, Collection[int] | None], int]


def drop_parked(state: Path, numbers: tuple[int, ...], *, every: bool) -> None:
    """Run the command."""
    click.echo(f"{_changed(ParkedTable.drop, state, numbers, every=every)} parked changes dropped")


def retry_parked(state: Path, numbers: tuple[int, ...], *, every: bool) -> None:
    """Run the command."""
    count = _changed(ParkedTable.request, state, numbers, every=every)
    click.echo(f"{count} parked changes are handed to the consumer again; see `cdcctl parked list`")


def _changed(action: ParkedAction, state: Path, numbers: tuple[int, ...], *, every: bool) -> int:
    if every == bool(numbers):
        raise click.UsageError("give the numbers of parked changes, or --all")
    with changing(state) as transaction:
        return action(ParkedTable(transaction), None if every else numbers)
