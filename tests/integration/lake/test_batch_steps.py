"""What a batch of small changes does not do: it starts no process, and lists no folder of a log or replica."""

import sys
from pathlib import Path

from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.scripted_table import ScriptedTable
from tests.support.processes.watched_folders import WatchedFolders
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.sinks.lake import Lake

BATCHES = 5
PYTHON = {"os.listdir", "os.scandir", "os.fork", "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen"}


class AuditedCalls:
    """Counts calls of Python while it is active; an audit hook stays for the life of the process."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.is_active = False
        sys.addaudithook(self._record)

    def _record(self, event: str, _args: tuple[object, ...]) -> None:
        if self.is_active and event in PYTHON:
            self.seen.append(event)


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
