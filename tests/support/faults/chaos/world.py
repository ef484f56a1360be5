"""The parts of a campaign: node, load, oracle, both processes behind a proxy, and a target.

One thread maintains the campaign: it checks each part, restarts processes that ended, and executes the operator's
requests. Its clock counts the load's commits, and time only while nothing commits: so the same seed has about the same
effect on a slow machine.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.support.faults.chaos.keeper import Keeper, Report
from tests.support.faults.chaos.markers import Markers
from tests.support.oracles.log_oracle import LogTally, ServerLog
from tests.support.processes.failover import Pair
from tests.support.processes.waiting import wait_until
from tests.support.servers.archiving import ArchivingServer, archiving
from tests.support.servers.postgres import Cluster
from tests.support.servers.proxies import Cable, cable
from tests.support.servers.small_disk import SmallDisk, small_disk
from tests.support.workloads.mixed_load import MixedLoad, create_tables
from tidemark.io.process.control import DaemonUnreachable, request
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import INVALID_LSN, Lsn, parse_lsn
from tidemark.model.mode import Stage
from tidemark.runtime.recovery.rebuild import LakeInventory
from tidemark.wire.control import BadRequest
from tidemark.wire.state.values import Identity

POLL_S = 0.03
PAUSE_S = 0.15  # between a session's transactions
IDLE_S = 0.1  # without a commit; then some ticks pass as well
IDLE_TICKS = 5
ANSWER_S = 0.5  # then it is requested again
HEALED_TIMEOUT_S = 300.0  # limit for each step once every fault is healed: a full outbox takes Spark minutes
PACE_S = 1.0  # interval of the comparison of the load with the delivered position
MB = 1 << 20
DISK_BYTES = 1 << 30  # larger than needed; the campaign determines how full it is
DATABASE = "postgres"
RING_BYTES = 4 * MB  # four of the node's segments
OUTBOX_BYTES = 2 * MB
BACKLOG_BYTES = 4 * RING_BYTES  # above which the load waits: a target that lags forever prevents a return to realtime
OLD_ROWS = 200
DDL_EVERY = 30  # transactions of one session
SMALL = {  # limits that a short run reaches often
    "TIDEMARK_RING__BYTES_MAX": str(RING_BYTES),
    "TIDEMARK_DECODE__MEMORY_BYTES": str(MB),
    "TIDEMARK_DECODE__QUEUE_BYTES": str(MB),
    "TIDEMARK_DELIVER__GROUP_ROWS_MAX": "500",
    "TIDEMARK_DELIVER__GROUP_BYTES_MAX": str(MB // 4),
    "TIDEMARK_HISTORY__BASE_EVERY_BYTES": str(8 * MB),
    "TIDEMARK_HISTORY__JOURNAL_FILE_BYTES": str(MB // 16),
    "TIDEMARK_RETRY__MAX_S": "1",
    "TIDEMARK_WATCHDOG__RESTART_S": "3",  # a start takes seconds on a busy machine
    "TIDEMARK_WATCHDOG__WATCHDOG_S": "4",
    "TIDEMARK_REALTIME__ARCHIVE_WAIT_S": "4",
}
WIDEST = {  # a delivery every two seconds, as large as the default bounds permit: a crash finds a batch half collected
    "TIDEMARK_DELIVER__RATE_MAX": "0.5",
    "TIDEMARK_DELIVER__LINGER_MS": "2000",
    "TIDEMARK_DELIVER__GROUP_ROWS_MAX": "65536",
    "TIDEMARK_DELIVER__GROUP_BYTES_MAX": str(MB),
}
NODE = {"wal_keep_size": "2MB", "min_wal_size": "2MB", "max_wal_size": "32MB"}  # WAL is removed soon


class ChaosTarget(Protocol):
    """The reader of the outbox."""

    def start(self) -> None:
        """Begin."""

    def pause(self) -> None:
        """Stop reading for a while."""

    def resume(self) -> None:
        """Read again."""

    def check(self) -> None:
        """Raise the error that ended the reader."""

    def contains_all(self) -> bool:
        """Return whether it has all delivered changes."""

    def contains_any(self) -> bool:
        """Return whether it has any change."""

    def leave(self) -> None:
        """Close a state that is lost."""

    def inventory(self, identity: Identity) -> LakeInventory | None:
        """Return its inventory for the rebuild of the state."""

    def rejoin(self) -> None:
        """Continue from the new state; repeated changes are recognised by their position."""

    def verdict(self, server: ServerLog, node: Cluster) -> LogTally:
        """Check that it has the source's changes, each once; return their number."""

    def close(self) -> None:
        """End."""


@dataclass
class ChaosWorld:
    """All parts; created by `made`."""

    node: ArchivingServer
    cable: Cable
    pair: Pair
    load: MixedLoad
    server: ServerLog
    markers: Markers
    store: StateStore
    state_disk: SmallDisk
    spool_disk: SmallDisk
    sidecar: Keeper
    archiver: Keeper
    target: ChaosTarget
    print_progress: Report
    is_node_up: bool = True
    has_all_wal: bool = True  # if the oracle can read all WAL
    wish: str = ""  # of the operator: "on" or "off" until it is done
    _idle_ticks: int = 0
    _moved_at_s: float = 0.0
    _seen: int = -1
    _asked_at_s: float = 0.0
    _paced_at_s: float = 0.0
    _flushed_lsn: Lsn = INVALID_LSN

    @property
    def keepers(self) -> tuple[Keeper, Keeper]:
        """The keepers of both processes."""
        return self.sidecar, self.archiver

    @property
    def stage(self) -> Stage:
        """The stage of the capture."""
        return self.store.marks().stage

    @property
    def root(self) -> Path:
        """The folder of the logs."""
        return self.pair.sidecar.log_path.parent

    @property
    def view(self) -> StateView:
        """All small values of the state."""
        return self.store.view()

    def close_store(self) -> None:
        """Close the state."""
        self.store.close()

    @property
    def owner(self) -> tuple[str, int]:
        """Role and process id of the current epoch's owner."""
        term = self.store.marks().term
        return (term.owner.role, term.owner.pid) if term is not None and term.owner is not None else ("", 0)

    @property
    def ticks(self) -> int:
        """The campaign's clock."""
        return self.load.committed + self._idle_ticks

    def maintain(self) -> None:
        """Check every part once."""
        now_s = time.monotonic()
        if self.load.committed != self._seen:
            self._seen, self._moved_at_s = self.load.committed, now_s
        elif now_s - self._moved_at_s >= IDLE_S:
            self._idle_ticks += IDLE_TICKS
            self._moved_at_s = now_s
        for keeper in self.keepers:
            keeper.maintain()
        self.load.check()
        self.target.check()
        if self.wish and now_s - self._asked_at_s >= IDLE_S:
            self._ask()
            self._asked_at_s = time.monotonic()
        if self.is_node_up and now_s - self._paced_at_s >= PACE_S:
            self._paced_at_s = now_s
            self._pace()

    def wait_for(self, is_so: Callable[[], bool], what: str, within_s: float = HEALED_TIMEOUT_S) -> None:
        """Maintain until the condition holds; fail with both logs."""

        def holds() -> bool:
            if is_so():
                return True
            self.maintain()
            return False

        wait_until(holds, what, within_s=within_s, reported=self.reported)

    def wait_for_stage(self, *stages: Stage) -> None:
        """Maintain until the capture is in one of these stages."""
        self.wait_for(lambda: self.stage in stages, " or ".join(stage.value for stage in stages))

    def start_node(self) -> None:
        """Start the node, if it is not running."""
        if not self.is_node_up:
            self.node.node.start()
            self.is_node_up = True

    def is_drained(self) -> bool:
        """Return whether everything that the node has written is delivered and read by the target."""
        delivered = self.store.marks().delivered
        if delivered is None or delivered.pointer.position.commit_lsn < self._flushed_lsn:
            return False
        return self.target.contains_all()

    def drain(self) -> None:
        """Wait until everything that was written so far is delivered and read by the target."""
        self.node.node.sql("SELECT pg_logical_emit_message(true, 'chaos', 'the end')")
        self._flushed_lsn = parse_lsn(self.node.node.flush_lsn())
        self.node.node.sql("SELECT pg_logical_emit_message(true, 'chaos', 'behind the end')")
        self.wait_for(self.is_drained, "the end of what was written")

    def reported(self) -> str:
        """Return all positions, and the ends of both logs."""
        view = self.view
        switches = "\n".join(f"{s.before.value} -> {s.after.value}: {s.reason}" for s in view.switches.kept[-8:])
        marks = f"stage {view.stage.value}, delivered {view.delivered}, ledger {view.ledger}, readers {view.readers}"
        return "\n".join((marks, switches, *(keeper.log_end() for keeper in self.keepers)))

    def _pace(self) -> None:
        delivered = self.store.marks().delivered
        if delivered is None:
            return
        backlog = parse_lsn(self.node.node.flush_lsn()) - delivered.pointer.position.commit_lsn
        if backlog > BACKLOG_BYTES:
            self.load.pause()
        elif backlog < BACKLOG_BYTES // 2:
            self.load.resume()

    def _ask(self) -> None:
        try:
            command = {"command": f"realtime-{self.wish}"}
            answer = request(self.pair.sidecar.folder.socket("sidecar"), command, ANSWER_S)
        except (DaemonUnreachable, BadRequest):  # it is dead, or dies while it answers
            return
        if answer.get("ok"):
            self.print_progress(f"  operator: {self.wish}, {answer['before']} -> {answer['stage']}")
            self.wish = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a world."""

    seed: int
    major: int = 15
    plant: str = ""  # a bug with which both processes run
    pause_s: float = PAUSE_S  # between a session's transactions
    copy: bool = False  # if rows from before the capture are copied
    outbox_bytes: int = OUTBOX_BYTES
    batches_widely: bool = False  # if commits are collected for long before they are delivered together

    @property
    def options(self) -> dict[str, str]:
        """The options of both processes."""
        return SMALL | WIDEST if self.batches_widely else SMALL


MakeTarget = Callable[[Pair], ChaosTarget]


@contextmanager
def made(root: Path, setting: Setting, make_target: MakeTarget, print_progress: Report) -> Iterator[ChaosWorld]:
    """Create a world below `root`, with only the target started; everything is stopped at the end."""
    root.chmod(0o755)  # the server's user needs access to the spool
    with ExitStack() as stack:
        spool_disk = stack.enter_context(small_disk(root / "archive", DISK_BYTES))
        state_disk = stack.enter_context(small_disk(root / "host", DISK_BYTES))
        node = stack.enter_context(archiving(spool_disk.root, major=setting.major, settings=NODE, free_bytes_min=0))
        way = stack.enter_context(cable(node.node.port))
        create_tables(node.node, DATABASE, old_rows=OLD_ROWS if setting.copy else 0)
        server = ServerLog(node.node, DATABASE)
        dsn = f"host=127.0.0.1 port={way.port} dbname={DATABASE} user=postgres"
        pair = Pair(node, state_disk.root, copy=setting.copy, TIDEMARK_CAPTURE__DSN=dsn, **setting.options)
        for process in (pair.sidecar, pair.archiver):
            process.log_path = root / f"{process.role}.log"
            if setting.plant:
                process.program = ("-m", "tests.support.faults.planted", setting.plant, process.module)
        pair.sidecar.init(bytes_max=setting.outbox_bytes)
        store = StateStore.open(pair.sidecar.folder)
        target = make_target(pair)
        markers = Markers(server, lambda: world.view)
        world = ChaosWorld(
            node=node,
            cable=way,
            pair=pair,
            load=MixedLoad(
                node.node, DATABASE, setting.seed, pause_s=setting.pause_s, ddl_every=DDL_EVERY, through_outages=True
            ),
            server=server,
            markers=markers,
            store=store,
            state_disk=state_disk,
            spool_disk=spool_disk,
            sidecar=Keeper(pair.sidecar, root, print_progress),
            archiver=Keeper(pair.archiver, root, print_progress),
            target=target,
            print_progress=print_progress,
        )
        stack.callback(world.close_store)
        stack.callback(target.close)
        for keeper in world.keepers:
            stack.callback(keeper.close)
            keeper.on_death = lambda: markers.check() if world.is_node_up and world.has_all_wal else None
        target.start()
        yield world
