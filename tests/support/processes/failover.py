"""A node that archives, and both processes over one state folder, for real fail-overs."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.processes.captures import Sidecar
from tests.support.processes.waiting import wait_until
from tests.support.servers.archiving import ArchivingServer, archiving
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.process.control import request
from tidemark.io.process.marker_key import load_marker_key
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.change import GroupItem
from tidemark.model.message_prefix import MARKER_PREFIX
from tidemark.model.mode import Stage
from tidemark.model.position import NO_SEQUENCE
from tidemark.wal.page import Framer, Invalid, NeedMore
from tidemark.wal.rmgr import RM_LOGICALMSG, message
from tidemark.wire.control import Json
from tidemark.wire.marker import Instance, Marker, read_marker
from tidemark.wire.state.event_logs import Switch

MOVED_S = 120.0
RING_BYTES = 4 << 20  # four of the node's segments
QUICK = {  # except for the watchdog: on a busy machine a heartbeat can be seconds late
    "TIDEMARK_ARCHIVE__SWITCH_S": "1",
    "TIDEMARK_REALTIME__RETURN_FIRST_S": "0.5",
    "TIDEMARK_REALTIME__RETURN_MAX_S": "2",
    "TIDEMARK_WATCHDOG__RESTART_S": "1",
    "TIDEMARK_MARKERS__CONFIRM_S": "0.5",
    "TIDEMARK_RING__BYTES_MAX": str(RING_BYTES),
    "TIDEMARK_METRICS__ARCHIVER_PORT": "0",
}
HANGS_SOON = {"TIDEMARK_WATCHDOG__WATCHDOG_S": "3"}  # for tests of a process that hangs


def archived_messages(folder: Path) -> Iterator[bytes]:
    """Yield the contents of all messages with our prefix in an archive."""
    archive = ArchiveFolder(folder, complete_only=True)
    framer = Framer()
    for piece in archive.read_what_is_there(archive.first_lsn()):
        framer.feed(piece.start_lsn, piece.data)
        while not isinstance(block := framer.next_block(), NeedMore):
            assert not isinstance(block, Invalid), block
            for record in block.records(frozenset({RM_LOGICALMSG})):
                parsed = message.parse(record)
                if parsed is not None and parsed.prefix == MARKER_PREFIX.encode():
                    yield parsed.content


class Archiver(Sidecar):
    """The archiver over the sidecar's state folder."""

    role = "archiver"


class Pair:
    """Sidecar and archiver of one database of an archiving node."""

    def __init__(self, node: ArchivingServer, root: Path, *, copy: bool = False, **options: str) -> None:
        chosen = {"TIDEMARK_ARCHIVE__FOLDER": str(node.spool.folder), **QUICK, **options}
        self.archiving = node
        self.node = node.node
        self.sidecar = Sidecar(node.node, "postgres", root, copy=copy, **chosen)
        self.archiver = Archiver(node.node, "postgres", root, copy=copy, **chosen)

    def start(self) -> None:
        """Start both; the sidecar first, or the archiver might detect that it is missing."""
        self.sidecar.start()
        self.archiver.start()

    @property
    def stage(self) -> Stage:
        """The stage of the capture."""
        with StateStore.open(self.sidecar.folder) as store:
            return store.marks().stage

    def switches(self) -> tuple[Switch, ...]:
        """Return the switches so far."""
        with StateStore.open(self.sidecar.folder) as store:
            return store.view().switches.kept

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds; fail with both logs."""
        wait_until(condition, what, within_s=MOVED_S, reported=self.reported)

    def wait_for_stage(self, *stages: Stage) -> None:
        """Wait until the capture is in one of these stages."""
        self.wait_for(lambda: self.stage in stages, " or ".join(stage.value for stage in stages))

    def catch_up(self) -> list[GroupItem]:
        """Wait until everything written so far is in the outbox; return all changes ever."""
        try:
            return self.sidecar.catch_up(alive=False)
        except AssertionError as error:
            raise AssertionError(self.reported()) from error

    def reported(self) -> str:
        """Return the ends of both logs."""
        return "\n".join(
            f"--- {process.role}\n{process.log_path.read_text()[-3000:]}"
            for process in (self.sidecar, self.archiver)
            if process.log_path.exists()
        )

    def switch_off(self) -> dict[str, Json]:
        """Request the sidecar to stop realtime."""
        return request(self.sidecar.folder.socket("sidecar"), {"command": "realtime-off"})

    def switch_on(self) -> dict[str, Json]:
        """Request the sidecar to resume realtime."""
        return request(self.sidecar.folder.socket("sidecar"), {"command": "realtime-on"})

    def insert(self, *numbers: int) -> None:
        """Insert rows, a transaction each."""
        with self.node.connect() as session:
            for number in numbers:
                session.execute("INSERT INTO account VALUES (%s, %s)", (number, f"n{number}"))

    def emit(self, content: bytes) -> None:
        """Write a message with our prefix, as any session can."""
        with self.node.connect("postgres") as session:
            session.execute("SELECT pg_logical_emit_message(true, %s, %s::bytea)", (MARKER_PREFIX, content))

    def delivered(self) -> list[GroupItem]:
        """Return the content of the outbox."""
        with OutboxReader.open(self.sidecar.folder) as reader:
            return list(Sidecar.items(reader, NO_SEQUENCE, reader.head()))

    def wait_until_idle(self, *, time_outs: int) -> None:
        """Wait until the idle node has begun no segment for this number of seconds."""
        since_s, number = time.monotonic(), self.segment_number()

        def is_idle() -> bool:
            nonlocal since_s, number
            before, number = number, self.segment_number()
            if number != before:
                since_s = time.monotonic()
            return time.monotonic() - since_s > time_outs

        self.wait_for(is_idle, "an idle node")

    def segment_number(self) -> int:
        """Return the number of the segment that the node writes to."""
        (row,) = self.node.sql("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8 / setting::int8 "
                               "FROM pg_settings WHERE name = 'wal_segment_size'")  # fmt: skip
        return int(str(row[0]))

    def markers(self) -> list[Marker]:
        """Return the markers of this capture in all archived WAL."""
        self.archiving.switch()
        self.archiving.wait_until_archived()
        with StateStore.open(self.sidecar.folder) as store:
            identity = store.identity
        instance = Instance(identity.system_identifier, identity.capture)
        key = load_marker_key(self.sidecar.config, self.sidecar.folder)
        found = [read_marker(content, instance, key) for content in archived_messages(self.archiving.spool.folder)]
        return [marker for marker in found if isinstance(marker, Marker)]

    def close(self) -> None:
        """Stop every process that still runs."""
        for process in (self.sidecar, self.archiver):
            if process.process is not None and process.running:
                os.kill(process.process.pid, signal.SIGCONT)
            process.close()


@contextmanager
def archiving_node() -> Iterator[ArchivingServer]:
    """Start a node that archives into a spool."""
    # NB: the server's user cannot write to pytest's folder.
    with TemporaryDirectory(prefix="tm-") as folder, archiving(Path(folder)) as node:
        yield node


@contextmanager
def paired(
    node: ArchivingServer, root: Path, *, copy: bool = False, options: Mapping[str, str] = {}, **outbox: int
) -> Iterator[Pair]:
    """Create the state and start both processes over it."""
    root.mkdir(exist_ok=True)
    pair = Pair(node, root, copy=copy, **options)
    pair.sidecar.init(**outbox)
    try:
        pair.start()
        yield pair
    finally:
        pair.close()
