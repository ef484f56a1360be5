"""`cdcctl table recopy`: sends tables to every reader again (I30)."""

from functools import partial
from pathlib import Path

import click

from tidemark.model.table_name import TableName
from tidemark_ctl.opened_capture import opened_capture
from tidemark_ctl.options import config_option, json_option, state_option
from tidemark_ctl.requests.confirming import confirm_losses
from tidemark_ctl.requests.recopy import TableFinder, TableRecopy
from tidemark_ctl.requests.recopy_cancel import RecopyCancellation
from tidemark_ctl.views.lake_tree import diverged_logs
from tidemark_ctl.views.render import show

DEADLINE_S_DEFAULT = 3600.0  # a large table takes this long


@click.command()
@state_option
@config_option
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@click.option(
    "--deadline-s",
    type=click.FloatRange(min=0),
    default=DEADLINE_S_DEFAULT,
    show_default=True,
    help="Return after this time and report what is missing; the request is kept.",
)
@click.option("--accept-break", is_flag=True, help="Do not ask before a diverged log in a lake continues with a break.")
@click.option("--cancel", is_flag=True, help="Remove requests for these tables whose copy has not begun.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the request is durable.")
@json_option
def recopy(
    state: Path,
    *,
    config: Path | None,
    tables: tuple[str, ...],
    deadline_s: float,
    accept_break: bool,
    cancel: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Copy tables again, as a new generation for every reader; return when the copies are in the stream.

    TABLE is schema.table or database.schema.table, case-sensitive; write a part with a dot as "a.b". Readers replace
    the rows that they hold by the copied rows. The command can be repeated: an open request is not made twice. While
    the archiver delivers, the request waits until realtime returns.

    A diverged table of the lake is recreated by its copy. A log loses the changes that it did not receive meanwhile:
    the command prints the loss and asks for confirmation.

    With --cancel, open and failed requests are removed; if a copy has begun, the command is refused.
    """
    names = list(dict.fromkeys(TableName.parse(text) for text in tables))
    with opened_capture(state, config) as (context, _node_requests):
        if cancel:
            RecopyCancellation(context, names, deadline_s=deadline_s, say=partial(click.echo, err=True)).cancel()
            return
        wanted = TableFinder(context.config.capture.dsn, context.config.select.selection(), context.store).find(names)
        confirm_losses(diverged_logs(state, {table.key for table in wanted}), accepted=accept_break)
        request = TableRecopy(context, wanted, deadline_s=deadline_s, say=partial(click.echo, err=True))
        request.request()
        try:
            if not no_wait:
                request.wait()
        finally:
            show(request.tree(), as_json=as_json)
