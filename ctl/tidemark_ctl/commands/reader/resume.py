"""`cdcctl reader resume`: lets a lapsed reader continue."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import outbox_options


@click.command("resume")
@outbox_options
@click.argument("name")
@deferred("reader_changes.resume_reader")
def resume_reader() -> None:
    """Make a lapsed reader continue with the oldest value of the outbox.

    It never receives the trimmed values; the command prints their sequences.
    """
