"""The message about a damaged base, for commands that decode with the catalog history."""

import click

from tidemark.io.state.history_files import DamagedBase
from tidemark.model.lsn import format_lsn


def report_damaged_base(damaged: DamagedBase) -> None:
    """Print which file is damaged, and that an older base replaces it."""
    at = format_lsn(damaged.entry.lsn)
    click.echo(f"the catalog base of {at} is damaged; an older base is used: {damaged.error}", err=True)
