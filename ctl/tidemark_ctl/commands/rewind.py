"""`cdcctl rewind`: corrects a capture that delivered changes which the node, as it is now, never had."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import PATH, config_option, state_option, yes_option


@click.command()
@state_option
@config_option
@click.option(
    "--dead-wal", type=PATH, help="A folder with the WAL of the dead branch, for example pg_wal of the old primary."
)
@yes_option
@deferred("rewind.rewind")
def rewind() -> None:
    """Go back to the fork at which the node left the delivered branch, and continue on its timeline.

    Shows the changes that were delivered and that the node does not have, and asks for confirmation. Then marks them
    for the readers in the stream, moves the delivered pointer to the fork under a new epoch, and queues the changed
    tables for another copy. Stop both daemons first.
    """
