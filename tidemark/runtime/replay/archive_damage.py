"""Damage in an archive: reported with LSN and file (I32), and searched for by a repair that gives it up."""

from dataclasses import dataclass
from pathlib import Path

from tidemark.io.archive.archive import ArchiveFolder, BadSegment, Hole, NoWal
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn, SystemIdentifier
from tidemark.runtime.replay.decode_run import InvalidWal
from tidemark.wal.page import Framer, Invalid, NeedMore
from tidemark.wal.segments import WalSlice, first_page_lsn, segment_of, segment_start


@dataclass(frozen=True, slots=True)
class Damage:
    """WAL in the archive that cannot be read."""

    start_lsn: Lsn
    end_lsn: Lsn  # the end of its segment: the extent of the damage is unknown
    reason: str  # with the file's name


def in_archive(folder: Path, of: SystemIdentifier, error: CorruptWal, lsn: Lsn, read_lsn: Lsn) -> CorruptWal:
    """Return `error` with its file; it was met at the record at `lsn` when WAL up to `read_lsn` was read."""
    try:
        archive = ArchiveFolder(folder, complete_only=True, of=of)
    except (CorruptWal, OSError):
        return error
    names = dict.fromkeys(archive.name_at(at) for at in (lsn, Lsn(max(lsn, read_lsn - 1))))
    return BadSegment(f"{' or '.join(names)}: {error}", hint=None if isinstance(error, InvalidWal) else error.hint)


def find_damage(folder: Path, of: SystemIdentifier, restart_lsn: Lsn) -> Damage | None:
    """Read an archive from the LSN at which decoding would begin; return the first damage, None if there is none.

    Missing WAL is not damage: it ends the search.
    """
    try:
        archive = ArchiveFolder(folder, complete_only=True, of=of)
    except NoWal:
        return None
    segment_bytes = archive.segment_bytes
    framer = Framer(archive.format, system_identifier=of, segment_bytes=segment_bytes, start_lsn=restart_lsn)
    lsn = first_page_lsn(restart_lsn)
    try:
        for piece in archive.read_what_is_there(lsn):
            invalid = _frame(framer, piece)
            lsn = piece.end_lsn
            if invalid is not None:
                names = dict.fromkeys(archive.name_at(at) for at in (invalid.lsn, Lsn(lsn - 1)))
                return Damage(
                    invalid.lsn, _segment_end(Lsn(lsn - 1), segment_bytes), f"{' or '.join(names)}: {invalid}"
                )
    except Hole:
        return None
    except CorruptWal as error:  # of a file: its contents would begin at the end of the file before
        return Damage(lsn, _segment_end(lsn, segment_bytes), str(error))
    return None


def _frame(framer: Framer, piece: WalSlice) -> Invalid | None:
    framer.follow(piece.timeline)
    framer.feed(piece.start_lsn, piece.data)
    while not isinstance(outcome := framer.next_block(), NeedMore):
        if isinstance(outcome, Invalid):
            return outcome
    return None


def _segment_end(lsn: Lsn, segment_bytes: int) -> Lsn:
    return segment_start(segment_of(lsn, segment_bytes) + 1, segment_bytes)
