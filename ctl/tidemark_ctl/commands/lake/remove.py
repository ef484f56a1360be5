"""`cdcctl lake remove`: removes dropped tables from a lake."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import config_option, json_option, lake_option, reader_option, state_option, yes_option


@click.command()
@lake_option
@state_option
@config_option
@reader_option
@click.argument("tables", nargs=-1, metavar="[TABLE...]")
@click.option("--all", "every", is_flag=True, help="All dropped tables of which the time of the DROP is known.")
@yes_option
@json_option
@deferred("lake_removal.remove")
def remove() -> None:
    """Remove dropped tables from a lake, with their data.

    TABLE is the last name of dropped tables (schema.table or database.schema.table, case-sensitive), or the folder of
    one below LAKE. One without a known time of its DROP may still exist, for instance unlogged; --all leaves these out.
    The command lists the tables and asks for confirmation. A table is kept if another program has changed it, or if it
    changed after it was listed. Stop the pipeline first; `dropped_keep_days` removes tables beside it.
    """
