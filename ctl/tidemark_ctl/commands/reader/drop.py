"""`cdcctl reader drop`: removes a reader of the outbox."""

from pathlib import Path

import click

from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.write_guard import reporting_stuck_writers
from tidemark_ctl.options import state_option


@click.command("drop")
@state_option
@click.argument("name")
@click.confirmation_option(prompt="Values that this reader has not read may then be trimmed. Drop it?")
def drop_reader(state: Path, name: str) -> None:
    """Remove a reader that will not return, so that the outbox is trimmed without it."""
    with (
        StateStore.open(StateFolder(state), guarded=reporting_stuck_writers) as store,
        store.transaction(None) as transaction,
    ):
        transaction.drop_reader(name)
    click.echo(f"reader {name} dropped")
