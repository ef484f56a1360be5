"""`cdcctl table recopy`: sends tables to every reader again (I30)."""

from functools import partial
from pathlib import Path

import click

from tidemark.model.errors import ConfigError
from tidemark.model.table_name import TableName
from tidemark.runtime.first_copy.table_finder import TableFinder
from tidemark_ctl.opened_state import opened_state
from tidemark_ctl.requests.loss_acceptance import accept_losses
from tidemark_ctl.requests.recopy import TableRecopy
from tidemark_ctl.requests.recopy_cancel import RecopyCancellation
from tidemark_ctl.views.embedded import BelongsToEngine, embedded_engine
from tidemark_ctl.views.lake_tree import changed_logs, diverged_logs
from tidemark_ctl.views.render import show


class LogChanged(ConfigError):
    """A log of Iceberg tables that another writer changed: a copy would only append to it."""


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
    """Run the command."""
    names = list(dict.fromkeys(TableName.parse(text) for text in tables))
    with opened_state(state, config) as (store, settings, _log):
        watchdog_s, echo = settings.watchdog.watchdog_s, partial(click.echo, err=True)
        if cancel:
            RecopyCancellation(store, names, watchdog_s=watchdog_s, deadline_s=deadline_s, echo=echo).cancel()
            return
        if not settings.capture.dsn and embedded_engine(store) is not None:
            raise BelongsToEngine(
                "this state belongs to an engine and contains no configuration: the command needs the DSN of the node",
                hint="set TIDEMARK_CAPTURE__DSN to the DSN of the engine, or call engine.recopy() in the application",
            )
        requested = TableFinder.of(settings.capture.dsn, settings.select.selection(), store).find(names)
        keys = {table.key for table in requested}
        if changed := changed_logs(state, keys, store.marks().readers):
            raise LogChanged(
                "; ".join(f"the lake {lake} is not written: {log.reason}" for lake, log in changed),
                hint="; ".join(dict.fromkeys(log.remedy for _, log in changed)),
            )
        accept_losses(state, diverged_logs(state, keys), accepted=accept_break)
        request = TableRecopy(
            store, settings.capture.dsn, requested, watchdog_s=watchdog_s, deadline_s=deadline_s, echo=echo
        )
        request.request()
        try:
            if not no_wait:
                request.wait()
        finally:
            show(request.tree(), as_json=as_json)
