"""`cdcctl reader drop`: removes a reader of the outbox."""

from pathlib import Path

import click

from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.write_guard import reporting_stuck_writers
from tidemark_ctl.terminal_log import TerminalLog


def drop_reader(state: Path, name: str) -> None:
    """Run the command."""
    with (
        StateStore.open(StateFolder(state), guarded=reporting_stuck_writers(TerminalLog())) as store,
        store.transaction(None) as transaction,
    ):
        transaction.drop_reader(name)
    click.echo(f"reader {name} dropped")
