"""`cdcctl table recopy`: sends tables to every reader again (I30)."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import config_option, json_option, request_deadline_option, state_option

DEADLINE_S_DEFAULT = 3600.0  # a large table takes this long


@click.command()
@state_option
@config_option
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@request_deadline_option(DEADLINE_S_DEFAULT)
@click.option("--accept-break", is_flag=True, help="Do not ask before a diverged log in a lake continues with a break.")
@click.option("--cancel", is_flag=True, help="Remove requests for these tables whose copy has not begun.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the request is durable.")
@json_option
@deferred("table_recopy.recopy")
def recopy() -> None:
    """Copy tables again, as a new generation for every reader; return when the copies are in the stream.

    TABLE is schema.table or database.schema.table, case-sensitive; write a part with a dot as "a.b". Readers replace
    their rows by the copied rows. The command can be repeated: an open request is not duplicated. While
    the archiver delivers, the request waits until realtime returns.

    A diverged table of the lake is recreated by its copy. A log loses the changes that it did not receive meanwhile:
    the command prints the loss and asks for confirmation.

    With --cancel, open and failed requests are removed; if a copy has begun, the command is refused.
    """
