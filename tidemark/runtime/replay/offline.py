"""Decoding an archive with a state folder's catalog history and no server running (N04, N05, N06)."""

from collections.abc import Callable, Iterable, Iterator

from tidemark.decode.transactions.decoder import DecodedRun
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.model.errors import ConfigError, WalGap
from tidemark.model.lsn import Lsn, SystemIdentifier, format_lsn
from tidemark.model.transaction_map import CELL_SEGMENTS
from tidemark.runtime.replay.commit_times import TimeRange
from tidemark.runtime.replay.decode_run import InvalidWal
from tidemark.runtime.replay.history_start import HistoryStart, LsnRange
from tidemark.wal.segments import WalSlice, first_page_lsn

WAIT_FOR_SEGMENT = "wait until the segment is archived (pg_switch_wal() on the node speeds this up)"


class ArchiveEndsEarly(WalGap):
    """The archive ends before the end of the requested range."""

    hint = f"{WAIT_FOR_SEGMENT}, or choose an earlier end"


class ForeignArchive(ConfigError):
    """An archive of another cluster than the state folder's."""

    hint = "give the archive of the node for which the state folder was created"


def ends_early(
    archive: ArchiveFolder, end_lsn: Lsn, to_lsn: Lsn, hint: str = ArchiveEndsEarly.hint
) -> ArchiveEndsEarly:
    """Return the error for an archive that ends at `end_lsn`, before the end of the range, with the remedy `hint`."""
    return ArchiveEndsEarly(f"{archive.folder} ends at {format_lsn(end_lsn)}, before {format_lsn(to_lsn)}", hint=hint)


def ends_before(archive: ArchiveFolder, start: HistoryStart, times: TimeRange) -> ArchiveEndsEarly:
    """Return the error for an archive that ends before the requested time."""
    ended = "without a transaction" if times.latest is None else f"with transactions up to {times.latest}"
    return ArchiveEndsEarly(f"{archive.folder} ends at {format_lsn(start.decoded_lsn)} {ended}, before {times.to_time}")


def check_same_cluster(archive: ArchiveFolder, system_identifier: SystemIdentifier) -> None:
    """Raise `ForeignArchive` for the archive of another cluster."""
    if archive.system_identifier != system_identifier:
        raise ForeignArchive(
            f"{archive.folder} belongs to system {archive.system_identifier}, the state folder to {system_identifier}"
        )


def _do_nothing() -> None:
    """Do nothing at the end of a cell."""


def cell_bytes_of(archive: ArchiveFolder) -> int:
    """Return the size of the cells in which an archive can be divided."""
    return CELL_SEGMENTS * archive.segment_bytes


def in_cells(slices: Iterable[WalSlice], cell_bytes: int) -> Iterator[WalSlice]:
    """Yield the slices divided at the ends of cells."""
    for piece in slices:
        at, data = piece.start_lsn, memoryview(piece.data)
        while data:
            size = min(len(data), cell_bytes - at % cell_bytes)
            yield WalSlice(at, data[:size], piece.timeline)
            at, data = Lsn(at + size), data[size:]


def decode_archive(
    archive: ArchiveFolder,
    start: HistoryStart,
    requested: LsnRange,
    report_end: Callable[[InvalidWal], None],
    times: TimeRange | None = None,
    *,
    at_cell_end: Callable[[], None] = _do_nothing,
    cell_bytes: int | None = None,
) -> Iterator[DecodedRun]:
    """Yield the changes in the range, and in that of `times`, up to its end or the archive's.

    `report_end` receives invalid bytes in the last segment. In a copy of pg_wal its unused rest begins there, which
    cannot be distinguished from damage. `at_cell_end` is called after the last change of each cell, so that the output
    can be divided there whether or not several processes decode.
    """
    to_lsn = requested.to_lsn
    times = times or TimeRange()
    start.decoding.watch = times.read
    cell_bytes = cell_bytes or cell_bytes_of(archive)
    for wal_slice in in_cells(archive.read(first_page_lsn(start.lsn)), cell_bytes):
        try:
            decoded = start.decoding.feed_runs(wal_slice)
            for run in decoded if times.is_everything else times.within(decoded):
                part = requested.part_of(run)
                if part is not None:
                    yield part
        except InvalidWal as error:
            damage = archive.damage(error.invalid.lsn, error.invalid.reason)
            if damage is not None:
                raise damage from error
            report_end(error)
            break
        if wal_slice.end_lsn % cell_bytes == 0:
            at_cell_end()
        if times.is_passed or (to_lsn is not None and start.decoded_lsn >= to_lsn):
            return
    if not times.is_reached:
        raise ends_before(archive, start, times)
    if to_lsn is not None and start.decoded_lsn < to_lsn:
        raise ends_early(archive, start.decoded_lsn, to_lsn)
