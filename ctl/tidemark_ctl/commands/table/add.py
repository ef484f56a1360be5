"""`cdcctl table add`: adds the changes of a table from before it was captured to its log."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import PATH, config_option, json_option, lake_option, lsn_or_time, reader_option, state_option


@click.command()
@state_option
@config_option
@lake_option
@click.option("--archive", type=PATH, required=True, help="The archived WAL since --from.")
@click.option("--from", "begin", type=lsn_or_time, required=True, help="An LSN, or a time (ISO 8601 with zone).")
@click.option("--base-backup", type=PATH, help="A base backup, for the rows of an incomplete replica.")
@reader_option
@click.argument("table")
@json_option
@deferred("table_add.add")
def add() -> None:
    """Add the changes of a table from before it was captured to its log in the lake, from archived WAL.

    TABLE is schema.table or database.schema.table with its current name, or the table's folder below LAKE. Select it
    first (select.tables), restart the daemons, and wait until the pipeline has written the outbox. Then stop it,
    and run this command. It adds every change that was committed at or after --from and before the first change in the
    log, with the schema that the table had at that time, and through the transforms of the configuration. It does not
    query the node. It can be run again after it was interrupted, and with an earlier --from; nothing is added twice.

    The replica of a table without a first copy has only the rows that changed since it was selected. It gets all rows
    if the table was created or truncated after --from, or with --base-backup; the report states which.
    """
