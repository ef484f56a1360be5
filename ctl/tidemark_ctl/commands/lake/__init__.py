"""`cdcctl lake`: shows the tables of a lake, checks them, removes dropped ones, and adopts a lake that was restored."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "adopt": Entry("lake.adopt", "Continue with a lake that was restored as a whole from a backup."),
    "check": Entry("lake.check", "Check versions, files and positions of every table of a lake."),
    "describe": Entry(
        "lake.describe", "Show one table of a lake, its columns, and the lines that read it in other programs."
    ),
    "list": Entry(
        "lake.list", "Show every table of a lake, with its folder, state, position and versions.", "list_lake"
    ),
    "remove": Entry("lake.remove", "Remove dropped tables from a lake, with their data."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def lake() -> None:
    """Show the tables of a lake, check them, remove dropped ones, and adopt a lake that was restored."""
