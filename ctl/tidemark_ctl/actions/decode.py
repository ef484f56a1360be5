"""`cdcctl decode`: changes from archived WAL, with no server running."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import click

from tidemark.engine.selection import Selection
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.memory import keep_freed_memory
from tidemark.io.host.spill import SpillFolder
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.runtime.replay.commit_times import RecordedEnd, TimeRange, begin_lsn
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT, InvalidWal
from tidemark.runtime.replay.history_start import HistoryStart, LsnRange, begin_from_history
from tidemark.runtime.replay.offline import check_same_cluster
from tidemark_ctl.output.command_spill import folder_of_command
from tidemark_ctl.output.formats import Format
from tidemark_ctl.output.printing import check_applies, report_damaged_base
from tidemark_ctl.ranges.decode_ranges import planned, print_ranges, start_by_map
from tidemark_ctl.ranges.messages import DecodeRequest
from tidemark_ctl.ranges.range_output import print_range
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
    jobs: int,
    as_json: bool,
) -> None:
    """Run the command."""
    keep_freed_memory()
    if jobs > 1 and (isinstance(begin, CommitTime) or isinstance(end, CommitTime)):
        raise ConfigError("a range of times is decoded by one process", hint="give LSNs, or omit --jobs")
    lsns = LsnRange(_lsn(begin), _lsn(end))
    times = TimeRange(_time(begin), _time(end))
    selection = Selection(tables=tables, partition_roots=partition_roots, exclude_origins=origins, messages=messages)
    check_applies(Format(form), selection, counting=counting)
    request = DecodeRequest(str(state.absolute()), str(archive.absolute()), database, selection, form, counting)
    folder = StateFolder(state)
    with StateStore.open(folder, read_only=True) as store:
        view = store.view()
    segments = ArchiveFolder(archive, of=view.identity.system_identifier)
    check_same_cluster(segments, view.identity.system_identifier)
    from_lsn = begin_lsn(segments, view.history, times.from_time) if times.from_time else lsns.from_lsn
    with folder_of_command(folder) as own:
        spill = SpillFolder(own)
        nearer = None if from_lsn is None else start_by_map(view, folder, segments, from_lsn, spill)
        start = nearer or begin_from_history(
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
        plan = planned(view, folder, segments, start, lsns.to_lsn, jobs=jobs) if jobs > 1 else None
        progress = _progress(start, lsns.to_lsn, quiet=as_json)
        if plan is not None and len(plan.ranges) > 1:
            counts = print_ranges(
                request,
                plan,
                view,
                folder,
                archive=segments,
                start=start,
                to_lsn=lsns.to_lsn,
                jobs=jobs,
                own=own,
                note=_report,
                report_end=_report_end,
                progress=progress,
            )
        else:
            with progress as reached:
                counts = print_range(
                    request,
                    view.identity.server_major,
                    segments,
                    start,
                    lsns=lsns,
                    output=sys.stdout.buffer,
                    report_end=_report_end,
                    reached=reached,
                    times=times,
                ).as_dict(start.decoded_lsn - start.lsn)
    if times.set_back is not None:
        _report_set_back(times.set_back)
    if form == Format.NULL.value:
        show(counts, as_json=as_json)


def _report_later_start(archive: Path, from_lsn: Lsn) -> None:
    message = f"{archive} does not reach back to the oldest catalog base: decoding begins at {format_lsn(from_lsn)}"
    click.echo(f"{message}; archive.keep_bytes keeps more WAL in a spool for this command", err=True)


def _report(text: str) -> None:
    click.echo(text, err=True)


def _report_end(error: InvalidWal) -> None:
    _report(f"WAL ends here: {error}")


def _report_set_back(end: RecordedEnd) -> None:
    message = f"the server's clock was set back at {format_lsn(end.lsn)}, to {end.time}"
    click.echo(
        f"{message}: transactions of that time may also be elsewhere in WAL; give LSNs to select all of them", err=True
    )


def _lsn(end: Lsn | CommitTime | None) -> Lsn | None:
    return None if isinstance(end, CommitTime) else end


def _time(end: Lsn | CommitTime | None) -> CommitTime | None:
    return end if isinstance(end, CommitTime) else None


@contextmanager
def _progress(start: HistoryStart, end: Lsn | None, *, quiet: bool) -> Iterator[Callable[[Lsn], None]]:
    """Show a progress bar on a terminal; its module is loaded only there."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with import_module("tidemark_ctl.output.progress_bar").shown(start.lsn, end) as report:
        yield report
