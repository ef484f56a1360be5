"""`cdcctl parked list`: the parked changes, and the latest skipped ones."""

from pathlib import Path

import click

from tidemark.io.parked.parked_table import ParkedTable
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark_ctl.options import json_option, state_option
from tidemark_ctl.views.parked_tree import parked_tree, skipped_text
from tidemark_ctl.views.render import Tree, show


@click.command("list")
@state_option
@json_option
def list_parked(state: Path, *, as_json: bool) -> None:
    """Show the parked changes and the skipped ones, without their values."""
    with StateStore.open(StateFolder(state), read_only=True) as store, store.reading() as transaction:
        table = ParkedTable(transaction)
        ledger, skips = table.ledger(), table.skips()
        parked = {str(change.number): parked_tree(change) for change in table.changes()}
        damaged: list[Tree] = [*table.damaged()]
    show(
        {
            "parked": parked,
            **({"damaged": damaged} if damaged else {}),
            "bytes": ledger.byte_count,
            "skipped": {"count": skips.count, "latest": [skipped_text(each) for each in skips.kept]},
        },
        as_json=as_json,
    )
