"""`cdcctl archive status`: shows what the archive contains and what is missing."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import config_option, json_option, state_option


@click.command()
@state_option
@config_option
@json_option
@deferred("archive_status.status")
def status() -> None:
    """Show the segments, the missing ones, and the position of the delivered pointer."""
