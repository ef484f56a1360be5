"""`cdcctl parked retry`: lets the consumer process parked changes again."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import parked_arguments, state_option


@click.command("retry")
@state_option
@parked_arguments
@deferred("parked_changes.retry_parked")
def retry_parked() -> None:
    """Deliver parked changes to the consumer again.

    The delivering process does this within about two seconds, or at its next start. A change that the
    consumer handles leaves the list; one that fails again stays in it. NUMBER is one that `cdcctl parked list` shows.
    """
