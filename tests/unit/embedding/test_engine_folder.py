"""The state folder of an engine."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tidemark.embedding.engine_folder import open_state
from tidemark.embedding.library_log import LibraryLog
from tidemark.embedding.start_deadline import StartDeadline
from tidemark.io.host.clock import SystemClock
from tidemark.io.process.config import Config
from tidemark.io.state.locking.locks import AlreadyRunning, RoleLock
from tidemark.io.state.state_folder import StateFolder


def test_the_state_of_an_engine_of_this_process_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.make()
    deadline = StartDeadline(1.0, SystemClock())
    with RoleLock.acquire(folder, "sidecar") as lock, ExitStack() as stack:
        with pytest.raises(AlreadyRunning, match=f"^this process already has an engine on {folder.root}$") as raised:
            open_state(stack, folder.root, Config(), deadline, LibraryLog())
        assert raised.value.hint == "stop that engine first, or give each engine its own state"
        text = folder.lock("sidecar").read_text()
        folder.lock("sidecar").write_text(text.replace(f'"pid": {lock.owner.pid}', '"pid": 1'))
        with pytest.raises(AlreadyRunning, match=r"a sidecar already runs on .*: process 1 on "):
            open_state(stack, folder.root, Config(), deadline, LibraryLog())
