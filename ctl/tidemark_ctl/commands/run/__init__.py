"""`cdcctl run`: the daemons, in the foreground."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "archiver": Entry("run.daemon", "Run the process that reads archived WAL and delivers while the sidecar cannot."),
    "server": Entry("run.server", "Run the process that serves the outbox to readers on this host and on others."),
    "sidecar": Entry("run.daemon", "Run the realtime process: stream, decode, deliver."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def run() -> None:
    """Run a daemon in the foreground."""
