"""`cdcctl table resume`: lets paused tables of a lake catch up."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import (
    LAKE,
    PATH,
    config_option,
    json_option,
    reader_option,
    request_deadline_option,
    state_option,
)

DEADLINE_S_DEFAULT = 60.0


@click.command()
@state_option
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@request_deadline_option(DEADLINE_S_DEFAULT)
@click.option("--no-wait", is_flag=True, help="Return as soon as the request is written.")
@click.option("--archive", type=PATH, help="Take the changes from archived WAL, for tables paused for too long.")
@click.option("--lake", type=LAKE, help="With --archive: the lake, a folder or s3://BUCKET/PREFIX.")
@config_option
@reader_option
@json_option
@deferred("table_resume.resume")
def resume() -> None:
    """Make paused tables of a lake catch up from the outbox; return when they are written again.

    TABLE is schema.table or database.schema.table, case-sensitive, with its current name; `messages` is the log of the
    logical messages. Remove the cause first: `cdcctl status` shows it. The pipeline catches up between its batches; if
    it does not run, it does so at its next start. A table that still cannot be written remains paused, with the reason.

    A table that was paused for longer than the outbox keeps its changes is diverged. With --archive it gets them from
    archived WAL, without a query of the node: stop the pipeline, run this command with --lake and the --config of the
    daemons, then start the pipeline. TABLE may also be the table's folder below the lake. The command can be run again
    after it was interrupted; nothing is written twice. A table that was copied meanwhile is refused.
    """
