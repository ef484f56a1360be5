"""`cdcctl reader list`: the registered readers of the outbox and their positions."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import json_option, outbox_options


@click.command("list")
@outbox_options
@json_option
@deferred("reader_list.list_readers")
def list_readers() -> None:
    """Show every reader: the sequences that it has confirmed and may return to, its lag, and what it holds."""
