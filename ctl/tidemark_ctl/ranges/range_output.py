"""Decodes one range, or everything, and prints it: the same code for one process and for several."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from tidemark.decode.catalog.databases import among
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, Oid
from tidemark.runtime.replay.commit_times import TimeRange
from tidemark.runtime.replay.decode_run import InvalidWal
from tidemark.runtime.replay.history_start import HistoryStart, LsnRange
from tidemark.runtime.replay.offline import decode_archive
from tidemark_ctl.output.formats import Format
from tidemark_ctl.output.printing import Counts, PrintContext, printer, select_printed_rows
from tidemark_ctl.ranges.messages import DecodeRequest


def print_range(
    request: DecodeRequest,
    major: int,
    archive: ArchiveFolder,
    start: HistoryStart,
    *,
    lsns: LsnRange,
    output: BinaryIO,
    report_end: Callable[[InvalidWal], None],
    reached: Callable[[Lsn], None],
    times: TimeRange | None = None,
    cell_bytes: int | None = None,
) -> Counts:
    """Print the changes in a range. The output can be divided at the ends of cells: no batch crosses one."""
    shown = printer(
        Format(request.form),
        PrintContext.of(major, start.mirrors, start.databases, start.types),
        output,
        request.selection,
        counting=request.counting,
    )
    select_printed_rows(start.decoding.decoder, shown)
    if request.database is not None:
        start.mirrors.select(among(_oids(request.database, start.databases)))
    found = decode_archive(archive, start, lsns, report_end, times, at_cell_end=shown.flush, cell_bytes=cell_bytes)
    for decoded in found:
        shown.print_run(decoded, start.decoding.decoder.restart_lsn)
        reached(start.decoded_lsn)
    shown.flush()
    return shown.counts


def _oids(name: str, databases: Mapping[Oid, str]) -> frozenset[Oid]:
    """Return the databases of a name: several if one was dropped, and another one has its name now."""
    found = frozenset(oid for oid, known in databases.items() if known == name)
    if not found:
        captured = ", ".join(sorted({*databases.values()}))
        raise ConfigError(f"database {name} is not captured", hint=f"captured databases: {captured}")
    return found


def chunk_path(folder: Path, number: int, chunk: int) -> Path:
    """Return the file of a chunk of a range."""
    return folder / f"range-{number}-{chunk}"
