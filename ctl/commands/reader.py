"""`cdcctl reader`: the registered readers of the outbox, for whose sake nothing is trimmed."""

from pathlib import Path

import click

from ctl.options import json_option, state_option
from ctl.render import show
from tidemark.io.state import StateStore
from tidemark.io.state_folder import StateFolder
from tidemark.io.write_guard import told_of_stuck_writers


@click.group()
def reader() -> None:
    """List and drop the readers of the outbox."""


@reader.command("list")
@state_option
@json_option
def list_readers(state: Path, *, as_json: bool) -> None:
    """Show every reader: what its targets hold, what it may ask for again, how far it is behind."""
    with StateStore.open(StateFolder(state), read_only=True) as store:
        view = store.view()
    head = view.ledger.head
    tree = {
        name: {"held": known.held, "replayable": known.replayable, "behind": head - known.held}
        for name, known in view.readers.items()
    }
    show({"readers": tree, "damaged": sorted(view.damaged_readers)}, as_json=as_json)


@reader.command("drop")
@state_option
@click.argument("name")
@click.confirmation_option(prompt="What this reader has not read yet may be trimmed. Drop it?")
def drop_reader(state: Path, name: str) -> None:
    """Forget a reader that will not come back, so that the outbox is trimmed without it."""
    with StateStore.open(StateFolder(state), guarded=told_of_stuck_writers) as store, store.transaction(None) as moving:
        moving.drop_reader(name)
    click.echo(f"reader {name} dropped")
