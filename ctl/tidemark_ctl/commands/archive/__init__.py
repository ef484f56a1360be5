"""`cdcctl archive`: shows the archive, and repairs it after WAL is missing or damaged for good."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "repair": Entry("archive.repair", "Give up missing or damaged WAL, and continue from the current LSN of the node."),
    "status": Entry(
        "archive.status", "Show the segments, the missing ones, and the position of the delivered pointer."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def archive() -> None:
    """Show the archive, and repair it."""
