"""Which folders any program lists, and which of their files it opens, by inotify(7)."""

import ctypes
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

IN_ACCESS, IN_OPEN, IN_ISDIR = 0x1, 0x20, 0x40000000  # a folder is accessed when its entries are read
EVENT = struct.Struct("iIII")


class WatchedFolders:
    """The events of some folders since the last question."""

    def __init__(self, folders: list[Path]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK)
        for folder in folders:
            added = libc.inotify_add_watch(self._descriptor, os.fsencode(folder), IN_ACCESS | IN_OPEN)
            assert added >= 0, ctypes.get_errno()

    def listings(self) -> int:
        """Return how often a folder was listed."""
        return sum(bool(mask & IN_ACCESS and mask & IN_ISDIR and not name) for mask, name in self._events())

    def opened(self, suffix: str) -> set[str]:
        """Return the names of the opened files that end in `suffix`."""
        return {name for mask, name in self._events() if mask & IN_OPEN and name.endswith(suffix)}

    def _events(self) -> list[tuple[int, str]]:
        found = list[tuple[int, str]]()
        while True:
            try:
                events = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return found
            at = 0
            while at < len(events):
                _, mask, _, length = EVENT.unpack_from(events, at)
                at += EVENT.size
                found.append((mask, os.fsdecode(events[at : at + length].rstrip(b"\0"))))
                at += length

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Watch no longer."""
        os.close(self._descriptor)
