"""Decoding an archive with a state folder's catalog history and no server running (N04, N05, N06)."""

from collections.abc import Callable, Iterator

from tidemark.decode.decoder import DecodedRun
from tidemark.io.archive import ArchiveFolder
from tidemark.model.errors import ConfigError, WalGap
from tidemark.model.lsn import Lsn, SystemIdentifier, format_lsn
from tidemark.runtime.decode_run import InvalidWal
from tidemark.runtime.history_start import HistoryStart, LsnRange
from tidemark.wal.versions import PAGE_BYTES


class ArchiveEndsEarly(WalGap):
    """The archive ends before the end of what was asked for."""

    hint = "wait until the segment is archived (pg_switch_wal() on the node hastens it), or ask for less"


class ForeignArchive(ConfigError):
    """An archive of another cluster than the state folder's."""

    hint = "name the archive of the node that the state folder was made for"


def check_same_cluster(archive: ArchiveFolder, system_identifier: SystemIdentifier) -> None:
    """Refuse the archive of another cluster."""
    if archive.system_identifier != system_identifier:
        raise ForeignArchive(
            f"{archive.folder} is of system {archive.system_identifier}, the state folder of {system_identifier}"
        )


def decode_archive(
    archive: ArchiveFolder, start: HistoryStart, wanted: LsnRange, tell_end: Callable[[InvalidWal], None]
) -> Iterator[DecodedRun]:
    """Yield what lies in the range, to its end or the archive's.

    `tell_end`: of bytes in the last segment that are no WAL. In a copy of pg_wal its unused rest begins there; nobody
    can tell that from damage.
    """
    to_lsn = wanted.to_lsn
    for segment in archive.read(Lsn(start.lsn // PAGE_BYTES * PAGE_BYTES)):
        try:
            for decoded in start.decoding.feed_runs(segment):
                part = wanted.part_of(decoded)
                if part is not None:
                    yield part
        except InvalidWal as error:
            damage = archive.damage(error.invalid.lsn, error.invalid.reason)
            if damage is not None:
                raise damage from error
            tell_end(error)
            break
        if to_lsn is not None and start.decoded_lsn >= to_lsn:
            return
    if to_lsn is not None and start.decoded_lsn < to_lsn:
        raise ArchiveEndsEarly(f"{archive.folder} ends at {format_lsn(start.decoded_lsn)}, before {format_lsn(to_lsn)}")
