"""`cdcctl archive repair`: gives up WAL that is missing in the archive, or damaged there, for good."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import config_option, state_option, yes_option


@click.command()
@state_option
@config_option
@yes_option
@deferred("archive_repair.repair")
def repair() -> None:
    """Give up missing or damaged WAL, and continue from the current LSN of the node.

    Reads the archive from the restart LSN on, shows the loss and asks for confirmation. Then seeds the catalogs again
    from the node, moves the delivered pointer there under a new epoch, queues every table for another copy by the
    sidecar, and reports the loss to the readers in the stream. Stop the archiver first.
    """
