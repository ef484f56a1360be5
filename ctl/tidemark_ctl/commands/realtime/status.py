"""`cdcctl realtime status`: the delivering process, and the recorded switches (I16)."""

from pathlib import Path

import click

from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark_ctl import settings
from tidemark_ctl.options import config_option, json_option, state_option
from tidemark_ctl.views.realtime_tree import observe, realtime_tree
from tidemark_ctl.views.render import show

SWITCHES_DEFAULT = 10


@click.command()
@state_option
@config_option
@click.option(
    "--switches",
    type=click.IntRange(min=0),
    default=SWITCHES_DEFAULT,
    show_default=True,
    help="How many of the latest switches to show.",
)
@json_option
def status(state: Path, *, config: Path | None, switches: int, as_json: bool) -> None:
    """Show which process delivers, since when and why, and the past switches; works without a daemon."""
    chosen = settings.load(state, config)
    with StateStore.open(StateFolder(state), read_only=True) as store:
        observed = observe(store, chosen.archive, chosen.watchdog.watchdog_s)
    show(realtime_tree(observed, switches=switches, as_json=as_json), as_json=as_json)
