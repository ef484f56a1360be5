"""Decodes an archive with several processes: map, plan, processes, and what ends the output."""

import resource
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.engine.wal_ranges import PlannedRange, plan_ranges, start_from_map
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.spill import SpillFolder
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import Lsn
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT, InvalidWal
from tidemark.runtime.replay.history_start import HistoryStart
from tidemark.runtime.replay.offline import cell_bytes_of, ends_early
from tidemark.runtime.replay.range_start import begin_range
from tidemark.runtime.replay.transaction_mapping import MAP_FILE, MappedWal, kept_map, map_wal
from tidemark.wire.transaction_map import KeptMap
from tidemark_ctl.output.printing import report_damaged_base
from tidemark_ctl.ranges.messages import DecodeRequest
from tidemark_ctl.ranges.pool import RangePool, chunks_max
from tidemark_ctl.ranges.worker import WorkerStart
from tidemark_ctl.termination import cleaning_up_at_sigterm

RANGES_PER_JOB = 2  # so that a process with cheaper WAL takes over a part of another's; each start costs 0.03 s


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The ranges of an output, and the map by which they were planned."""

    mapped: MappedWal
    ranges: Sequence[PlannedRange]


def planned(
    view: StateView, folder: StateFolder, archive: ArchiveFolder, start: HistoryStart, to_lsn: Lsn | None, *, jobs: int
) -> RangePlan:
    """Map the WAL, and divide it for `jobs` processes."""
    oldest = min(base.lsn for base in view.history.bases)
    from_lsn = oldest if start.from_lsn is None else start.from_lsn
    mapped = map_wal(
        view,
        folder.history,
        archive,
        cell_bytes=cell_bytes_of(archive),
        from_lsn=from_lsn,
        to_lsn=to_lsn,
        map_file=folder.history / MAP_FILE,
        file_mode=folder.file_mode,
    )
    count = jobs * RANGES_PER_JOB
    found = mapped.kept.transactions
    ranges = plan_ranges(found, start.from_lsn, to_lsn, count=count, is_complete=mapped.is_complete)
    if start.from_lsn is not None:  # as `start_by_map` does: its WAL may be in the archive where that of a base is not
        first = _range_by_map(view, archive, mapped.kept, start.from_lsn, ranges[0].to_lsn)
        ranges = [first or ranges[0], *ranges[1:]]
    return RangePlan(mapped, ranges)


def start_by_map(
    view: StateView, folder: StateFolder, archive: ArchiveFolder, from_lsn: Lsn, spill: SpillFolder
) -> HistoryStart | None:
    """Return a decoder that begins at a cut of a kept map, if that is nearer than a catalog base."""
    kept = kept_map(folder.history / MAP_FILE, archive, cell_bytes_of(archive))
    part = None if kept is None else _range_by_map(view, archive, kept, from_lsn, None)
    if kept is None or part is None:
        return None
    return begin_range(
        view,
        folder.history,
        kept,
        part,
        memory_bytes=MEMORY_BYTES_DEFAULT,
        is_requested=True,
        spill=spill,
        passed_over=report_damaged_base,
    )


def _range_by_map(
    view: StateView, archive: ArchiveFolder, kept: KeptMap, from_lsn: Lsn, to_lsn: Lsn | None
) -> PlannedRange | None:
    """Return [from, to) as a range that begins at a cut; None if a catalog base is nearer or WAL is missing."""
    bases = [base.lsn for base in view.history.bases if base.lsn <= from_lsn]
    if not bases or max(bases) < kept.transactions.start_lsn:
        return None
    part = start_from_map(kept.transactions, from_lsn, to_lsn, base_lsn=max(bases))
    if part is None or part.start is None or part.start.lsn < max(archive.first_lsn(), min(bases)):
        return None
    return part


def print_ranges(
    request: DecodeRequest,
    plan: RangePlan,
    view: StateView,
    folder: StateFolder,
    *,
    archive: ArchiveFolder,
    start: HistoryStart,
    to_lsn: Lsn | None,
    jobs: int,
    own: Path,
    note: Callable[[str], None],
    report_end: Callable[[InvalidWal], None],
    progress: AbstractContextManager[Callable[[Lsn], None]],
) -> dict[str, float]:
    """Print the changes of all ranges in order; return the counts. `own` is the folder for the temporary files."""
    with cleaning_up_at_sigterm():
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = plan.mapped.kept
        sys.stdout.buffer.flush()  # no process has a copy of what is buffered
        asked = replace(request, is_from_lsn=start.from_lsn is not None)
        started = WorkerStart(asked, folder, view, kept, own, chunks_max(jobs), sys.stdout.buffer.fileno())
        reports = RangePool(started).run(plan.ranges, jobs, _ignore if plan.mapped.is_complete else note, progress)
    end_lsn = kept.transactions.end_lsn
    if plan.mapped.wal_end is not None:
        report_end(plan.mapped.wal_end)
    if plan.mapped.is_complete and to_lsn is not None and end_lsn < to_lsn:
        raise ends_early(archive, end_lsn, to_lsn)
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report.counts)
    return {**total, "wal_bytes": reports[-1].decoded_lsn - start.lsn, "cpu_s": round(total["cpu_s"] + _cpu_s(), 3)}


def _ignore(_text: str) -> None:
    """Ignore what a process reports about the end of WAL: the map ends there too."""


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
