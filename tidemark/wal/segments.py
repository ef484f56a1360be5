"""Segments, timelines and their file names (`xlog_internal.h`, `timeline.c`).

Segment numbers count from LSN 0 on every timeline. This module opens no file: sources do that.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tidemark.model.errors import CorruptWal, InvalidLsn
from tidemark.model.lsn import Lsn, SegmentNo, TimelineId, format_lsn, parse_lsn
from tidemark.wal.versions import PAGE_BYTES

SEGMENT_BYTES_MIN = 1 << 20
SEGMENT_BYTES_MAX = 1 << 30
SEGMENT_BYTES_DEFAULT = 16 << 20
SEGMENT_NAME_DIGITS = 24
SLICE_BYTES_MAX = 128 << 10  # MAX_SEND_SIZE of walsender.c: no replication message carries more WAL
HISTORY_BYTES_MAX = 1 << 20  # of a .history file
_HEX = frozenset("0123456789ABCDEF")
_UNSIGNED_32 = 1 << 32
_TIMELINE = re.compile("[0-9]{1,10}")


class BadHistory(CorruptWal):
    """A timeline history file that no server writes."""

    hint = "fetch the .history file again from the node or the archive"


@dataclass(slots=True)  # NB: each commit creates some, and a frozen object takes three times as long
class WalSlice:
    """A slice of WAL from a source: contiguous bytes of one timeline, cut anywhere."""

    start_lsn: Lsn
    data: bytes | memoryview
    timeline: TimelineId

    @property
    def end_lsn(self) -> Lsn:
        """LSN of the first byte after the slice."""
        return Lsn(self.start_lsn + len(self.data))


class FileKind(Enum):
    """The kind of a file in an archive, by its name."""

    SEGMENT = "segment"
    PARTIAL = "partial"  # the last segment of an old timeline at a promotion, or one that pg_receivewal is writing
    HISTORY = "history"
    BACKUP = "backup"
    OTHER = "other"


def is_segment_size(size: int) -> bool:
    """Return whether `size` is a possible wal_segment_size: a power of two from 1 MB to 1 GB."""
    return SEGMENT_BYTES_MIN <= size <= SEGMENT_BYTES_MAX and size & (size - 1) == 0


def segment_of(lsn: int, segment_bytes: int) -> SegmentNo:
    """Return the number of the segment that contains the byte at `lsn`."""
    return SegmentNo(lsn // segment_bytes)


def segment_start(segment: int, segment_bytes: int) -> Lsn:
    """Return the LSN of the first byte of `segment`."""
    return Lsn(segment * segment_bytes)


def segment_name(timeline: int, segment: int, segment_bytes: int) -> str:
    """Return the file name of `segment` on `timeline`."""
    per_id = _UNSIGNED_32 // segment_bytes
    return f"{timeline:08X}{segment // per_id:08X}{segment % per_id:08X}"


def parse_segment_name(name: str, segment_bytes: int) -> tuple[TimelineId, SegmentNo] | None:
    """Return timeline and segment number if `name` is exactly a segment's name; None for any other name."""
    if len(name) != SEGMENT_NAME_DIGITS or not _HEX.issuperset(name):
        return None
    timeline, high, low = int(name[:8], 16), int(name[8:16], 16), int(name[16:], 16)
    per_id = _UNSIGNED_32 // segment_bytes
    if timeline == 0 or low >= per_id:
        return None
    return TimelineId(timeline), SegmentNo(high * per_id + low)


def file_kind(name: str) -> FileKind:
    """Return the kind of the archive file `name`; the caller removes a compression suffix."""
    stem, _, suffix = name.partition(".")
    if not _HEX.issuperset(stem):
        return FileKind.OTHER
    match len(stem), suffix:
        case 24, "":
            return FileKind.SEGMENT
        case 24, "partial":
            return FileKind.PARTIAL
        case 8, "history":
            return FileKind.HISTORY
        case 24, _ if suffix.endswith(".backup"):
            return FileKind.BACKUP
    return FileKind.OTHER


def first_page_lsn(lsn: Lsn) -> Lsn:
    """Return where reading must begin so that the record at `lsn` can be framed: its page's start."""
    return Lsn(lsn // PAGE_BYTES * PAGE_BYTES)


def history_name(timeline: int) -> str:
    """Return the name of the history file of `timeline`; timeline 1 has none."""
    return f"{timeline:08X}.history"


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """The part of a history on one timeline: `[begin_lsn, end_lsn)`; `end_lsn` is None for the last one."""

    timeline: TimelineId
    begin_lsn: Lsn
    end_lsn: Lsn | None


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    """The history of a timeline: its ancestors in order, then itself."""

    spans: Sequence[TimelineSpan]

    @property
    def timeline(self) -> TimelineId:
        """The timeline whose history this is."""
        return self.spans[-1].timeline

    def timeline_at(self, lsn: int) -> TimelineId:
        """Return the timeline of the byte at `lsn` in this history."""
        for span in self.spans:
            if span.end_lsn is None or lsn < span.end_lsn:
                return span.timeline
        raise AssertionError(self)

    def switch_lsn(self, timeline: int) -> Lsn | None:
        """Return the LSN where this history left `timeline`; None if it never did, or was never on it."""
        return next((span.end_lsn for span in self.spans if span.timeline == timeline), None)

    def fork_before(self, timeline: int, lsn: int) -> Lsn | None:
        """Return where this history left `timeline`, if WAL of `timeline` up to `lsn` is not part of it; else None."""
        fork_lsn = self.switch_lsn(timeline)
        return fork_lsn if fork_lsn is not None and fork_lsn < lsn else None

    def contains(self, timeline: int, lsn: int) -> bool:
        """Return whether WAL of `timeline` up to `lsn` is part of this history."""
        return timeline in self and self.fork_before(timeline, lsn) is None

    def __contains__(self, timeline: object) -> bool:
        return any(span.timeline == timeline for span in self.spans)


def parse_history(text: str, timeline: int) -> TimelineHistory:
    """Return the history in the file of `timeline`: lines of `parent <tab> switch LSN <tab> reason`."""
    spans: list[TimelineSpan] = []
    begin = Lsn(0)
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        where = f"{history_name(timeline)}, line {number}"
        match content.split(None, 2):
            case [parent_text, lsn_text, *_] if _TIMELINE.fullmatch(parent_text):
                parent = int(parent_text)
            case _:
                raise BadHistory(f"{where}: not a timeline and an LSN")
        try:
            end = parse_lsn(lsn_text)
        except InvalidLsn as error:
            raise BadHistory(f"{where}: {error}") from error
        if (spans and parent <= spans[-1].timeline) or not 0 < parent < timeline:
            raise BadHistory(f"{where}: timeline {parent} is out of order")
        if end < begin:
            raise BadHistory(f"{where}: {format_lsn(end)} is before the switch in the previous line")
        spans.append(TimelineSpan(TimelineId(parent), begin, end))
        begin = end
    spans.append(TimelineSpan(TimelineId(timeline), begin, None))
    return TimelineHistory(tuple(spans))
