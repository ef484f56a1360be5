"""A minimal model of both processes, the stream, the archive and the state, one step at a time.

WAL is a list, and an LSN is its index. A process decides in one step and commits in another, so anything may happen
between them: the process is killed or stopped, or the other one takes over. While the node is a standby, another host
delivers to the same target and confirms by markers; our processes drop the changes that the other host delivered.
`checks_epoch=False` and `begins_at_marker=False` are planted bugs.
"""

from dataclasses import dataclass, field
from enum import Enum

from tidemark.engine.handover import Effect, Event, Refused, move
from tidemark.model.mode import Role, Stage


class RecordKind(Enum):
    """The kinds of WAL records."""

    BEGIN = "begin"
    COMMIT = "commit"
    MARKER = "marker"  # try-start; a stop marker causes no transition in a process that reads the state
    CONFIRM = "confirm"  # by the other host: the number is a commit LSN


@dataclass(frozen=True)
class WalRecord:
    """A record of a transaction, or a marker with this sequence."""

    kind: RecordKind
    number: int


@dataclass
class ModelState:
    """The content of LMDB."""

    stage: Stage = Stage.REALTIME
    epoch: int = 1
    owner: Role | None = Role.SIDECAR
    delivered: int = -1  # commit LSN
    restart: int = 0
    sequence: int = 0
    handed_over: tuple[int, int] = (0, 0)  # H, and the LSN to decode from
    followed: int | None = None  # LSN to follow from; kept until a promoted follower has found its start


@dataclass
class ModelProcess:
    """The memory of a process, lost when it is killed."""

    epoch: int | None = None
    start: int = 0  # LSN at which decoding began: earlier transactions are incomplete
    next: int = 0
    buffered_from: int | None = None
    marker_due: bool = False
    pending: int | None = None  # commit LSN of the transaction in delivery


@dataclass
class HandoverModel:
    """Everything; methods are steps, and an impossible step does nothing."""

    checks_epoch: bool = True
    begins_at_marker: bool = True
    wal: list[WalRecord] = field(default_factory=list)
    archived: int = 0
    removed: int = 0  # pg_wal begins here
    state: ModelState = field(default_factory=ModelState)
    sidecar: ModelProcess | None = field(default_factory=lambda: ModelProcess(epoch=1))
    archiver: ModelProcess | None = field(default_factory=ModelProcess)
    log: list[int] = field(default_factory=list)
    is_standby: bool = False
    others: int = -1  # commit LSN up to which another host delivered to the target
    _begun: int = 0

    # --- the node

    def begin(self) -> None:
        """Begin a transaction."""
        self.wal.append(WalRecord(RecordKind.BEGIN, self._begun))
        self._begun += 1

    def commit(self, choice: int) -> None:
        """Commit one of the open transactions."""
        if still := self.open_at(len(self.wal)):
            self.wal.append(WalRecord(RecordKind.COMMIT, sorted(still)[choice % len(still)]))

    def archive(self) -> None:
        """Archive all WAL."""
        self.archived = len(self.wal)

    def recycle(self) -> None:
        """Remove archived WAL from pg_wal."""
        self.removed = self.archived

    def open_at(self, lsn: int) -> set[int]:
        """Return the transactions that are open before the record at `lsn`."""
        found: set[int] = set()
        for record in self.wal[:lsn]:
            if record.kind is RecordKind.BEGIN:
                found.add(record.number)
            elif record.kind is RecordKind.COMMIT:
                found.discard(record.number)
        return found

    def restart_at(self, lsn: int) -> int:
        """Return the restart LSN: every transaction that commits at or after `lsn` begins at or after it."""
        return min((self._begin_of(number) for number in self.open_at(lsn)), default=lsn)

    def _begin_of(self, number: int) -> int:
        return self.wal.index(WalRecord(RecordKind.BEGIN, number))

    # --- the other host, while the node is a standby

    def demote(self) -> None:
        """Make the node a standby; the sidecar notices it."""
        if self.sidecar is not None and self.state.stage is not Stage.FOLLOWER and self.happen(Event.DEMOTED):
            self.is_standby = True
            self.state.followed = self.state.restart

    def promote(self) -> None:
        """Make the node the primary again; the other host is lost."""
        self.is_standby = False

    def others_deliver(self) -> None:
        """Deliver the next transaction from the other host."""
        held = self.wal.index(WalRecord(RecordKind.COMMIT, self.log[-1])) if self.log else -1
        later = [lsn for lsn, record in enumerate(self.wal) if record.kind is RecordKind.COMMIT and lsn > held]
        if self.is_standby and later:
            self.log.append(self.wal[later[0]].number)
            self.others = later[0]

    def others_confirm(self) -> None:
        """Write a confirm marker of the other host."""
        if self.is_standby and self.others >= 0:
            self.wal.append(WalRecord(RecordKind.CONFIRM, self.others))

    # --- transitions

    def happen(self, event: Event) -> bool:
        """Apply an event to the state, and run the effects; return whether the event was allowed."""
        try:
            found = move(self.state.stage, event)
        except Refused:
            return False
        self.state.stage = found.stage
        if Effect.STOP_CAPTURE in found.effects and self.sidecar is not None:
            self.sidecar = ModelProcess(pending=self.sidecar.pending, epoch=self.sidecar.epoch)
        if Effect.WRITE_TRY_START_MARKER in found.effects:
            assert self.sidecar is not None
            self.state.sequence += 1
            self.sidecar.marker_due = True
        return True

    def begin_epoch(self, role: Role, process: ModelProcess) -> None:
        """Begin a new epoch."""
        self.state.epoch += 1
        self.state.owner = role
        process.epoch = self.state.epoch
        process.pending = None

    # --- the sidecar

    def want_return(self) -> None:
        """Buffer the stream, then request to deliver again."""
        if self.sidecar is not None and self.state.stage is Stage.ARCHIVE:
            self.sidecar.buffered_from = len(self.wal)
            self.happen(Event.RETURN_READY)

    def write_marker(self) -> None:
        """Write the try-start marker that is due."""
        if self.sidecar is not None and self.sidecar.marker_due:
            self.sidecar.marker_due = False
            self.wal.append(WalRecord(RecordKind.MARKER, self.state.sequence))

    def archive_stalls(self) -> None:
        """Stop waiting for the archive, where the node has the WAL."""
        process = self.sidecar
        has_wal = self.removed <= self.state.restart
        if process is None or not has_wal or self.state.followed is not None:
            return
        if self.happen(Event.ARCHIVE_STALLED):
            self.begin_epoch(Role.SIDECAR, process)
            process.start = process.next = self.state.restart
            process.buffered_from, process.marker_due = None, False

    def sidecar_step(self) -> None:
        """Run the next step of the sidecar in this stage."""
        process = self.sidecar
        if process is None:
            return
        if process.pending is not None:
            self._deliver(process)
        elif self.state.stage is Stage.RETURNED:
            lsn, restart = self.state.handed_over
            if process.buffered_from is None or process.buffered_from > lsn:
                self.happen(Event.RING_FULL)
            elif self.happen(Event.TAKEN_OVER):
                self.begin_epoch(Role.SIDECAR, process)
                process.start, process.next, process.buffered_from = restart, lsn, None
        elif self.state.stage is Stage.FOLLOWER:
            self._follow(process)
        elif self.state.followed is not None:
            self.state.followed = None  # the start is found
        elif self.state.stage is Stage.REALTIME:
            self._continue(process)

    def _continue(self, process: ModelProcess) -> None:
        """Deliver from the stream."""
        if process.epoch != self.state.epoch:
            self.begin_epoch(Role.SIDECAR, process)
            process.start = process.next = self.state.restart
        if process.next < self.removed and process.next < len(self.wal):
            self.happen(Event.WAL_REMOVED)
        else:
            self._read(process, len(self.wal))

    def _follow(self, process: ModelProcess) -> None:
        """Read markers; after a promotion, once all WAL before it is read, take over."""
        assert self.state.followed is not None
        if process.epoch != self.state.epoch or self.state.owner is not Role.SIDECAR:
            self.begin_epoch(Role.SIDECAR, process)
        elif self.state.followed < len(self.wal):
            record = self.wal[self.state.followed]
            self.state.followed += 1
            if record.kind is RecordKind.CONFIRM and record.number >= self.state.delivered:
                self.state.delivered = record.number
                self.state.restart = self.restart_at(record.number + 1)
        elif not self.is_standby:
            self.happen(Event.PROMOTED)
            if not self.begins_at_marker:
                self.state.delivered, self.state.restart = self.state.followed - 1, self.state.followed
            process.epoch = None

    def kill_sidecar(self) -> None:
        """SIGKILL."""
        self.sidecar = None

    def start_sidecar(self) -> None:
        """Start it again: work in progress was lost with the ring."""
        if self.sidecar is None:
            self.sidecar = ModelProcess()
            if self.state.stage in (Stage.RETURNING, Stage.RETURNED):
                self.happen(Event.SIDECAR_LOST)

    # --- the archiver

    def watchdog(self) -> None:
        """Detect that the sidecar is dead."""
        if self.archiver is not None and self.sidecar is None:
            self.happen(Event.SIDECAR_LOST)

    def kill_hung_sidecar(self) -> None:
        """Detect that the sidecar is stopped, and kill it."""
        if self.archiver is not None:
            self.kill_sidecar()
            self.watchdog()

    def archiver_step(self) -> None:
        """Run the next step of the archiver in this stage."""
        process = self.archiver
        if process is None:
            return
        if process.pending is not None:
            self._deliver(process)
        elif self.state.stage.deliverer is Role.ARCHIVER and self.state.followed is None:
            if process.epoch != self.state.epoch or self.state.owner is not Role.ARCHIVER:
                self.begin_epoch(Role.ARCHIVER, process)
                process.start = process.next = self.state.restart
            read = self._read(process, self.archived)
            mine = WalRecord(RecordKind.MARKER, self.state.sequence)
            if read == mine and self.happen(Event.MARKER_REACHED):
                lsn = process.next - 1
                self.state.handed_over = (lsn, self.restart_at(lsn))
                process.epoch = None

    def kill_archiver(self) -> None:
        """SIGKILL."""
        self.archiver = None

    def start_archiver(self) -> None:
        """Start it again."""
        if self.archiver is None:
            self.archiver = ModelProcess()

    # --- common to both

    def _read(self, process: ModelProcess, end: int) -> WalRecord | None:
        """Read up to the next commit or marker."""
        while process.next < end:
            record = self.wal[process.next]
            process.next += 1
            if record.kind is RecordKind.COMMIT and process.next > self.state.delivered + 1:
                assert self._begin_of(record.number) >= process.start, "what is not whole would be delivered"
                process.pending = process.next - 1
            if record.kind is not RecordKind.BEGIN:
                return record
        return None

    def _deliver(self, process: ModelProcess) -> None:
        lsn, process.pending = process.pending, None
        assert lsn is not None
        if self.checks_epoch and process.epoch != self.state.epoch:
            return
        if lsn > self.others:
            self.log.append(self.wal[lsn].number)
        if lsn > self.state.delivered:
            self.state.delivered = lsn
            self.state.restart = self.restart_at(lsn + 1)

    # --- guarantees

    def check(self) -> None:
        """Check that the delivered transactions are a prefix of the committed ones, each once and in order."""
        committed = [record.number for record in self.wal if record.kind is RecordKind.COMMIT]
        assert self.log == committed[: len(self.log)], f"{self.log} of {committed}"

    def settle_without_archive(self) -> None:
        """Run the sidecar for a while without an archive, and check that everything arrives."""
        self.promote()
        self.happen(Event.OPERATOR_ON)
        for _ in range(6 * len(self.wal) + 40):
            self.start_sidecar()
            self.archive_stalls()
            self.sidecar_step()
            self.archiver_step()  # a replaced process still has its transaction in memory
            self.check()
        assert len(self.log) == sum(record.kind is RecordKind.COMMIT for record in self.wal)
        assert self.state.stage is Stage.REALTIME

    def settle(self) -> None:
        """Run everything for a while, and check that everything arrives, delivered by the sidecar again."""
        self.promote()
        self.happen(Event.OPERATOR_ON)
        for _ in range(6 * len(self.wal) + 40):
            self.start_sidecar()
            self.start_archiver()
            self.archive()
            self.want_return()
            self.write_marker()
            self.archiver_step()
            self.sidecar_step()
            self.check()
        assert len(self.log) == sum(record.kind is RecordKind.COMMIT for record in self.wal)
        assert self.state.stage is Stage.REALTIME
        assert self.state.owner is Role.SIDECAR
