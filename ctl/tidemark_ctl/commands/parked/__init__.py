"""`cdcctl parked`: the changes that a consumer could not handle, and that are stored beside the stream."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "drop": Entry("parked.drop", "Delete parked changes: they are never delivered.", "drop_parked"),
    "list": Entry("parked.list", "Show the parked changes and the skipped ones, without their values.", "list_parked"),
    "retry": Entry("parked.retry", "Deliver parked changes to the consumer again.", "retry_parked"),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def parked() -> None:
    """List, retry and drop changes that a consumer could not handle."""
