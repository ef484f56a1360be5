"""`cdcctl reader drop` and `cdcctl reader resume`: remove a reader of the outbox, or let a lapsed one continue."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tidemark.io.state.locking.write_guard import reporting_stuck_writers
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_transaction import StateTransaction
from tidemark_ctl.terminal_log import TerminalLog


def drop_reader(state: Path, name: str) -> None:
    """Run the command."""
    with changing(state) as transaction:
        transaction.drop_reader(name)
    click.echo(f"reader {name} dropped")


def resume_reader(state: Path, name: str) -> None:
    """Run the command."""
    with changing(state) as transaction:
        reader = transaction.resume_reader(name)
    gone = f"values {reader.skipped_from + 1} to {reader.skipped_to} are gone" if reader.skipped_to else "none is gone"
    click.echo(f"reader {name} continues after value {reader.applied}; {gone}")


@contextmanager
def changing(state: Path) -> Iterator[StateTransaction]:
    """Change the state in one transaction."""
    guarded = reporting_stuck_writers(TerminalLog())
    with StateStore.open(StateFolder(state), guarded=guarded) as store, store.transaction(None) as transaction:
        yield transaction
