"""`cdcctl replay`: the rows that a table of a lake had at one moment."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import LAKE, config_option, json_option, lake_option, lsn_or_time


@click.command()
@lake_option
@config_option
@click.option("--table", required=True, help="schema.table or database.schema.table, or the table's folder below LAKE.")
@click.option("--at", "moment", type=lsn_or_time, required=True, help="An LSN, or a time (ISO 8601 with zone).")
@click.option(
    "--to",
    "target",
    type=LAKE,
    required=True,
    help="A new folder, or s3://BUCKET/PREFIX without objects.",
)
@json_option
@deferred("replay.replay")
def replay() -> None:
    """Write the rows that a table had at one moment, from its log in a lake, to a Delta table.

    The rules are those of recovery targets: an LSN includes the transactions whose commit record begins before it; a
    time includes those before the first one that committed after it. A running pipeline is not disturbed. The command
    refuses a moment at which the lake does not show what the table contained.
    """
