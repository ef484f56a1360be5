"""`cdcctl lake adopt`: continues with a lake that was restored as a whole from a backup."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import config_option, lake_option, reader_option, state_option, yes_option


@click.command()
@lake_option
@state_option
@config_option
@reader_option
@yes_option
@deferred("lake_adoption.adopt_lake")
def adopt() -> None:
    """Continue with a lake that was restored as a whole from a backup.

    The reader goes back to the position of the restored lake, and its pipeline writes the following changes again. The
    outbox must still have them. Stop the pipeline first.
    """
