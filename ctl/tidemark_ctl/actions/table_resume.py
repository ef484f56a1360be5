"""`cdcctl table resume`: requests that paused tables are resumed, and waits for the pipelines that write them.

With --archive a separate program writes the tables, so that `cdcctl` needs no library for Delta tables.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from tidemark.io.host.extras import SPARK
from tidemark.io.readers.resume_requests import is_requested, request_resume
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError, ConsumerFailed
from tidemark.model.lsn import Oid
from tidemark.model.table_name import TableName
from tidemark_ctl.output.command_spill import folder_of_command
from tidemark_ctl.requests.report_program import report_of
from tidemark_ctl.requests.waiting import POLL_S, Echo, NotComplete, WaitReport
from tidemark_ctl.views.embedded import refuse_engine
from tidemark_ctl.views.lake_tree import MESSAGES_ENTRY, LakeFault, paused_tables
from tidemark_ctl.views.render import show

PROGRAM = "pyspark_tidemark.missed_changes"


class NotPaused(ConfigError):
    """A table that no pipeline of this state reports as paused."""

    hint = (
        "cdcctl status lists the paused tables under lake, not_written; one that was paused for too long is diverged: "
        "repeat with --archive, or copy it with cdcctl table recopy"
    )


class StillPaused(ConsumerFailed):
    """A resumed table could not be written again."""

    hint = "remove the cause, then repeat cdcctl table resume; the outbox keeps the changes, within a bound"


@dataclass(frozen=True, slots=True)
class Paused:
    """A paused log or replica, and the reader whose pipeline writes it."""

    reader: str
    fault: LakeFault


def resume(
    state: Path,
    *,
    tables: tuple[str, ...],
    deadline_s: float,
    no_wait: bool,
    archive: Path | None,
    lake: str | None,
    config: Path | None,
    reader: str,
    as_json: bool,
) -> None:
    """Run the command."""
    if (archive is None) != (lake is None):
        raise ConfigError(
            "--archive and --lake are given together",
            hint="omit both to resume from the outbox; with them the pipeline must not run",
        )
    if archive is None or lake is None:
        _resume_from_outbox(state, tables, deadline_s, no_wait=no_wait)
        return
    SPARK.require()
    with folder_of_command(StateFolder(state)) as spill:
        places = [str(state), str(archive), lake, str(config or ""), reader, str(spill)]
        report = report_of(PROGRAM, *places, *dict.fromkeys(tables))
    show(report, as_json=as_json)


def _resume_from_outbox(state: Path, tables: Sequence[str], deadline_s: float, *, no_wait: bool) -> None:
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
