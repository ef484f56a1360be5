"""`cdcctl table`: commands for single tables."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "recopy": Entry(
        "table.recopy",
        "Copy tables again, as a new generation for every reader; return when the copies are in the stream.",
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def table() -> None:
    """Copy single tables again."""
