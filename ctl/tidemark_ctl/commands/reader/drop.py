"""`cdcctl reader drop`: removes a reader of the outbox."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import outbox_options, yes_option


@click.command("drop")
@outbox_options
@click.argument("name")
@yes_option
@deferred("reader_changes.drop_reader")
def drop_reader() -> None:
    """Remove a reader that will not return, so that the outbox is trimmed without it."""
