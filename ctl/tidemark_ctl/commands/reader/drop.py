"""`cdcctl reader drop`: removes a reader of the outbox."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import outbox_options


@click.command("drop")
@outbox_options
@click.argument("name")
@click.confirmation_option(prompt="Values that this reader has not read may then be trimmed. Drop it?")
@deferred("reader_changes.drop_reader")
def drop_reader() -> None:
    """Remove a reader that will not return, so that the outbox is trimmed without it."""
