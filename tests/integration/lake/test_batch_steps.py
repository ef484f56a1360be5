"""What a batch of small changes does not do: it starts no process, and lists no folder of a log or replica."""

import ctypes
import os
import struct
import sys
from pathlib import Path

from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.scripted_table import ScriptedTable
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.sinks.sinks import Lake

BATCHES = 5
PYTHON = {"os.listdir", "os.scandir", "os.fork", "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen"}
IN_ACCESS, IN_ISDIR = 0x1, 0x40000000  # inotify(7): a folder is accessed when its entries are read
EVENT = struct.Struct("iIII")


class AuditedCalls:
    """Counts calls of Python while it is active; an audit hook stays for the life of the process."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.is_active = False
        sys.addaudithook(self._record)

    def _record(self, event: str, _args: tuple[object, ...]) -> None:
        if self.is_active and event in PYTHON:
            self.seen.append(event)


class WatchedFolders:
    """Counts how often any program lists one of some folders."""

    def __init__(self, folders: list[Path]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK)
        for folder in folders:
            assert libc.inotify_add_watch(self._descriptor, os.fsencode(folder), IN_ACCESS) >= 0, ctypes.get_errno()

    def listings(self) -> int:
        """Return the number since the last call."""
        found = 0
        while True:
            try:
                events = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return found
            at = 0
            while at < len(events):
                _, mask, _, length = EVENT.unpack_from(events, at)
                found += bool(mask & IN_ISDIR and not length)
                at += EVENT.size + length

    def close(self) -> None:
        """Watch no longer."""
        os.close(self._descriptor)


def test_a_small_batch_starts_no_process_and_lists_no_folder(tmp_path: Path) -> None:
    table, lake, calls = ScriptedTable(), Lake(str(tmp_path), IDENTITY, shape_of, constants_of), AuditedCalls()

    def change(key: int) -> None:
        begun = len(table.items)
        table.commit()
        table.insert({1: key, 2: "new", 3: None})
        table.update((1,), {2: f"changed {key}"})
        table.cut()
        lake.apply(batch(table.delivered()[begun:]))

    for key in (1, 2, 3):
        change(key)
    folders = [log for log in tmp_path.rglob("_delta_log") if log.parent.name in ("log", "replica")]
    assert len(folders) == 2
    watched = WatchedFolders([*folders, *(log.parent for log in folders)])
    list(folders[0].iterdir())
    assert watched.listings() > 0, "the watch works"
    calls.is_active = True
    for key in range(10, 10 + BATCHES):
        change(key)
    calls.is_active = False
    assert (calls.seen, watched.listings()) == ([], 0)
    watched.close()
