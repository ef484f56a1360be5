"""Where the pipeline finds its capture: in a state folder of this host, or at an outbox server.

With a server, the pipeline needs nothing of the state folder. Its own files (the lock of its role, the record of its
end, Spark's checkpoint and helper programs) are then in a *runner folder*, private to its user.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tidemark.engine.selection import Selection
from tidemark.io.flight.flight_outbox import FlightOutbox
from tidemark.io.flight.remote_errors import ServerBusy, ServerUnreachable
from tidemark.io.flight.server_address import ServerAddress
from tidemark.io.flight.server_capture import ServerCapture
from tidemark.io.host.disk import writing
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics_ports import MetricsPorts, assigned_ports
from tidemark.io.process.run_record import ProcessRecord, RecordFile, StateRecord
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.outbox_use import check_is_used
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.locking.write_guard import reporting_stuck_writers
from tidemark.io.state.process_folder import ProcessFolder
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError
from tidemark.pipeline.landing.capture_port import CapturePort
from tidemark.pipeline.source.outbox_port import OutboxPort

STATE_HOME = "XDG_STATE_HOME"
SERVER_OUTAGE = (ServerUnreachable, ServerBusy)  # waiting helps


class BadRunnerFolder(ConfigError):
    """A runner folder that is not private to the user of the pipeline."""

    hint = "choose a folder that does not exist yet, or that only this user can access, with --runner-folder"


@dataclass(frozen=True, slots=True)
class OpenedCapture:
    """The capture of a pipeline, the folder of the pipeline's own files, and the record of its ends."""

    outbox: OutboxPort
    capture: CapturePort
    folder: ProcessFolder
    record: ProcessRecord
    _closing: ExitStack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()


class CapturePlace(Protocol):
    """A state folder, or an outbox server."""

    @property
    def source(self) -> Mapping[str, str]:
        """Return the options of Spark's format that name the outbox."""
        ...

    @property
    def disk(self) -> Path:
        """Return the folder on whose disk the pipeline's own files are."""
        ...

    @property
    def ports(self) -> MetricsPorts | None:
        """Return the ports of metrics that are assigned to the capture on this host."""
        ...

    def check(self) -> None:
        """Raise `ServerUnreachable` or `ServerBusy` if the capture cannot be opened now."""
        ...

    def open(self) -> OpenedCapture:
        """Open the capture."""
        ...


@dataclass(frozen=True, slots=True)
class StatePlace:
    """The state folder of a capture, for pipelines on its host; it also has the pipelines' own files."""

    folder: StateFolder
    selection: Selection

    @property
    def source(self) -> Mapping[str, str]:
        """The options of Spark's format that name the outbox."""
        state = str(self.folder.root.absolute())
        return {"state": state, "sharedWithGroup": str(self.folder.shared_with_group).lower()}

    @property
    def disk(self) -> Path:
        """The folder on whose disk the pipeline's own files are."""
        return self.folder.root

    @property
    def ports(self) -> MetricsPorts | None:
        """The ports that `init` assigned."""
        return assigned_ports(self.folder)

    def check(self) -> None:
        """Do nothing: no server is in between."""

    def open(self) -> OpenedCapture:
        """Open the state."""
        guarded = reporting_stuck_writers(get_log("state"))
        with ExitStack() as stack:
            outbox = stack.enter_context(OutboxReader.open(self.folder, guarded=guarded))
            check_is_used(outbox)
            store = stack.enter_context(StateStore.open(self.folder, guarded=guarded))
            capture = StateCapture(store, self.selection)
            folder = ProcessFolder(self.folder.root.absolute(), self.folder.shared_with_group)
            return OpenedCapture(outbox, capture, folder, StateRecord(store), stack.pop_all())


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """An outbox server, and the runner folder; without one a folder in the state home of the user."""

    url: str
    token_file: Path | None
    tls_roots: Path | None
    runner_folder: Path | None
    role: str

    ports = None  # a service manager starts no processes of the capture on this host

    @property
    def source(self) -> Mapping[str, str]:
        """The options of Spark's format that name the outbox."""
        files = {"tokenFile": self.token_file, "tlsRoots": self.tls_roots}
        return {"server": self.url, **{name: str(path.absolute()) for name, path in files.items() if path is not None}}

    @property
    def disk(self) -> Path:
        """The folder on whose disk the pipeline's own files are."""
        return self.runner_folder or _captures_folder()

    def check(self) -> None:
        """Raise `ServerUnreachable` or `ServerBusy` if the server does not answer."""
        self._connect().close()

    def open(self) -> OpenedCapture:
        """Connect to the server; create the runner folder, or raise `BadRunnerFolder`."""
        with ExitStack() as stack:
            outbox = self._connect()
            stack.callback(outbox.close)
            identity = outbox.identity
            root = self.runner_folder or _captures_folder() / f"{identity.capture}-{identity.system_identifier}"
            folder = private_folder(root.absolute())
            record = RecordFile(folder.root / f"{self.role}-process.json", folder.file_mode)
            return OpenedCapture(outbox, ServerCapture(outbox), folder, record, stack.pop_all())

    def _connect(self) -> FlightOutbox:
        return FlightOutbox(ServerAddress.parse(self.url, self.token_file, self.tls_roots))


def private_folder(root: Path) -> ProcessFolder:
    """Create a folder that only this user can access; raise `BadRunnerFolder` for another one.

    The pipeline runs programs that it writes there.
    """
    folder = ProcessFolder(root)
    with writing(root):
        root.mkdir(mode=folder.folder_mode, parents=True, exist_ok=True)
        found = root.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode & 0o777 & ~folder.folder_mode:
        raise BadRunnerFolder(f"the runner folder {root} has mode {mode:04o} and the owner {found.st_uid}")
    return folder


def _captures_folder() -> Path:
    home = os.environ.get(STATE_HOME, "")
    try:
        return (Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "state") / "tidemark"
    except RuntimeError:
        raise BadRunnerFolder(
            "this user has no home folder for the files of the pipeline", hint="name a folder with --runner-folder"
        ) from None
