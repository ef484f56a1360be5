"""`cdcctl lake describe`: shows one table of a lake."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import config_option, json_option, lake_option


@click.command()
@lake_option
@config_option
@click.argument("table")
@json_option
@deferred("lake_report.describe")
def describe() -> None:
    """Show one table of a lake, its columns, and the lines that read it in other programs.

    TABLE is schema.table or database.schema.table, case-sensitive, or the folder of the table below LAKE.
    """
