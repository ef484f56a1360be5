"""`cdcctl parked drop`: deletes parked changes."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import parked_arguments, state_option, yes_option


@click.command("drop")
@state_option
@parked_arguments
@yes_option
@deferred("parked_changes.drop_parked")
def drop_parked() -> None:
    """Delete parked changes: they are never delivered.

    NUMBER is one that `cdcctl parked list` shows.
    """
