"""`cdcctl tail`: the changes of a running node as they commit."""

import click

from tidemark.runtime.seed.wait_times import WAIT_S_DEFAULT
from tidemark_ctl.loading import deferred
from tidemark_ctl.options import (
    PATH,
    FiniteSeconds,
    config_option,
    exclude_origin_option,
    lsn,
    message_option,
    partition_root_option,
    transactions_option,
)
from tidemark_ctl.output.formats import FORMATS


@click.command()
@click.argument("dsn", required=False)
@click.option("--state", type=PATH, help="Use the catalogs of this state.")
@config_option
@click.option("--from", "from_lsn", type=lsn, help="With --state: transactions that commit at or after this LSN.")
@click.option("--until", type=lsn, help="Stop before the first transaction that commits at or after this LSN.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="jsonl", show_default=True)
@click.option(
    "--database", "databases", multiple=True, help="Follow these databases (default: the database of the DSN)."
)
@click.option("--table", "tables", multiple=True, default=("*.*",), help="Tables as schema.table; * matches any text.")
@partition_root_option
@exclude_origin_option
@message_option
@transactions_option
@click.option(
    "--wait-s",
    type=FiniteSeconds(min=0),
    default=WAIT_S_DEFAULT,
    show_default=True,
    help="How long to wait for older transactions to end.",
)
@deferred("tail.tail")
def tail() -> None:
    """Print the changes of the node at DSN as they commit, until interrupted.

    The node needs no part of Tidemark, only a role with LOGIN and REPLICATION, and a pg_hba.conf line for physical
    replication. The command writes nothing to the node except one empty message. Put a password into PGPASSFILE, never
    into DSN.

    With --state, the catalogs come from a state folder, and the changes may begin in the past, as far back as the node
    keeps WAL from the catalog base on that describes it; the default of DSN is then the DSN of the state.
    """
