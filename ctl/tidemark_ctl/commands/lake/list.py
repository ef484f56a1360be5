"""`cdcctl lake list`: shows the tables of a lake."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import config_option, json_option, lake_option


@click.command("list")
@lake_option
@config_option
@click.option("--present", is_flag=True, help="Leave out tables that were dropped.")
@json_option
@deferred("lake_report.list_tables")
def list_lake() -> None:
    """Show every table of a lake, with its folder, state, position and versions.

    The versions are those that the lake's `_positions` records: logs and replicas at these versions belong to one
    position of the source. A table that was dropped is kept until `dropped_keep_days` has passed
    since then.
    """
