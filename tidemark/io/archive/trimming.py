"""Trimming the spool: removes WAL that no restart needs, whole segments, oldest first (I13).

Only a folder with our sentinel is ever changed. The horizon is the lowest LSN that is needed: the confirmed restart
LSN, that of the manifest in the spool (a rebuilt state begins to decode there), and, if `archive.keep_bytes` keeps
older WAL for `cdcctl decode`, the base from which that WAL is decoded. `.history` files are never removed. Neither are
segments of a timeline later than the horizon's: its fork may be below the horizon, and changes delivered past that fork
are still to be corrected.

After a crash in the middle the newest segments remain, and the next call continues.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemark.io.archive.segment_file import wal_name
from tidemark.io.archive.spool import Spool
from tidemark.io.host.disk import writing
from tidemark.io.state.history_files import NoBase, base_for
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import INVALID_LSN, Lsn, SegmentNo, TimelineId
from tidemark.wal.segments import SEGMENT_NAME_DIGITS, FileKind, file_kind, parse_segment_name, segment_of

FILES_MAX = 1000  # removed in one call: the caller must write heartbeats
_OF_A_SEGMENT = (FileKind.SEGMENT, FileKind.PARTIAL, FileKind.BACKUP)


@dataclass(frozen=True, slots=True)
class Horizon:
    """WAL before `lsn`, on `timeline` and earlier ones, is no longer needed."""

    timeline: TimelineId
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The removed files."""

    file_count: int = 0
    byte_count: int = 0


def horizon_of(
    view: StateView, *, keep_bytes: int, copied_lsn: Lsn | None, read_lsn: Lsn | None = None
) -> Horizon | None:
    """Return the horizon; None as long as nothing is confirmed.

    `copied_lsn`: the restart LSN of the manifest in the spool, None if there is none. `read_lsn`: the archive is
    still to be searched for markers from here on, None if it is not.
    """
    confirmed = view.horizon
    if confirmed is None or view.damaged_readers:
        return None
    needed = confirmed.pointer.restart_lsn
    if copied_lsn is not None:
        needed = min(needed, copied_lsn)
    if read_lsn is not None:
        needed = min(needed, read_lsn)
    return Horizon(confirmed.pointer.position.timeline, _kept_from(view, needed, keep_bytes))


def history_horizon_lsn(restart_lsn: Lsn, keep_bytes: int) -> Lsn:
    """Return the LSN for which a base must be kept: older WAL cannot be decoded without one."""
    return Lsn(max(INVALID_LSN, restart_lsn - keep_bytes))


def removable(files: Iterable[str], horizon: Horizon, segment_bytes: int) -> list[str]:
    """Return the files before the horizon's segment, oldest first; never the newest segment.

    The newest shows how far archiving has come: later segments that the server reports never arrived.
    """
    first_kept = segment_of(horizon.lsn, segment_bytes)
    # Names have the timeline, then the upper half of the LSN: most of a hundred thousand are kept without parsing them.
    upper = f"{horizon.lsn >> 32:08X}"
    old, kept = list[str](), list[str]()
    for file in files:
        (old if file.removeprefix(".")[8:16] <= upper else kept).append(file)
    keys = [(key, file) for file in old if (key := _segment(file, segment_bytes)) is not None]
    newest = max((key for key, file in keys if _is_whole(file)), default=None)
    if newest is not None:
        newest = max(newest, next(_whole_descending(kept, segment_bytes), newest))
    found: list[tuple[SegmentNo, TimelineId, str]] = []
    for (timeline, number), file in keys:
        if timeline <= horizon.timeline and number < first_kept and (timeline, number) != newest:
            found.append((number, timeline, file))
    return [file for _, _, file in sorted(found)]


def _is_whole(file: str) -> bool:
    return file_kind(wal_name(file)) is FileKind.SEGMENT


def _whole_descending(files: Iterable[str], segment_bytes: int) -> Iterator[tuple[TimelineId, SegmentNo]]:
    """Yield the whole segments, the newest first: names are in the order of timeline and number."""
    for file in sorted(files, reverse=True):
        if _is_whole(file) and (key := _segment(file, segment_bytes)) is not None:
            yield key


def trim(spool: Spool, horizon: Horizon, segment_bytes: int) -> Trimmed:
    """Remove up to `FILES_MAX` unneeded files; raise `NoSpool` for a folder that is not ours."""
    spool.system_identifier()
    with writing(spool.folder):
        files = [entry.name for entry in os.scandir(spool.folder) if entry.is_file(follow_symlinks=False)]
    file_count = byte_count = 0
    for file in removable(files, horizon, segment_bytes)[:FILES_MAX]:
        path = spool.folder / file
        with writing(path):
            byte_count += path.stat().st_size
            path.unlink()
        file_count += 1
    return Trimmed(file_count, byte_count)


def _kept_from(view: StateView, needed: Lsn, keep_bytes: int) -> Lsn:
    """Return the LSN from which WAL is kept: `keep_bytes` before `needed`, or an earlier base."""
    if not keep_bytes:
        return needed
    wanted = history_horizon_lsn(needed, keep_bytes)
    try:
        return min(wanted, base_for(view.history, wanted).restart_lsn)
    except NoBase:
        return wanted


def _segment(file: str, segment_bytes: int) -> tuple[TimelineId, SegmentNo] | None:
    """Return the segment of a file: whole, partial, compressed, half copied, or a backup label."""
    name = wal_name(file.removeprefix(".").removesuffix(".new"))
    return parse_segment_name(name[:SEGMENT_NAME_DIGITS], segment_bytes) if file_kind(name) in _OF_A_SEGMENT else None
