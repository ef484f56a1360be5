"""`cdcctl reader list`: the registered readers of the outbox and their positions."""

from pathlib import Path

import click

from tidemark.io.host.clock import SystemClock
from tidemark.io.state.reader_holds import held_bytes
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark_ctl.options import json_option, state_option
from tidemark_ctl.views.reader_tree import held_tree
from tidemark_ctl.views.render import show


@click.command("list")
@state_option
@json_option
def list_readers(state: Path, *, as_json: bool) -> None:
    """Show every reader: the sequences that it has confirmed and may return to, its lag, and what it holds."""
    now_us = SystemClock().wall_us()
    with StateStore.open(StateFolder(state), read_only=True) as store:
        view = store.view()
        since_us = {name: store.waiting_since_us(known.applied) for name, known in view.readers.items()}
    head, held = view.ledger.head, held_bytes(view.readers, view.ledger)
    tree = {
        name: {
            "held": known.applied,
            "replayable": known.replayable,
            "behind": head - known.applied,
            "lag_s": _seconds(now_us, since_us[name]),
            "required": known.is_required,
            **held_tree(known, held.get(name)),
        }
        for name, known in view.readers.items()
    }
    show({"readers": tree, "damaged": sorted(view.damaged_readers)}, as_json=as_json)


def _seconds(now_us: int, since_us: int | None) -> float:
    """Return the age of the oldest transaction that a reader has not confirmed; 0 if it has confirmed all."""
    return 0.0 if since_us is None else round(max(now_us - since_us, 0) / USECS_PER_SECOND, 1)
