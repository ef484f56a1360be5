"""`cdcctl realtime`: the operator's switch between both ways of delivering, and its state (I16)."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "off": Entry("realtime_switching", "Stop realtime until it is switched on; return when the archiver delivers."),
    "on": Entry("realtime_switching", "Go on with realtime; return when the sidecar delivers."),
    "status": Entry(
        "realtime_status", "Show who delivers, since when and why, and the switches so far, with or without a daemon."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def realtime() -> None:
    """Switch between realtime and the archive, and see who delivers."""
