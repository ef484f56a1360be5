"""`cdcctl decode`: changes from archived WAL, with no server running."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import click

from tidemark.decode.catalog.databases import only
from tidemark.engine.selection import Selection
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.memory import keep_freed_memory
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, Oid, format_lsn
from tidemark.runtime.replay.commit_times import RecordedEnd, TimeRange, begin_lsn
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT, InvalidWal
from tidemark.runtime.replay.history_start import HistoryStart, LsnRange, begin_from_history
from tidemark.runtime.replay.offline import check_same_cluster, decode_archive
from tidemark_ctl.output.command_spill import spill_of_command
from tidemark_ctl.output.formats import Format
from tidemark_ctl.output.printing import PrintContext, keep_what_is_printed, printer, report_damaged_base
from tidemark_ctl.views.render import show


def decode(
    *,
    state: Path,
    archive: Path,
    database: str | None,
    tables: tuple[str, ...],
    partition_roots: tuple[str, ...],
    origins: tuple[str, ...],
    messages: tuple[str, ...],
    counting: bool,
    begin: Lsn | CommitTime | None,
    end: Lsn | CommitTime | None,
    form: str,
    as_json: bool,
) -> None:
    """Run the command."""
    keep_freed_memory()
    lsns = LsnRange(_lsn(begin), _lsn(end))
    times = TimeRange(_time(begin), _time(end))
    selection = Selection(tables=tables, partition_roots=partition_roots, exclude_origins=origins, messages=messages)
    folder = StateFolder(state)
    with StateStore.open(folder, read_only=True) as store:
        view = store.view()
    segments = ArchiveFolder(archive, of=view.identity.system_identifier)
    check_same_cluster(segments, view.identity.system_identifier)
    with spill_of_command(folder) as spill:
        from_lsn = begin_lsn(segments, view.history, times.from_time) if times.from_time else lsns.from_lsn
        start = begin_from_history(
            view,
            folder.history,
            from_lsn,
            memory_bytes=MEMORY_BYTES_DEFAULT,
            spill=spill,
            passed_over=report_damaged_base,
            archive=segments,
        )
        if from_lsn is None and start.from_lsn is not None:
            _report_later_start(archive, start.from_lsn)
        shown = printer(
            Format(form),
            PrintContext.of(view.identity.server_major, start.mirrors, start.databases, start.types),
            sys.stdout.buffer,
            selection,
            counting=counting,
        )
        keep_what_is_printed(start.decoding.decoder, shown)
        if database is not None:
            start.mirrors.select(only(_oid(database, start.databases)))
        with _progress(start, lsns.to_lsn, quiet=as_json) as report:
            for decoded in decode_archive(segments, start, lsns, _report_end, times):
                shown.print_run(decoded, start.decoding.decoder.restart_lsn)
                report(start.decoded_lsn)
        shown.flush()
    if times.set_back is not None:
        _report_set_back(times.set_back)
    if form == Format.NULL.value:
        show(shown.counts.as_dict(start.decoded_lsn - start.lsn), as_json=as_json)


def _report_later_start(archive: Path, from_lsn: Lsn) -> None:
    message = f"{archive} does not reach back to the oldest catalog base: decoding begins at {format_lsn(from_lsn)}"
    click.echo(f"{message}; archive.keep_bytes keeps more WAL in a spool for this command", err=True)


def _report_end(error: InvalidWal) -> None:
    click.echo(f"WAL ends here: {error}", err=True)


def _report_set_back(end: RecordedEnd) -> None:
    message = f"the server's clock was set back at {format_lsn(end.lsn)}, to {end.time}"
    click.echo(
        f"{message}: transactions of that time may also be elsewhere in WAL; give LSNs to select all of them", err=True
    )


def _lsn(end: Lsn | CommitTime | None) -> Lsn | None:
    return None if isinstance(end, CommitTime) else end


def _time(end: Lsn | CommitTime | None) -> CommitTime | None:
    return end if isinstance(end, CommitTime) else None


def _oid(name: str, databases: Mapping[Oid, str]) -> Oid:
    for oid, known in databases.items():
        if known == name:
            return oid
    captured = ", ".join(sorted(databases.values()))
    raise ConfigError(f"database {name} is not captured", hint=f"captured databases: {captured}")


@contextmanager
def _progress(start: HistoryStart, end: Lsn | None, *, quiet: bool) -> Iterator[Callable[[Lsn], None]]:
    """Show a progress bar on a terminal; its module is loaded only there."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with import_module("tidemark_ctl.output.progress_bar").shown(start.lsn, end) as report:
        yield report
