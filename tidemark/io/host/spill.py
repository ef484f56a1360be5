"""Files for the parts of large transactions that do not fit into memory.

The files belong to one user of the folder alone: they are created 0600, their names contain the pid, a random word
and a number, and they are worthless after a restart, when the same WAL is read again. Files of a dead process, or
of an earlier capture of this process, are removed when the folder is opened.
"""

import os
import uuid
from pathlib import Path

from tidemark.io.host.clock import process_start_ticks
from tidemark.io.host.disk import StateFull, is_full
from tidemark.model.errors import StateError

_SUFFIX = ".spill"
_MODE = 0o600


class SpillFailed(StateError):
    """A part of a large transaction could not be written or read."""

    hint = "free space on the disk of the state folder, or raise decode.memory_bytes"


class SpillFolder:
    """Stores contents by handle, one file each; a `SpillPort` of the decoder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._word = uuid.uuid4().hex[:8]
        self._next_handle = 0
        self._sizes: dict[int, int] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for file in folder.glob(f"*{_SUFFIX}"):
                if _is_left_over(file.name):
                    file.unlink(missing_ok=True)
        except OSError as error:
            if is_full(error):
                raise StateFull(f"no space for {folder}: {error.strerror}") from error
            raise SpillFailed(f"cannot use {folder} for spilled transactions: {error}") from error

    @property
    def byte_count(self) -> int:
        """Bytes on disk now."""
        return sum(self._sizes.values())

    def write(self, *parts: bytes | bytearray) -> int:
        """Store the concatenated `parts`; return the handle for reading them."""
        self._next_handle += 1
        handle = self._next_handle
        path, size = self._path(handle), sum(map(len, parts))
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(parts)
        except OSError as error:
            path.unlink(missing_ok=True)
            if is_full(error):
                raise StateFull(
                    f"no space for {size} bytes in {path}: {error.strerror}", hint=SpillFailed.hint
                ) from error
            raise SpillFailed(f"cannot write {size} bytes to {path}: {error}") from error
        self._sizes[handle] = size
        return handle

    def read(self, handle: int) -> bytes:
        """Return the content of `handle`."""
        path = self._path(handle)
        try:
            return path.read_bytes()
        except OSError as error:
            raise SpillFailed(f"cannot read {path} back: {error}") from error

    def release(self, handle: int) -> None:
        """Remove the content of `handle`."""
        if self._sizes.pop(handle, None) is not None:
            self._path(handle).unlink(missing_ok=True)

    def _path(self, handle: int) -> Path:
        return self._folder / f"{os.getpid()}-{self._word}-{handle}{_SUFFIX}"


def _is_left_over(name: str) -> bool:
    """Return whether a file's owner is gone: a fenced process that has not detected this yet still reads its files."""
    pid, _, rest = name.partition("-")
    if not pid.isdecimal() or not rest:
        return False  # not our file
    return int(pid) == os.getpid() or process_start_ticks(int(pid)) is None
