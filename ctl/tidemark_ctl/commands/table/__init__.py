"""`cdcctl table`: commands for single tables."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "add": Entry(
        "table.add", "Add the changes of a table from before it was captured to its log in the lake, from archived WAL."
    ),
    "recopy": Entry(
        "table.recopy",
        "Copy tables again, as a new generation for every reader; return when the copies are in the stream.",
    ),
    "resume": Entry(
        "table.resume", "Make paused tables of a lake catch up from the outbox; return when they are written again."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def table() -> None:
    """Add, copy again or resume single tables."""
