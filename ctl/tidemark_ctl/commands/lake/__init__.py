"""`cdcctl lake`: shows the tables of a lake, and checks them."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "check": Entry("lake.check", "Check versions, files and positions of every table of a lake."),
    "describe": Entry(
        "lake.describe", "Show one table of a lake, its columns, and the lines that read it in other programs."
    ),
    "list": Entry(
        "lake.list", "Show every table of a lake, with its folder, state, position and versions.", "list_lake"
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def lake() -> None:
    """Show the tables of a lake, and check them."""
