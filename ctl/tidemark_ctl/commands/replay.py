"""`cdcctl replay`: the rows that a table had at one moment."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import LAKE, PATH, config_option, json_option, lsn_or_time


@click.command()
@click.option("--lake", type=LAKE, help="The lake with the table's log: a folder, or s3://BUCKET/PREFIX.")
@click.option("--base-backup", type=PATH, help="In place of --lake: a base backup from before the moment.")
@click.option("--archive", type=PATH, help="The WAL since the start of the backup (default: that in the backup).")
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
    """Write the rows that a table had at one moment to a Delta table.

    With --lake they come from the table's log. A running pipeline is not affected. The command refuses a moment at
    which the lake does not show what the table contained.

    With --base-backup they come from the pages of the backup and the WAL up to the moment, without a server, a state or
    a lake, also for a table that was never captured. The moment must be at or after the end of the backup, and TABLE
    is the name at that moment.

    The rules are those of recovery targets: an LSN includes the transactions whose commit record begins before it; a
    time includes those before the first one that committed after it.
    """
