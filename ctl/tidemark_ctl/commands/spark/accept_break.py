"""`cdcctl spark accept-break`: lets diverged logs of messages continue."""

from pathlib import Path

import click

from tidemark_ctl.options import state_option
from tidemark_ctl.requests.loss_acceptance import accept_losses
from tidemark_ctl.views.lake_tree import diverged_logs


@click.command("accept-break")
@state_option
@click.option("--accept-break", is_flag=True, help="Do not ask for confirmation.")
def accept(*, state: Path, accept_break: bool) -> None:
    """Continue diverged logs of logical messages, with a recorded break.

    The log of a table continues after `cdcctl table recopy`; messages cannot be copied again. The command prints the
    loss and asks for confirmation; the log continues with the next message.
    """
    losses = diverged_logs(state)
    accept_losses(state, losses, accepted=accept_break)
    click.echo(f"{len(losses)} logs of messages will continue with the next message")
