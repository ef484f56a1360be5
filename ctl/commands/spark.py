"""`cdcctl spark`: the pipeline from the outbox to the lake, a program of its own."""

import os
import sys
from pathlib import Path

import click

from ctl.confirming import confirm_losses
from ctl.lake_tree import diverged_logs
from ctl.options import PATH, state_option
from tidemark.io.accepted_breaks import accept_breaks
from tidemark.io.extras import SPARK


@click.group()
def spark() -> None:
    """Bring changes to tables by Spark."""


@spark.command("run", context_settings={"ignore_unknown_options": True})
@state_option
@click.option("--lake", required=True, type=PATH, help="Where the tables stand.")
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def run_spark(*, state: Path, lake: Path, master: str, more: tuple[str, ...]) -> None:
    """Run the pipeline: change log and replica of each captured table, as Delta tables under LAKE.

    MORE is handed on to the pipeline (`python -m tidemark.pipeline --help`).
    """
    SPARK.require()
    command = [sys.executable, "-m", "tidemark.pipeline", "--state", str(state), "--lake", str(lake)]
    os.execv(sys.executable, [*command, "--master", master, *more])  # noqa: S606 - replaces us: signals reach it


@spark.command("accept-break")
@state_option
@click.option("--accept-break", is_flag=True, help="Do not ask.")
def accept(*, state: Path, accept_break: bool) -> None:
    """Let diverged logs of logical messages continue, with a recorded break.

    A log of a table continues by `cdcctl table recopy`; messages are not copied again. The command prints what is lost
    and asks first; the log continues with the next message.
    """
    losses = diverged_logs(state)
    confirm_losses(losses, accepted=accept_break)
    for reader in {loss.reader for loss in losses}:
        accept_breaks(
            state, reader, {loss.fault.database: loss.fault.after for loss in losses if loss.reader == reader}
        )
    click.echo(f"{len(losses)} logs of messages will continue with the next message")
