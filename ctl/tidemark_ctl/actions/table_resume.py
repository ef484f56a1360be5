"""`cdcctl table resume`: requests that paused tables are resumed, and waits for the pipelines that write them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from tidemark.io.readers.resume_requests import is_requested, request_resume
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError, ConsumerFailed
from tidemark.model.lsn import Oid
from tidemark.model.table_name import TableName
from tidemark_ctl.requests.waiting import POLL_S, Echo, NotComplete, WaitReport
from tidemark_ctl.views.embedded import refuse_engine
from tidemark_ctl.views.lake_tree import MESSAGES_ENTRY, LakeFault, paused_tables


class NotPaused(ConfigError):
    """A table that no pipeline of this state reports as paused."""

    hint = "cdcctl status lists the paused tables under lake, not_written"


class StillPaused(ConsumerFailed):
    """A resumed table could not be written again."""

    hint = "remove the cause, then repeat cdcctl table resume; the outbox keeps the changes, within a bound"


@dataclass(frozen=True, slots=True)
class Paused:
    """A paused log or replica, and the reader whose pipeline writes it."""

    reader: str
    fault: LakeFault


def resume(state: Path, *, tables: tuple[str, ...], deadline_s: float, no_wait: bool) -> None:
    """Run the command."""
    requested = _find(state, dict.fromkeys(tables))
    for one in requested:
        request_resume(state, one.reader, one.fault.key)
    if not no_wait:
        _wait(state, requested, time.monotonic() + deadline_s, partial(click.echo, err=True))
        click.echo(f"resumed: {', '.join(sorted({one.fault.table for one in requested}))}")


def _find(state: Path, texts: Iterable[str]) -> list[Paused]:
    with StateStore.open(StateFolder(state)) as store:
        refuse_engine(store, "no pipeline writes its tables, so none is paused")
        beginning = store.view().beginning
    databases = beginning.databases if beginning is not None else {}
    paused = [Paused(reader, fault) for reader, fault in paused_tables(state)]
    found = {text: [one for one in paused if _is_named(one.fault, text, databases)] for text in texts}
    missing = [text for text, ones in found.items() if not ones]
    if missing:
        raise NotPaused(f"not paused: {', '.join(missing)}")
    return [one for ones in found.values() for one in ones]


def _is_named(fault: LakeFault, text: str, databases: Mapping[Oid, str]) -> bool:
    if text == MESSAGES_ENTRY:
        return fault.concerns(None)
    name = TableName.parse(text)
    is_there = name.database is None or databases.get(Oid(int(fault.database))) == name.database
    return is_there and fault.table == f"{name.schema}.{name.table}"


def _wait(state: Path, requested: Sequence[Paused], deadline_s: float, echo: Echo) -> None:
    report = WaitReport(echo)
    while any(is_requested(state, one.reader, one.fault.key) for one in requested):
        if time.monotonic() > deadline_s:
            raise NotComplete("the pipeline has not resumed the tables", hint="the request is kept; see cdcctl status")
        report.report("pipeline", "waiting for the pipeline")
        time.sleep(POLL_S)
    keys = {(one.reader, one.fault.key) for one in requested}
    still = [fault for reader, fault in paused_tables(state) if (reader, fault.key) in keys]
    if still:
        raise StillPaused("; ".join(f"{fault.table} {fault.target} is paused: {fault.reason}" for fault in still))
