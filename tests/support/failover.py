"""A node that archives, and both processes over one state folder: what fails over here is real."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.archiving import Archiving, archiving
from tests.support.captures import Sidecar
from tidemark.io.control import request
from tidemark.io.state import StateStore
from tidemark.model.change import GroupItem
from tidemark.model.mode import Stage
from tidemark.wire.control import Json
from tidemark.wire.state import Switch

MOVED_S = 60.0
POLL_S = 0.05
RING_BYTES = 4 << 20  # four of the node's segments
QUICK = {
    "TIDEMARK_ARCHIVE__SWITCH_S": "1",
    "TIDEMARK_REALTIME__RETURN_FIRST_S": "0.5",
    "TIDEMARK_REALTIME__RETURN_MAX_S": "2",
    "TIDEMARK_WATCHDOG__WATCHDOG_S": "3",
    "TIDEMARK_WATCHDOG__RESTART_S": "1",
    "TIDEMARK_MARKERS__CONFIRM_S": "0.5",
    "TIDEMARK_RING__BYTES_MAX": str(RING_BYTES),
    "TIDEMARK_METRICS__ARCHIVER_PORT": "0",
}


class Archiver(Sidecar):
    """The other process over the sidecar's state folder."""

    role = "archiver"


class Pair:
    """Sidecar and archiver of one database of an archiving node."""

    def __init__(self, node: Archiving, root: Path, *, copy: bool = False, **options: str) -> None:
        chosen = {"TIDEMARK_ARCHIVE__FOLDER": str(node.spool.folder), **QUICK, **options}
        self.archiving = node
        self.node = node.node
        self.sidecar = Sidecar(node.node, "postgres", root, copy=copy, **chosen)
        self.archiver = Archiver(node.node, "postgres", root, copy=copy, **chosen)

    def init(self) -> None:
        """Make the state."""
        self.sidecar.init()

    def start(self) -> None:
        """Start both."""
        self.archiver.start()
        self.sidecar.start()

    @property
    def stage(self) -> Stage:
        """The stage of the capture."""
        with StateStore.open(self.sidecar.folder) as store:
            return store.marks().stage

    def switches(self) -> tuple[Switch, ...]:
        """Return the moves so far."""
        with StateStore.open(self.sidecar.folder) as store:
            return store.view().switches.kept

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something holds; fail with both logs."""
        deadline = time.monotonic() + MOVED_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come: {self.told()}"
            time.sleep(POLL_S)

    def wait_for_stage(self, *stages: Stage) -> None:
        """Wait until the capture is in one of these stages."""
        self.wait_for(lambda: self.stage in stages, " or ".join(stage.value for stage in stages))

    def catch_up(self) -> list[GroupItem]:
        """Wait until what was written so far is in the outbox; return all changes ever."""
        try:
            return self.sidecar.catch_up(alive=False)
        except AssertionError as error:
            raise AssertionError(self.told()) from error

    def told(self) -> str:
        """Return the ends of both logs."""
        return "\n".join(
            f"--- {process.role}\n{process.log_path.read_text()[-3000:]}"
            for process in (self.sidecar, self.archiver)
            if process.log_path.exists()
        )

    def switch_off(self) -> dict[str, Json]:
        """Ask the sidecar to stop realtime."""
        return request(self.sidecar.folder.socket("sidecar"), {"command": "realtime-off"})

    def switch_on(self) -> dict[str, Json]:
        """Ask the sidecar to go on with realtime."""
        return request(self.sidecar.folder.socket("sidecar"), {"command": "realtime-on"})

    def close(self) -> None:
        """See that nothing is left running."""
        for process in (self.sidecar, self.archiver):
            if process.process is not None and process.running:
                os.kill(process.process.pid, signal.SIGCONT)
            process.close()


@contextmanager
def paired(root: Path, *, copy: bool = False, setup: str = "", **options: str) -> Iterator[Pair]:
    """Start a node that archives, run `setup` on it, and both processes over it."""
    # NB: in pytest's own folder the server's user may not write.
    with TemporaryDirectory(prefix="tm-") as folder, archiving(Path(folder)) as node:
        if setup:
            node.node.sql(setup)
        pair = Pair(node, root, copy=copy, **options)
        pair.init()
        try:
            pair.start()
            yield pair
        finally:
            pair.close()
