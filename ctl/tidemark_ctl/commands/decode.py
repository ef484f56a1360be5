"""`cdcctl decode`: changes from archived WAL, with no server running."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import (
    PATH,
    exclude_origin_option,
    json_option,
    lsn_or_time,
    message_option,
    partition_root_option,
    state_option,
    transactions_option,
)
from tidemark_ctl.output.formats import FORMATS

JOBS_MAX = 64  # processes: each needs some 200 MB, and decode.memory_bytes for large transactions


@click.command()
@state_option
@click.option("--archive", type=PATH, required=True, help="A folder of WAL segment files.")
@click.option("--database", help="Print only changes of this database.")
@click.option("--table", "tables", multiple=True, default=("*.*",), help="Tables as schema.table; * matches any text.")
@partition_root_option
@exclude_origin_option
@message_option
@transactions_option
@click.option(
    "--from",
    "begin",
    type=lsn_or_time,
    help="Transactions that commit at or after this LSN or time (ISO 8601 with zone).",
)
@click.option("--to", "end", type=lsn_or_time, help="Transactions that commit before this LSN or time.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="jsonl", show_default=True)
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(1, JOBS_MAX),
    default=1,
    show_default=True,
    help="Decode with this many processes; the output is the same.",
)
@json_option
@deferred("decode.decode")
def decode() -> None:
    """Print the changes in archived WAL, decoded with the catalog history of the state folder.

    The command needs no server. The folder of segment files can be an archive, a pg_receivewal target, or a copy of
    pg_wal. A time selects transactions by their commit time; if the clock of the server was set back, only LSNs are
    exact.
    """
