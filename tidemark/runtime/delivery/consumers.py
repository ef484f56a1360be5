"""Built-in consumers: JSON lines to a file or standard output, and one that discards all changes (benchmarks).

They implement `GroupConsumer` of `tidemark.engine.ports`.
"""

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tidemark.decode.render.jsonl import JsonLines
from tidemark.io.process.config import STANDARD_OUTPUT
from tidemark.model.change import ChangeGroup, SchemaEvent
from tidemark.model.errors import ConsumerFailed
from tidemark.model.lsn import Oid
from tidemark.model.position import Epoch, Partition, Pointer

BLOCK_BYTES = 1 << 16  # that are searched for the end of a line at a time
LINE_BEGIN = b'{"op":'
FILE_MODE = 0o600  # of a new file: it has values of rows
WRITABLE = "check deliver.jsonl_file and the free space there; unconfirmed changes are delivered again after a restart"


class NullConsumer:
    """Accepts everything and keeps only counts."""

    def __init__(self) -> None:
        self.rows = 0
        self.groups = 0

    def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
        """Do nothing."""

    def on_schema(self, event: SchemaEvent) -> None:
        """Do nothing."""

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
        """Count."""
        for group in groups:
            self.rows += group.row_count
            self.groups += 1
        return True

    def on_revoked(self, partition: Partition) -> bool | None:
        """Confirm nothing: all accepted groups are confirmed."""

    def alive(self) -> bool:
        """Return true."""
        return True

    def stop(self) -> None:
        """Do nothing."""


class JsonlConsumer(NullConsumer):
    """Writes one JSON line for each change; a group is confirmed once its lines are written.

    At least once: lines of a group that was written but not confirmed before a kill are written again. A line of which
    only a part was written, before a kill or on a full disk, is removed at the next start.
    """

    def __init__(self, file: str, databases: Mapping[Oid, str]) -> None:
        super().__init__()
        self._render = JsonLines(databases)
        self._file = file
        self._stream: BinaryIO | None = None

    def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
        """Open the file. NB: a pipe without a reader waits here, where the watch on consumers sees it."""
        super().on_assigned(partition, epoch, start)
        if self._file == STANDARD_OUTPUT:
            self._stream = sys.stdout.buffer
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._stream = os.fdopen(os.open(self._file, flags, FILE_MODE), "ab")
            if stat.S_ISREG(os.fstat(self._stream.fileno()).st_mode):
                _end_last_line(self._file, self._stream)
        except OSError as error:
            raise ConsumerFailed(f"cannot write {self._file}: {error.strerror}", hint=WRITABLE) from error

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
        """Write the lines of all offered groups."""
        assert self._stream is not None, "it was never assigned"
        try:
            for group in groups:
                self._stream.writelines(self._render.lines(group))
                self.rows += group.row_count
                self.groups += 1
            self._stream.flush()
        except OSError as error:
            raise ConsumerFailed(f"cannot write to {self._file}: {error.strerror}", hint=WRITABLE) from error
        return True

    def stop(self) -> None:
        """Close the file."""
        if self._stream is not None and self._file != STANDARD_OUTPUT:
            self._stream.close()


def _end_last_line(path: str, stream: BinaryIO) -> None:
    """Remove the part of a line at the end of a file; end it instead if it is no line of ours."""
    with Path(path).open("rb") as file:
        begin = end = file.seek(0, os.SEEK_END)
        found = -1
        while begin and found < 0:
            size = min(BLOCK_BYTES, begin)
            begin = file.seek(begin - size)
            found = file.read(size).rfind(b"\n")
        line = begin + found + 1
        file.seek(line)
        first = file.read(len(LINE_BEGIN))
    if line == end:
        return
    if LINE_BEGIN.startswith(first):
        os.truncate(path, line)
    else:
        stream.write(b"\n")
        stream.flush()
