"""The message of commands that decode by a catalog history about a damaged base."""

import click

from tidemark.io.state.history_files import DamagedBase
from tidemark.model.lsn import format_lsn


def report_damaged_base(damaged: DamagedBase) -> None:
    """Say which file is damaged, and that an older base takes its place."""
    at = format_lsn(damaged.entry.lsn)
    click.echo(f"the catalog base of {at} is damaged; an older base is used: {damaged.error}", err=True)
