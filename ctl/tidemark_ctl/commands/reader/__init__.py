"""`cdcctl reader`: the registered readers of the outbox, which keeps values until they have confirmed them."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "drop": Entry(
        "reader.drop",
        "Remove a reader that will not return, so that the outbox is trimmed without it.",
        "drop_reader",
    ),
    "resume": Entry(
        "reader.resume",
        "Make a lapsed reader continue with the oldest value of the outbox.",
        "resume_reader",
    ),
    "list": Entry(
        "reader.list",
        "Show every reader: the sequences that it has confirmed and may return to, its lag, and what it holds.",
        "list_readers",
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def reader() -> None:
    """List, drop and resume the readers of the outbox."""
