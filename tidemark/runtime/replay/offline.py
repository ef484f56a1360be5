"""Decoding an archive with a state folder's catalog history and no server running (N04, N05, N06)."""

from collections.abc import Callable, Iterator

from tidemark.decode.transactions.decoder import DecodedRun
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.model.errors import ConfigError, WalGap
from tidemark.model.lsn import SystemIdentifier, format_lsn
from tidemark.runtime.replay.commit_times import TimeRange
from tidemark.runtime.replay.decode_run import InvalidWal
from tidemark.runtime.replay.history_start import HistoryStart, LsnRange
from tidemark.wal.segments import first_page_lsn


class ArchiveEndsEarly(WalGap):
    """The archive ends before the end of the requested range."""

    hint = "wait until the segment is archived (pg_switch_wal() on the node speeds this up), or choose an earlier end"


class ForeignArchive(ConfigError):
    """An archive of another cluster than the state folder's."""

    hint = "give the archive of the node for which the state folder was created"


def check_same_cluster(archive: ArchiveFolder, system_identifier: SystemIdentifier) -> None:
    """Raise `ForeignArchive` for the archive of another cluster."""
    if archive.system_identifier != system_identifier:
        raise ForeignArchive(
            f"{archive.folder} belongs to system {archive.system_identifier}, the state folder to {system_identifier}"
        )


def decode_archive(
    archive: ArchiveFolder,
    start: HistoryStart,
    requested: LsnRange,
    report_end: Callable[[InvalidWal], None],
    times: TimeRange | None = None,
) -> Iterator[DecodedRun]:
    """Yield the changes in the range, and in that of `times`, up to its end or the archive's.

    `report_end` receives invalid bytes in the last segment. In a copy of pg_wal its unused rest begins there, which
    cannot be distinguished from damage.
    """
    to_lsn = requested.to_lsn
    times = times or TimeRange()
    start.decoding.watch = times.read
    for wal_slice in archive.read(first_page_lsn(start.lsn)):
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
        if times.is_passed or (to_lsn is not None and start.decoded_lsn >= to_lsn):
            return
    if not times.is_reached:
        ended = "without a transaction" if times.latest is None else f"with transactions up to {times.latest}"
        raise ArchiveEndsEarly(
            f"{archive.folder} ends at {format_lsn(start.decoded_lsn)} {ended}, before {times.to_time}"
        )
    if to_lsn is not None and start.decoded_lsn < to_lsn:
        raise ArchiveEndsEarly(f"{archive.folder} ends at {format_lsn(start.decoded_lsn)}, before {format_lsn(to_lsn)}")
