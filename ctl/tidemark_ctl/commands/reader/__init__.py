"""`cdcctl reader`: the registered readers of the outbox, which keeps values until they have confirmed them."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "drop": Entry(
        "reader.drop",
        "Remove a reader that will not return, so that the outbox is trimmed without it.",
        "drop_reader",
    ),
    "list": Entry(
        "reader.list",
        "Show every reader: the sequence that it has confirmed, the one that it may return to, and its lag.",
        "list_readers",
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def reader() -> None:
    """List and drop the readers of the outbox."""
