"""`cdcctl lake adopt`: continues with a lake that was restored as a whole from a backup."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import config_option, lake_option, state_option


@click.command()
@lake_option
@state_option
@config_option
@click.option("--reader", default="spark", show_default=True, help="The reader of the pipeline that writes the lake.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@deferred("lake_adoption.adopt_lake")
def adopt() -> None:
    """Continue with a lake that was restored as a whole from a backup.

    The reader goes back to the position of the restored lake, and its pipeline writes the following changes again. The
    outbox must still have them. Stop the pipeline first.
    """
