"""`cdcctl decode`: changes from archived WAL, with no server running."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ctl.options import FOLDER, LSN, json_option, state_option
from ctl.printing import FORMATS, Databases, Format, Printer, printer
from ctl.render import show
from tidemark.decode.transactions import CommittedTransaction
from tidemark.engine.selection import Selection
from tidemark.io.archive import ArchiveFolder
from tidemark.io.spill import SpillFolder
from tidemark.io.state import StateStore
from tidemark.io.state_folder import StateFolder
from tidemark.model.lsn import Lsn, Oid, format_lsn
from tidemark.runtime.decode_run import MEMORY_BYTES_DEFAULT
from tidemark.runtime.offline import LsnRange, OfflineRun


@click.command()
@state_option
@click.option("--archive", type=FOLDER, required=True, help="A folder of WAL segment files.")
@click.option("--database", help="Only this database's changes.")
@click.option("--table", "tables", multiple=True, default=("*.*",), help="Schema and table, * matches any.")
@click.option("--from", "from_lsn", type=LSN, help="Transactions that commit at or after this LSN.")
@click.option("--to", "to_lsn", type=LSN, help="Transactions that commit before this LSN.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="jsonl", show_default=True)
@json_option
def decode(
    *,
    state: Path,
    archive: Path,
    database: str | None,
    tables: tuple[str, ...],
    from_lsn: Lsn | None,
    to_lsn: Lsn | None,
    form: str,
    as_json: bool,
) -> None:
    """Print the changes in archived WAL, by the catalog history in the state folder.

    Needs no server. Any folder of segment files will do: an archive, a pg_receivewal target, a copy of pg_wal.
    """
    folder = StateFolder(state)
    with StateStore.open(folder) as store:
        view = store.view()
    run = OfflineRun(
        view,
        folder.history,
        ArchiveFolder(archive),
        LsnRange(from_lsn, to_lsn),
        memory_bytes=MEMORY_BYTES_DEFAULT,
        spill=SpillFolder(folder.spill / "decode"),
    )
    dialects = {oid: mirror.dialect for oid, mirror in run.mirrors.items()}
    shown = printer(
        Format(form),
        Databases(view.identity.server_major, dialects, run.names),
        sys.stdout.buffer,
        Selection(tables=tables).selects,
    )
    _decode(run, shown, run.database(database) if database else None, quiet=as_json)
    if form == Format.NULL.value:
        show(shown.counts.as_dict(run.end_lsn - run.start_lsn), as_json=as_json)


def _decode(run: OfflineRun, shown: Printer, only: Oid | None, *, quiet: bool) -> None:
    console = Console(stderr=True)
    columns = (TextColumn("decoding {task.fields[at]}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    end = run.wanted.to_lsn
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        total = None if end is None else max(end - run.start_lsn, 1)
        task = progress.add_task("decoding", total=total, at=format_lsn(run.start_lsn))
        for decoded in run.decode():
            about = decoded.end if isinstance(decoded, CommittedTransaction) else decoded
            if only is None or about.database == only:
                shown.take(decoded, run.decoding.decoder.restart_lsn)
            progress.update(task, completed=run.end_lsn - run.start_lsn, at=format_lsn(run.end_lsn))
    shown.flush()
