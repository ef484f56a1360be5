"""`cdcctl realtime`: the operator's switch between realtime and archive delivery, and its state (I16)."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "off": Entry("realtime.switching", "Stop realtime until it is switched on; return when the archiver delivers."),
    "on": Entry("realtime.switching", "Switch realtime on; return when the sidecar delivers."),
    "status": Entry(
        "realtime.status",
        "Show which process delivers, since when and why, and the past switches; works without a daemon.",
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def realtime() -> None:
    """Switch between realtime and the archive, and show which process delivers."""
