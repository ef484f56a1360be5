"""WAL that waits on disk while the first copy runs: STATE/copy, contiguous, bounded.

    wal-<timeline>-<start LSN>    up to FILE_BYTES of one timeline, the next file begins where it ends
    boot                          the boot during which the last file was written

Without a slot the node may recycle WAL that is not received, so it is received and kept here. One thread writes, one
reads behind it. A file is fsynced when it is full; after a crash of the host the last one is dropped as untrusted.
"""

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tidemark.io.host.clock import boot_id
from tidemark.io.host.disk import write_all, writing
from tidemark.model.errors import InternalError, StateError
from tidemark.model.lsn import Lsn, TimelineId, format_lsn
from tidemark.wal.segments import SLICE_BYTES_MAX, WalSlice

FILE_BYTES = 64 << 20
_PREFIX = "wal-"
_NAME_PARTS = 3


@dataclass(slots=True)
class _File:
    path: Path
    timeline: TimelineId
    start_lsn: Lsn
    end_lsn: Lsn


class SpoolDamaged(StateError):
    """A spool whose files are not contiguous."""

    hint = "remove the files in STATE/copy: their WAL is streamed again, if the node still has it"


class WalSpool:
    """The spool of one capture; also a sink for the network thread, as the ring is."""

    def __init__(self, folder: Path, bytes_max: int, file_mode: int) -> None:
        self.capacity = bytes_max
        self._folder = folder
        self._file_mode = file_mode
        self._files = self._found()
        self._descriptor = -1
        self._reading: tuple[Path, int] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether the spool is empty."""
        return not self._files

    @property
    def start_lsn(self) -> Lsn:
        """LSN of the first byte; undefined for an empty spool."""
        return self._files[0].start_lsn

    @property
    def write_lsn(self) -> Lsn:
        """LSN of the next byte to be written."""
        return self._files[-1].end_lsn

    @property
    def timeline(self) -> TimelineId:
        """The timeline at its end."""
        return self._files[-1].timeline

    @property
    def free_bytes(self) -> int:
        """Bytes that are free."""
        return self.capacity - (self.write_lsn - self.start_lsn if self._files else 0)

    def begin(self, lsn: Lsn, timeline: TimelineId) -> None:
        """Empty the spool, and start it at `lsn`."""
        self.drop_below(None)
        self._begin_file(lsn, timeline)

    def put(self, wal_slice: WalSlice) -> None:
        """Append a slice; it must begin where the last one ended."""
        last = self._files[-1]
        if wal_slice.start_lsn != last.end_lsn:
            raise InternalError(
                f"WAL from {format_lsn(wal_slice.start_lsn)} arrived instead of {format_lsn(last.end_lsn)}"
            )
        if wal_slice.timeline != last.timeline or last.end_lsn - last.start_lsn >= FILE_BYTES:
            self._end_file()
            self._begin_file(wal_slice.start_lsn, wal_slice.timeline)
            last = self._files[-1]
        if self._descriptor < 0:
            self._descriptor = os.open(last.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        with writing(last.path):
            write_all(self._descriptor, wal_slice.data)
        # NB: assigned last, since the reader compares with it.
        last.end_lsn = wal_slice.end_lsn

    def read(self, lsn: Lsn) -> WalSlice | None:
        """Return the slice at `lsn`, at most one message long; None at the spool's end."""
        for file in tuple(self._files):
            if file.start_lsn <= lsn < file.end_lsn:
                length = min(SLICE_BYTES_MAX, file.end_lsn - lsn)
                return WalSlice(lsn, self._pread(file.path, length, lsn - file.start_lsn), file.timeline)
        return None

    def drop_below(self, lsn: Lsn | None) -> None:
        """Remove the files that end at or below `lsn`; None: all."""
        while self._files and (lsn is None or self._files[0].end_lsn <= lsn):
            if len(self._files) == 1:
                self._end_file()
            self._files.pop(0).path.unlink(missing_ok=True)

    def cut_behind(self, lsn: Lsn) -> None:
        """Remove the WAL behind `lsn`, which belongs to a dead branch."""
        self.close()
        while self._files and self._files[-1].start_lsn >= lsn:
            self._files.pop().path.unlink()
        if self._files and self._files[-1].end_lsn > lsn:
            last = self._files[-1]
            with writing(last.path):
                os.truncate(last.path, lsn - last.start_lsn)
            last.end_lsn = lsn

    def close(self) -> None:
        """Close the files."""
        self._end_file()
        if self._reading is not None:
            os.close(self._reading[1])
            self._reading = None

    def _pread(self, path: Path, length: int, at: int) -> bytes:
        if self._reading is None or self._reading[0] != path:
            if self._reading is not None:
                os.close(self._reading[1])
            self._reading = (path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        data = os.pread(self._reading[1], length, at)
        if len(data) != length:
            raise SpoolDamaged(f"{path} ends at byte {at + len(data)}, but {at + length} bytes were written")
        return data

    def _begin_file(self, lsn: Lsn, timeline: TimelineId) -> None:
        path = self._folder / f"{_PREFIX}{timeline:08X}-{lsn:016X}"
        for name, content in ((path, b""), (self._folder / "boot", boot_id().encode())):
            with writing(name):
                descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, self._file_mode)
                try:
                    write_all(descriptor, content)
                finally:
                    os.close(descriptor)
        self._files.append(_File(path, timeline, lsn, lsn))

    def _end_file(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                with writing(self._files[-1].path):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _found(self) -> list[_File]:
        files: list[_File] = []
        for path in self._folder.glob(f"{_PREFIX}*"):
            parts = path.name.split("-")
            if len(parts) != _NAME_PARTS:
                raise SpoolDamaged(f"{path} is not a file of Tidemark")
            start = Lsn(int(parts[2], 16))
            files.append(_File(path, TimelineId(int(parts[1], 16)), start, Lsn(start + path.stat().st_size)))
        files.sort(key=lambda file: (file.start_lsn, file.end_lsn))
        boot = self._folder / "boot"
        if files and (not boot.exists() or boot.read_text(encoding="ascii") != boot_id()):
            files.pop().path.unlink()
        for before, after in pairwise(files):
            if before.end_lsn != after.start_lsn:
                raise SpoolDamaged(f"{before.path} ends at {format_lsn(before.end_lsn)}, not where {after.path} begins")
        return files
