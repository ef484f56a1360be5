"""`cdcctl reader list`: the registered readers of the outbox and their positions."""

from pathlib import Path

import click

from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark_ctl.options import json_option, state_option
from tidemark_ctl.views.render import show


@click.command("list")
@state_option
@json_option
def list_readers(state: Path, *, as_json: bool) -> None:
    """Show every reader: the sequence that it has confirmed, the one that it may return to, and its lag."""
    with StateStore.open(StateFolder(state), read_only=True) as store:
        view = store.view()
    head = view.ledger.head
    tree = {
        name: {"held": known.applied, "replayable": known.replayable, "behind": head - known.applied}
        for name, known in view.readers.items()
    }
    show({"readers": tree, "damaged": sorted(view.damaged_readers)}, as_json=as_json)
