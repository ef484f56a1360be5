"""Reads WAL from a folder of segment files: an archive, a spool of pg_receivewal, a copy of pg_wal.

Such a folder contains whole segments of one or several timelines, `.history` files that describe their forks,
`.partial` segments (the end of a timeline, or one that is being received), `.backup` labels, and other files; each of
them plain or compressed (`segment_file`). The first segment of a timeline also contains the bytes of its parent before
the switch, so it is preferred to the parent's segment of that number.

Segments may be missing, short, or (in a copy of pg_wal) recycled: renamed for future use with old contents. A file that
is missing or recycled at the end is the end of WAL; if real WAL follows it, it is a hole, or damage.
"""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tidemark.io.archive.segment_file import DamagedFile, open_unpacked, skip, wal_name
from tidemark.model.errors import ConfigError, CorruptWal, WalGap
from tidemark.model.lsn import Lsn, SegmentNo, SystemIdentifier, TimelineId, format_lsn
from tidemark.wal.segments import (
    HISTORY_BYTES_MAX,
    SLICE_BYTES_MAX,
    FileKind,
    TimelineHistory,
    WalSlice,
    file_kind,
    history_name,
    is_segment_size,
    parse_history,
    parse_segment_name,
    segment_of,
    segment_start,
)
from tidemark.wal.versions import LONG_PAGE_HEADER_BYTES, PAGE_BYTES, UnsupportedMajor, WalFormat, wal_format_of_magic

READ_BYTES = 1 << 20  # bytes of a WAL slice: large enough for the disk, small enough for the cache
_LONG_HEADER = struct.Struct("<HHIQI4xQII")  # magic, info, tli, pageaddr, rem_len, sysid, seg_size, blcksz
_LONG_HEADER_FLAG = 2


class NoWal(ConfigError):
    """A folder without any segment."""

    hint = "give the folder that contains files such as 000000010000000000000001"


_NOT_YET = (
    "the node archives a segment when it is full or switched (pg_switch_wal()): run the command again later, choose an "
    "earlier start, or restore the missing segments from another copy of the archive"
)


class Hole(WalGap):
    """Segments are missing before later ones."""

    hint = "restore the missing segments from another copy of the archive"


class BadSegment(CorruptWal):
    """A segment file that is short, damaged or from another cluster."""

    hint = "fetch the file again from the node or another copy of the archive; archive with a rename at the end"


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The long header of a segment's first page."""

    format: WalFormat
    timeline: TimelineId
    page_lsn: Lsn
    system_identifier: SystemIdentifier
    segment_bytes: int


class ArchiveFolder:
    """The segments of a folder as one contiguous stream along one history of timelines."""

    def __init__(
        self,
        folder: Path,
        timeline: TimelineId | None = None,
        *,
        complete_only: bool = False,
        of: SystemIdentifier | None = None,
        since: tuple[TimelineId, Lsn] | None = None,
    ) -> None:
        """List `folder`; follow `timeline`, or the latest one found.

        `complete_only`: an archive with complete segments only. `.partial` files are ignored, since their end may be
        incomplete, and recycled segments count as damage. `of`: the cluster, if known; a damaged segment does not
        identify it. `since`: how far WAL was read; earlier segments may be ignored if others identify the cluster.
        """
        self.folder = folder
        self._complete_only = complete_only
        kinds = (FileKind.SEGMENT,) if complete_only else (FileKind.PARTIAL, FileKind.SEGMENT)
        files = _list(folder)
        for listed in (files,) if since is None else (_following(files, *since), files):
            names = _names(listed)
            segments = [names[name] for name in names if file_kind(name) in kinds]
            first = _identifying_header(folder, segments, of)
            if first is not None and of in (None, first.system_identifier):
                break
        if first is None:
            for file in segments:
                _check_major(folder / file)
            raise NoWal(f"{folder} contains no WAL segment")
        self.segment_bytes = first.segment_bytes
        self.system_identifier = first.system_identifier
        self.format = first.format
        self._files = _files(names, kinds, self.segment_bytes)
        self._histories = {name: file for name, file in names.items() if file_kind(name) is FileKind.HISTORY}
        segments_of = {found for found, _ in self._files}
        self._timelines = segments_of | {TimelineId(int(name[:8], 16)) for name in self._histories}
        self.history = self._history(timeline or max(self._timelines))  # the latest, as recovery does

    def follow_through(self, timeline: TimelineId, lsn: Lsn) -> bool:
        """Follow the latest timeline that contains WAL of `timeline` up to `lsn`; return whether there is one."""
        for found in sorted(self._timelines, reverse=True):
            history = self.history if found == self.history.timeline else self._history(found)
            if history.contains(timeline, lsn):
                self.history = history
                return True
        return False

    def last_segment(self, timeline: TimelineId) -> SegmentNo | None:
        """Return the last segment of one timeline, also of one that is not followed; None if there is none."""
        return max((number for found, number in self._files if found == timeline), default=None)

    def first_lsn(self) -> Lsn:
        """Return the first LSN in the folder on the followed history."""
        numbers = (number for timeline, number in self._files if timeline in self.history)
        return segment_start(min(numbers), self.segment_bytes)

    def last_lsn(self) -> Lsn:
        """Return the end of the last segment in the folder on the followed history."""
        numbers = (number for timeline, number in self._files if timeline in self.history)
        return segment_start(max(numbers) + 1, self.segment_bytes)

    def read(self, start_lsn: Lsn) -> Iterator[WalSlice]:
        """Yield WAL from `start_lsn` to the folder's last WAL; raise `Hole` or `BadSegment` at a gap or damage."""
        lsn = start_lsn
        for piece in self.read_what_is_there(start_lsn):
            yield piece
            lsn = piece.end_lsn
        if lsn == start_lsn:
            raise Hole(f"WAL from {format_lsn(lsn)} on is not in {self.folder}", hint=_NOT_YET)

    def read_what_is_there(self, start_lsn: Lsn) -> Iterator[WalSlice]:
        """Yield WAL from `start_lsn` on, perhaps none; raise `Hole` if WAL is missing before later segments."""
        lsn = start_lsn
        while (found := self._file_at(lsn)) is not None:
            before = lsn
            for piece in self._read_file(*found, lsn):
                yield piece
                lsn = piece.end_lsn
            if lsn == before:
                break
        behind = self.next_wal_after(lsn)
        if behind is not None:
            raise Hole(f"WAL from {format_lsn(lsn)} to {format_lsn(behind)} is not in {self.folder}")

    def damage(self, lsn: Lsn, reason: str) -> BadSegment | None:
        """Return the error for invalid bytes at `lsn`; None if they are the end of WAL."""
        if not self._complete_only and self.next_wal_after(lsn) is None:
            return None
        return BadSegment(f"{self.name_at(lsn)}: invalid WAL at {format_lsn(lsn)}: {reason}")

    def name_at(self, lsn: Lsn) -> str:
        """Return the name of the file that contains the byte at `lsn`, or the folder's name if none does."""
        found = self._file_at(lsn)
        return found[0].name if found else str(self.folder)

    def next_wal_after(self, lsn: Lsn) -> Lsn | None:
        """Return the start of the next valid segment after that of `lsn`; None if there is none."""
        number = segment_of(lsn, self.segment_bytes)
        for later in sorted({later for timeline, later in self._files if timeline in self.history and later > number}):
            start_lsn = segment_start(later, self.segment_bytes)
            found = self._file_at(start_lsn)
            header = _header(found[0]) if found else None
            if header is not None and header.page_lsn == start_lsn:
                return start_lsn
        return None

    def _history(self, timeline: TimelineId) -> TimelineHistory:
        name = self._histories.get(history_name(timeline))
        if name is None:
            return parse_history("", timeline)
        with open_unpacked(self.folder / name) as file:
            return parse_history(file.read(HISTORY_BYTES_MAX).decode(errors="replace"), timeline)

    def _file_at(self, lsn: Lsn) -> tuple[Path, TimelineId] | None:
        """Return the file with the byte at `lsn`: of the latest timeline, whose segment has its parent's bytes too."""
        number = segment_of(lsn, self.segment_bytes)
        end_lsn = segment_start(number + 1, self.segment_bytes)
        oldest = self.history.timeline_at(lsn)
        for span in reversed(self.history.spans):
            if span.timeline >= oldest and span.begin_lsn < end_lsn:
                name = self._files.get((span.timeline, number))
                if name is not None:
                    return self.folder / name, span.timeline
        return None

    def _read_file(self, path: Path, timeline: TimelineId, lsn: Lsn) -> Iterator[WalSlice]:
        """Yield a segment's WAL from `lsn` up to its end or the end of `timeline`."""
        start_lsn = segment_start(segment_of(lsn, self.segment_bytes), self.segment_bytes)
        end_lsn = min(Lsn(start_lsn + self.segment_bytes), self.history.switch_lsn(timeline) or Lsn(1 << 64))
        with ExitStack() as stack:
            try:
                file = stack.enter_context(open_unpacked(path))
            except FileNotFoundError:
                return  # removed since the folder was listed; a hole if later segments exist
            head = file.read(LONG_PAGE_HEADER_BYTES)
            if not self._is_real(path, head, start_lsn):
                return
            ahead = head[lsn - start_lsn :]
            skip(file, lsn - start_lsn - len(head))
            while lsn < end_lsn:
                at_timeline = self.history.timeline_at(lsn)
                switch_lsn = self.history.switch_lsn(at_timeline) or end_lsn
                size = min(READ_BYTES, end_lsn - lsn, switch_lsn - lsn)
                data, ahead = ahead[:size] or file.read(size), ahead[size:]
                if not data:
                    if wal_name(path.name).endswith(".partial"):
                        return
                    raise BadSegment(
                        f"{path.name} is truncated: {lsn - start_lsn} of {self.segment_bytes} bytes, "
                        f"WAL ends at {format_lsn(lsn)}"
                    )
                yield WalSlice(lsn, data, at_timeline)
                lsn = Lsn(lsn + len(data))

    def _is_real(self, path: Path, head: bytes, start_lsn: Lsn) -> bool:
        """Return whether a segment contains the WAL of its name; raise `BadSegment` if it must but does not."""
        header = parse_segment_header(head)
        if header is not None and header.system_identifier != self.system_identifier:
            raise BadSegment(
                f"{path.name} belongs to cluster {header.system_identifier}, not to {self.system_identifier}"
            )
        if header is not None and header.page_lsn == start_lsn:
            return True
        is_short = len(head) < LONG_PAGE_HEADER_BYTES
        if not is_short and not self._complete_only and self.next_wal_after(start_lsn) is None:
            return False  # recycled or preallocated: the end of WAL in a copy of pg_wal
        reason = "its first page is damaged" if header is None else f"it begins at {format_lsn(header.page_lsn)}"
        if is_short:
            reason = f"it is truncated: {len(head)} of {self.segment_bytes} bytes"
        raise BadSegment(f"{path.name} does not contain the WAL at {format_lsn(start_lsn)}: {reason}")


def parse_segment_header(head: bytes) -> SegmentHeader | None:
    """Return the header of a segment's first page; None if the page has no valid one."""
    if len(head) < LONG_PAGE_HEADER_BYTES:
        return None
    magic, info, timeline, page_lsn, _, identifier, segment_bytes, _ = _LONG_HEADER.unpack_from(head)
    if not info & _LONG_HEADER_FLAG or not is_segment_size(segment_bytes):
        return None
    try:
        fmt = wal_format_of_magic(magic)
    except UnsupportedMajor:
        return None
    return SegmentHeader(fmt, TimelineId(timeline), Lsn(page_lsn), SystemIdentifier(identifier), segment_bytes)


def _identifying_header(folder: Path, segments: Sequence[str], of: SystemIdentifier | None) -> SegmentHeader | None:
    """Return the header that determines the folder's cluster and the size of its segments."""
    first = None
    for file in segments:
        try:
            header = _header(folder / file)
        except DamagedFile:
            continue  # reported when the file is read
        if header is not None and of in (None, header.system_identifier):
            return header
        first = first or header
    return first


def _header(path: Path) -> SegmentHeader | None:
    return parse_segment_header(_head(path))


def _head(path: Path) -> bytes:
    try:
        with open_unpacked(path) as file:
            return file.read(LONG_PAGE_HEADER_BYTES)
    except FileNotFoundError:
        return b""  # removed since the folder was listed


def _check_major(path: Path) -> None:
    """Raise `UnsupportedMajor` if a file is WAL of a major that is not supported."""
    head = _head(path)
    if len(head) == LONG_PAGE_HEADER_BYTES:
        magic, info, *_, segment_bytes, page_bytes = _LONG_HEADER.unpack(head)
        if info & _LONG_HEADER_FLAG and is_segment_size(segment_bytes) and page_bytes == PAGE_BYTES:
            try:
                wal_format_of_magic(magic)
            except UnsupportedMajor as error:
                raise UnsupportedMajor(f"{path}: {error}") from error


def _list(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.is_file()]
    except OSError as error:
        raise NoWal(f"cannot list {folder}: {error.strerror}") from error


def _names(files: list[str]) -> Mapping[str, str]:
    """Map the server's file names to the files; a plain file is preferred to a compressed one."""
    named = {wal_name(file): file for file in sorted(files, key=len, reverse=True)}
    return dict(sorted(named.items()))


def _following(files: list[str], timeline: TimelineId, lsn: Lsn) -> list[str]:
    """Return the files of WAL that follows, by the timeline and the upper half of the LSN in their names.

    These are 8 digits each; comparing a hundred thousand names takes a small part of the time of parsing them. One
    segment of the timeline itself is included, since the latest timeline in the folder is the one to follow.
    """
    read, upper = f"{timeline:08X}", f"{lsn >> 32:08X}"
    histories = [file for file in files if file[8:9] == "."]
    segments = [file for file in files if file[8:9] != "." and (file[8:16] >= upper or file[:8] > read)]
    of_read = (file for file in files if file[:8] == read and file_kind(wal_name(file)) is FileKind.SEGMENT)
    return [*histories, *segments, *islice(of_read, 1)]


def _files(
    names: Mapping[str, str], kinds: tuple[FileKind, ...], segment_bytes: int
) -> Mapping[tuple[TimelineId, SegmentNo], str]:
    """Return the segments by timeline and number; a whole one is preferred to a partial one."""
    found: dict[tuple[TimelineId, SegmentNo], str] = {}
    for wanted in kinds:
        for name, file in names.items():
            key = parse_segment_name(name.removesuffix(".partial"), segment_bytes)
            if file_kind(name) is wanted and key is not None:
                found[key] = file
    return found


def read_between(archive: ArchiveFolder, start_lsn: Lsn, end_lsn: Lsn) -> Iterator[WalSlice]:
    """Yield the WAL of [start_lsn, end_lsn) from an archive, in slices; raise `Hole` if it is incomplete."""
    lsn = start_lsn
    for piece in archive.read(start_lsn):
        data = memoryview(piece.data)[: end_lsn - piece.start_lsn]
        for at in range(0, len(data), SLICE_BYTES_MAX):
            yield WalSlice(Lsn(piece.start_lsn + at), data[at : at + SLICE_BYTES_MAX], piece.timeline)
        lsn = Lsn(piece.start_lsn + len(data))
        if lsn == end_lsn:
            return
    raise Hole(f"WAL from {format_lsn(lsn)} to {format_lsn(end_lsn)} is not in {archive.folder}")
