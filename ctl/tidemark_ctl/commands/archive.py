"""`cdcctl archive`: what the archive holds, and what to do about WAL that is missing or damaged there for good."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "repair": Entry("archive_repair", "Give up what is missing or damaged, and go on from now."),
    "status": Entry(
        "archive_status", "Show what is there, what is missing, and where the delivered pointer stands in it."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def archive() -> None:
    """Show the archive, and repair it."""
