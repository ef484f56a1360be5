"""The contents of an archive folder, for people and metrics: one listing, no segment opened (I27, I28, I41).

The code that reads a segment checks its contents. This module uses names: the existing segments, their runs, the
gaps on the path to the latest timeline, and the files recorded as given up in the ledger beside a spool. `.partial`
segments do not count: their end may be incomplete.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidemark.io.archive.hole_ledger import GivenUp, HoleLedger
from tidemark.io.archive.segment_file import open_unpacked, wal_name
from tidemark.io.archive.spool import Spool
from tidemark.model.errors import ConfigError, CorruptWal
from tidemark.model.lsn import Lsn, SegmentNo, TimelineId, format_lsn
from tidemark.wal.segments import (
    HISTORY_BYTES_MAX,
    FileKind,
    TimelineHistory,
    file_kind,
    history_name,
    parse_history,
    parse_segment_name,
    segment_name,
    segment_of,
    segment_start,
)


class NoArchive(ConfigError):
    """No archive folder is configured, or it cannot be listed."""

    hint = "set archive.folder to the folder of archived WAL; cdcctl init creates a spool in an empty folder"


class UnreadableHistory(NoArchive):
    """The history file of the latest timeline cannot be read."""

    hint = (
        "check its permissions and its disk; fetch it again from pg_wal of the node or from another copy of the archive"
    )


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Consecutive segments of one timeline."""

    timeline: TimelineId
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class WalSpan:
    """WAL from `start_lsn` up to `end_lsn`."""

    start_lsn: Lsn
    end_lsn: Lsn

    def __str__(self) -> str:
        return f"{format_lsn(self.start_lsn)} to {format_lsn(self.end_lsn)}"


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """An archive folder at one moment."""

    folder: Path
    segment_bytes: int
    is_ours: bool
    file_count: int
    byte_count: int
    free_bytes: int
    runs: tuple[SegmentRun, ...]  # by timeline, oldest first
    timeline: TimelineId | None  # the latest, which recovery would follow
    path: tuple[WalSpan, ...]  # the existing WAL on the history of that timeline, oldest first
    holes: tuple[GivenUp, ...]  # files that were given up and are not in the folder, oldest first
    given_up: int  # files given up since the spool was created
    failing_s: float | None  # for how long archive_command has failed; None: it does not fail, or this is unknown

    def gap_after(self, lsn: Lsn) -> WalSpan | None:
        """Return the first missing WAL from `lsn` on that has later WAL behind it."""
        reached = lsn
        for existing in self.path:
            if existing.end_lsn <= reached:
                continue
            if existing.start_lsn > reached:
                return WalSpan(reached, existing.start_lsn)
            reached = existing.end_lsn
        return None

    @property
    def end_lsn(self) -> Lsn | None:
        """The end of the archive on the path to the latest timeline."""
        return self.path[-1].end_lsn if self.path else None

    def names_in(self, gap: WalSpan) -> Sequence[str]:
        """Return the names of the segments of a gap, on the latest timeline."""
        first, behind = segment_of(gap.start_lsn, self.segment_bytes), segment_of(gap.end_lsn - 1, self.segment_bytes)
        timeline = self.timeline or TimelineId(1)
        return [segment_name(timeline, number, self.segment_bytes) for number in range(first, behind + 1)]


def archive_state(folder: Path, segment_bytes: int) -> ArchiveState:
    """List `folder`; raise `NoArchive` if it cannot be listed or the history of its latest timeline is unreadable."""
    files: dict[str, str] = {}
    byte_count = 0
    spool = Spool(folder)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = wal_name(entry.name)
                if file_kind(name) is not FileKind.OTHER:
                    files[name] = entry.name
                    with suppress(FileNotFoundError):  # trimmed meanwhile
                        byte_count += entry.stat().st_size
        disk = os.statvfs(folder)
        is_ours = spool.is_ours
    except OSError as error:
        raise NoArchive(f"cannot list the archive folder {folder}: {error.strerror}") from error
    segments = {key for name in files if (key := parse_segment_name(name, segment_bytes)) is not None}
    history = _latest_history(folder, files, segments)
    given_up, count, failing_s = _ledger(spool)
    return ArchiveState(
        folder=folder,
        segment_bytes=segment_bytes,
        is_ours=is_ours,
        file_count=len(files),
        byte_count=byte_count,
        free_bytes=disk.f_bavail * disk.f_frsize,
        runs=tuple(_runs_by_timeline(segments, segment_bytes)),
        timeline=history.timeline if history is not None else None,
        path=tuple(_path(segments, history, segment_bytes)) if history is not None else (),
        holes=tuple(hole for hole in given_up if hole.name not in files),
        given_up=count,
        failing_s=failing_s,
    )


def _latest_history(
    folder: Path, files: dict[str, str], segments: Iterable[tuple[TimelineId, SegmentNo]]
) -> TimelineHistory | None:
    in_histories = {TimelineId(int(name[:8], 16)) for name in files if file_kind(name) is FileKind.HISTORY}
    latest = max(in_histories | {timeline for timeline, _ in segments}, default=None)
    if latest is None:
        return None
    file = files.get(history_name(latest))
    if file is None:
        return parse_history("", latest)
    try:
        with open_unpacked(folder / file) as content:
            return parse_history(content.read(HISTORY_BYTES_MAX).decode(errors="replace"), latest)
    except (OSError, CorruptWal) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnreadableHistory(f"{folder / file} cannot be read: {reason}") from error


def _runs_by_timeline(segments: set[tuple[TimelineId, SegmentNo]], segment_bytes: int) -> Iterable[SegmentRun]:
    for timeline in sorted({timeline for timeline, _ in segments}):
        for first, last in _runs([number for found, number in segments if found == timeline]):
            yield SegmentRun(
                timeline, segment_name(timeline, first, segment_bytes), segment_name(timeline, last, segment_bytes)
            )


def _path(
    segments: set[tuple[TimelineId, SegmentNo]], history: TimelineHistory, segment_bytes: int
) -> Iterable[WalSpan]:
    """Return the existing WAL along a history; the first segment of a timeline has its parent's bytes, too."""
    spans = {span.timeline: span for span in history.spans}
    pieces: list[WalSpan] = []
    for timeline, number in segments:
        span = spans.get(timeline)
        start_lsn, end_lsn = segment_start(number, segment_bytes), segment_start(number + 1, segment_bytes)
        if span is not None and span.begin_lsn < end_lsn:
            pieces.append(WalSpan(start_lsn, end_lsn if span.end_lsn is None else min(end_lsn, span.end_lsn)))
    begin_lsn = reached = Lsn(0)
    for piece in sorted(pieces, key=lambda piece: piece.start_lsn):
        if piece.start_lsn > reached:
            if reached > begin_lsn:
                yield WalSpan(begin_lsn, reached)
            begin_lsn = piece.start_lsn
        reached = max(reached, piece.end_lsn)
    if reached > begin_lsn:
        yield WalSpan(begin_lsn, reached)


def _runs(numbers: Iterable[SegmentNo]) -> Iterable[tuple[SegmentNo, SegmentNo]]:
    """Return the first and last segment of each run without a gap."""
    first = last = None
    for number in sorted(numbers):
        if first is None or last is None or number > last + 1:
            if first is not None and last is not None:
                yield first, last
            first = number
        last = number
    if first is not None and last is not None:
        yield first, last


def _ledger(spool: Spool) -> tuple[list[GivenUp], int, float | None]:
    try:
        with HoleLedger.peek(spool.ledger) as ledger:
            return ledger.holes(), ledger.hole_count, ledger.failing_s
    except OSError:  # a folder that is not ours has no ledger; without one nothing is known
        return [], 0, None
