"""`cdcctl reader`: the registered readers of the outbox, for whose sake nothing is trimmed."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "drop": Entry(
        "reader_drop",
        "Forget a reader that will not come back, so that the outbox is trimmed without it.",
        "drop_reader",
    ),
    "list": Entry(
        "reader_list",
        "Show every reader: what its targets hold, what it may ask for again, how far it is behind.",
        "list_readers",
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def reader() -> None:
    """List and drop the readers of the outbox."""
