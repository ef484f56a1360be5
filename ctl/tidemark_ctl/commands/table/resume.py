"""`cdcctl table resume`: lets paused tables of a lake catch up."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import request_deadline_option, state_option

DEADLINE_S_DEFAULT = 60.0


@click.command()
@state_option
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@request_deadline_option(DEADLINE_S_DEFAULT)
@click.option("--no-wait", is_flag=True, help="Return as soon as the request is written.")
@deferred("table_resume.resume")
def resume() -> None:
    """Make paused tables of a lake catch up from the outbox; return when they are written again.

    TABLE is schema.table or database.schema.table, case-sensitive, with its current name; `messages` is the log of the
    logical messages. Remove the cause first: `cdcctl status` shows it. The pipeline catches up between its batches; if
    it does not run, it does so at its next start. A table that still cannot be written remains paused, with the reason.
    """
