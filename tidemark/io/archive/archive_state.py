"""The contents of an archive folder, for people and metrics: one listing, no segment opened (I27, I28, I41).

The code that reads a segment checks its contents. This module uses names: the existing segments, their runs, the
gaps on the path to the latest timeline, and the files recorded as given up in the ledger beside a spool. `.partial`
segments do not count: their end may be incomplete.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidemark.io.archive.hole_ledger import GivenUp, HoleLedger
from tidemark.io.archive.segment_file import open_unpacked, wal_name
from tidemark.io.archive.spool import Spool
from tidemark.io.host.folder_changes import FolderView
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
    view: FolderView  # of the folder, from before it was listed

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


def archive_state(folder: Path, segment_bytes: int, last: ArchiveState | None = None) -> ArchiveState:
    """List `folder`; raise `NoArchive` if it cannot be listed or the history of its latest timeline is unreadable.

    With `last`, the state at an earlier moment, the folder is listed again only if it may have changed since.
    """
    spool = Spool(folder)
    given_up, count, failing_s = _ledger(spool)
    try:
        view = FolderView.of(folder, last.view if last is not None else None)
        disk = os.statvfs(folder)
        is_ours = spool.is_ours
        is_known = last is not None and last.view.shows(view) and count == last.given_up
        listed = None if is_known else _Listing.of(folder, segment_bytes)
    except OSError as error:
        raise NoArchive(f"cannot list the archive folder {folder}: {error.strerror}") from error
    if listed is None:
        assert last is not None
        return replace(last, is_ours=is_ours, free_bytes=disk.f_bavail * disk.f_frsize, failing_s=failing_s)
    history = _latest_history(folder, listed)
    runs = tuple(_runs_by_timeline(listed.numbers))
    return ArchiveState(
        folder=folder,
        segment_bytes=segment_bytes,
        is_ours=is_ours,
        file_count=listed.file_count,
        byte_count=listed.byte_count,
        free_bytes=disk.f_bavail * disk.f_frsize,
        runs=tuple(run.named(segment_bytes) for run in runs),
        timeline=history.timeline if history is not None else None,
        path=tuple(_path(runs, history, segment_bytes)) if history is not None else (),
        holes=tuple(hole for hole in given_up if hole.name not in listed),
        given_up=count,
        failing_s=failing_s,
        view=view,
    )


@dataclass(slots=True)
class _Listing:
    """The files of a folder: the segments by timeline, and the others by the server's name."""

    segment_bytes: int
    numbers: dict[TimelineId, set[SegmentNo]] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    byte_count: int = 0

    @classmethod
    def of(cls, folder: Path, segment_bytes: int) -> "_Listing":
        """List a folder. NB: there may be a hundred thousand segments, and a stat of each takes most of the time."""
        listing = cls(segment_bytes)
        with os.scandir(folder) as entries:
            for entry in entries:
                if listing._add_segment(entry.name):
                    listing.byte_count += segment_bytes
                elif listing._add(entry.name):
                    with suppress(FileNotFoundError):  # trimmed meanwhile
                        listing.byte_count += entry.stat().st_size
        return listing

    def _add_segment(self, name: str) -> bool:
        key = parse_segment_name(name, self.segment_bytes)
        if key is None:
            return False
        self.numbers.setdefault(key[0], set()).add(key[1])
        return True

    def _add(self, file: str) -> bool:
        """Add a file, unless it has nothing to do with WAL."""
        name = wal_name(file)
        kind = file_kind(name)
        if kind is FileKind.OTHER:
            return False
        if kind is not FileKind.SEGMENT:
            self.others[name] = file
        else:
            self._add_segment(name)
        return True

    @property
    def file_count(self) -> int:
        """How many files there are, a compressed one beside a plain one not counted."""
        return len(self.others) + sum(map(len, self.numbers.values()))

    def __contains__(self, name: str) -> bool:
        key = parse_segment_name(name, self.segment_bytes)
        return name in self.others if key is None else key[1] in self.numbers.get(key[0], ())


def _latest_history(folder: Path, listed: _Listing) -> TimelineHistory | None:
    in_histories = {TimelineId(int(name[:8], 16)) for name in listed.others if file_kind(name) is FileKind.HISTORY}
    latest = max(in_histories | listed.numbers.keys(), default=None)
    if latest is None:
        return None
    file = listed.others.get(history_name(latest))
    if file is None:
        return parse_history("", latest)
    try:
        with open_unpacked(folder / file) as content:
            return parse_history(content.read(HISTORY_BYTES_MAX).decode(errors="replace"), latest)
    except (OSError, CorruptWal) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnreadableHistory(f"{folder / file} cannot be read: {reason}") from error


@dataclass(frozen=True, slots=True)
class _NumberRun:
    """Consecutive segments of one timeline, by number."""

    timeline: TimelineId
    first: SegmentNo
    last: SegmentNo

    def named(self, segment_bytes: int) -> SegmentRun:
        """Return the run by the names of its segments."""
        first, last = (segment_name(self.timeline, number, segment_bytes) for number in (self.first, self.last))
        return SegmentRun(self.timeline, first, last)


def _runs_by_timeline(numbers: Mapping[TimelineId, Iterable[SegmentNo]]) -> Iterable[_NumberRun]:
    for timeline in sorted(numbers):
        for first, last in _runs(numbers[timeline]):
            yield _NumberRun(timeline, first, last)


def _path(runs: Iterable[_NumberRun], history: TimelineHistory, segment_bytes: int) -> Iterable[WalSpan]:
    """Return the existing WAL along a history; the first segment of a timeline has its parent's bytes, too."""
    spans = {span.timeline: span for span in history.spans}
    pieces: list[WalSpan] = []
    for run in runs:
        span = spans.get(run.timeline)
        if span is None:
            continue
        start_lsn = segment_start(max(run.first, segment_of(span.begin_lsn, segment_bytes)), segment_bytes)
        end_lsn = segment_start(SegmentNo(run.last + 1), segment_bytes)
        if span.end_lsn is not None:
            end_lsn = min(end_lsn, span.end_lsn)
        if start_lsn < end_lsn:
            pieces.append(WalSpan(start_lsn, end_lsn))
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
