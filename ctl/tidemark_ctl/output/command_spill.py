"""A command's folder for the parts of large transactions: one for each process, below STATE/spill.

The sidecar's own spilled transactions are beside it; several commands may run at once.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.io.host.clock import process_start_ticks
from tidemark.io.host.spill import SpillFolder
from tidemark.io.state.state_folder import StateFolder

_PREFIX = "command-"


@contextmanager
def folder_of_command(folder: StateFolder) -> Iterator[Path]:
    """Yield the path of a folder that is removed at the end, together with the folders of killed commands."""
    for left_over in folder.spill.glob(f"{_PREFIX}*"):
        pid = left_over.name.removeprefix(_PREFIX)
        if pid.isdecimal() and process_start_ticks(int(pid)) is None:
            shutil.rmtree(left_over, ignore_errors=True)
    own = folder.spill / f"{_PREFIX}{os.getpid()}"
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


@contextmanager
def spill_of_command(folder: StateFolder) -> Iterator[SpillFolder]:
    """Yield the spill of a command, in its own folder."""
    with folder_of_command(folder) as own:
        yield SpillFolder(own)
