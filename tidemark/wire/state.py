"""The state's values: the content and form of each key, and the policy if it is damaged.

Values are JSON inside the envelope of `tidemark.wire.envelope`: few, small, and readable by a person who inspects a
state folder. The outbox's values have another form (`tidemark.wire.outbox`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, TypeVar

from tidemark.model.errors import InternalError
from tidemark.model.incarnation import FolderIdentity, Incarnation, KnownIncarnation
from tidemark.model.lsn import INVALID_LSN, NO_TIMELINE, FullXid, Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.model.mapping import DEFAULT_MAPPING, TypeMapping
from tidemark.model.mode import Stage
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer, Position, Sequence
from tidemark.wire.envelope import DamagedValue, seal, unseal
from tidemark.wire.json_form import JsonForm, JsonMismatch
from tidemark.wire.parked import ParkedLedger, SkipLog

FORMAT_VERSION = 1
EVENTS_KEPT = 100  # of each log: switches, losses, rewinds


class DamagePolicy(Enum):
    """What happens if a key's value fails its checksum; never a silent restart "from the oldest"."""

    HALT = "halt"  # StateError naming the key: only an operator can decide
    DERIVE = "derive"  # read from the values that it describes, which contain it too; HALT if there are none
    HOLD = "hold"  # treated as "still needed": nothing is trimmed or confirmed until it is written again
    REBUILD = "rebuild"  # rebuilt from the files that it describes
    FORGET = "forget"  # treated as empty: it is only shown to people


@dataclass(frozen=True, slots=True)
class Identity:
    """What this state belongs to; written by `init`, and again if a promotion continues an outbox's numbering."""

    capture: str
    system_identifier: SystemIdentifier
    outbox_id: str  # hexadecimal; Spark's offsets are sequences of this outbox. NB: `OutboxReader` has the current one
    server_major: int
    segment_bytes: int
    outbox_bytes_max: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where the capture begins: written with the first base; databases that are captured later are added."""

    timeline: TimelineId
    lsn: Lsn
    complete_from: FullXid  # transactions from this one on are whole in WAL after `lsn`; older ones are never delivered
    databases: Mapping[Oid, str]
    snapshot: str = ""  # text form of a `Visibility`; without a first copy, the changes begin after it
    encodings: Mapping[Oid, str] = field(default_factory=dict)  # of the databases, by PostgreSQL's names
    types: TypeMapping = DEFAULT_MAPPING  # the Arrow types of the tables


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of the current epoch: a process; its start time distinguishes it from a later one with the same pid."""

    role: str  # sidecar, archiver, cdcctl
    host: str
    boot_id: str
    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat


@dataclass(frozen=True, slots=True)
class Term:
    """The epoch and its owner."""

    epoch: Epoch
    owner: Owner | None


@dataclass(frozen=True, slots=True)
class HandOver:
    """The sidecar's latest attempt to return: its try-start marker, and where the archiver reached it."""

    attempt: int = 0  # the sequence of its marker
    timeline: TimelineId = NO_TIMELINE
    lsn: Lsn = INVALID_LSN  # H, the start of the marker's record; invalid until the archiver has reached it


@dataclass(frozen=True, slots=True)
class FollowedDeliverer:
    """The last known state of the delivering process, from the markers in WAL."""

    epoch: Epoch
    lsn: Lsn  # LSN of the newest marker
    sequence: Sequence = NO_SEQUENCE  # of its outbox, from its confirm markers


@dataclass(frozen=True, slots=True)
class Followed:
    """The progress of a follower; `delivered`, where it would begin to deliver, advances with the deliverer's markers.

    It outlives the stage FOLLOWER until the start is found: while it exists, no process delivers.
    """

    pointer: Pointer  # decoded up to here, nothing delivered
    floor: Pointer  # everything after this position can be decoded, from this restart LSN
    has_start: bool  # delivery can begin at `delivered`
    leader: FollowedDeliverer | None = None  # None: no marker has advanced `delivered`


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the stage, for people."""

    at_us: int  # wall clock
    before: Stage
    after: Stage
    reason: str
    epoch: Epoch | None
    delivered: str  # the position at that time


@dataclass(frozen=True, slots=True)
class SwitchLog:
    """The latest switches, oldest first."""

    kept: tuple[Switch, ...] = ()
    count: int = 0  # total

    def with_one_more(self, switch: Switch) -> "SwitchLog":
        """Return the log with another switch; the oldest is dropped above the limit."""
        return SwitchLog((*self.kept, switch)[-EVENTS_KEPT:], self.count + 1)


@dataclass(frozen=True, slots=True)
class Loss:
    """Changes that an operator gave up (`archive repair`, `rewind`): commits after `after` were not delivered."""

    at_us: int  # wall clock
    after: Position  # the last position that was delivered before it
    hole_start_lsn: Lsn  # the start of the missing or damaged WAL
    hole_end_lsn: Lsn
    resumed_timeline: TimelineId
    resumed_lsn: Lsn  # decoding continues here, from a new seed
    tables: int  # to be copied again
    damage: str = ""  # the damage in the WAL, and its file; empty: the WAL is missing


@dataclass(frozen=True, slots=True)
class LossLog:
    """The latest losses, oldest first."""

    kept: tuple[Loss, ...] = ()
    count: int = 0  # total

    def with_one_more(self, loss: Loss) -> "LossLog":
        """Return the log with another loss; the oldest is dropped above the limit."""
        return LossLog((*self.kept, loss)[-EVENTS_KEPT:], self.count + 1)


@dataclass(frozen=True, slots=True)
class Rewind:
    """A dead branch that had been delivered (`cdcctl rewind`): [fork_lsn, delivered] of its timeline."""

    at_us: int  # wall clock
    timeline: TimelineId  # of the dead branch
    fork_lsn: Lsn  # where the node left it
    delivered: Position  # the last position of it that was delivered
    resumed_timeline: TimelineId
    resumed_lsn: Lsn  # commits from here on, on that timeline, are delivered
    tables: int  # to be copied again


@dataclass(frozen=True, slots=True)
class RewindLog:
    """The latest rewinds, oldest first."""

    kept: tuple[Rewind, ...] = ()
    count: int = 0  # total

    def with_one_more(self, rewind: Rewind) -> "RewindLog":
        """Return the log with another rewind; the oldest is dropped above the limit."""
        return RewindLog((*self.kept, rewind)[-EVENTS_KEPT:], self.count + 1)


@dataclass(frozen=True, slots=True)
class Watermark:
    """A watermark: the pointer, and the sequence of the outbox value that contains it (0: before all values)."""

    pointer: Pointer
    sequence: Sequence
    commit_time_us: int = 0


@dataclass(frozen=True, slots=True)
class ByteMark:
    """How many bytes had been written to the outbox, since it exists, at a group end."""

    sequence: Sequence
    written_bytes: int


@dataclass(frozen=True, slots=True)
class OutboxLedger:
    """The extent of the outbox: sequences trimmed+1..head, and their bytes."""

    head: Sequence = NO_SEQUENCE
    trimmed: Sequence = NO_SEQUENCE
    byte_count: int = 0
    # Not compared: a ledger that is counted again has no marks.
    written_bytes: int = field(default=0, compare=False)  # at the head, since the outbox exists
    marks: tuple[ByteMark, ...] = field(default=(), compare=False)  # ascending, after `trimmed`

    def bytes_between(self, after: Sequence, upto: Sequence) -> int:
        """Return how many bytes the values of (after, upto] have at least: exact to the distance of two marks."""
        ends = ByteMark(self.trimmed, self.written_bytes - self.byte_count), ByteMark(self.head, self.written_bytes)
        known = [ends[0], *self.marks, ends[1]]
        least = max((mark.written_bytes for mark in known if mark.sequence <= upto), default=0)
        most = min((mark.written_bytes for mark in known if mark.sequence >= after), default=least)
        return max(0, least - most)


@dataclass(frozen=True, slots=True)
class Reader:
    """A registered reader: what its targets have, and what it can request again (docs/design/positions.md)."""

    applied: Sequence
    replayable: Sequence  # values up to here are never requested again
    confirmed_at_us: int  # wall clock, for people only
    is_required: bool = True  # it counts for the confirmed position, and never lapses
    lapsed_at_us: int = 0  # wall clock; 0: not lapsed. The outbox keeps no values for a lapsed reader
    lapsed_lsn: Lsn = INVALID_LSN  # commit LSN of the first value that it had not confirmed when it lapsed
    skipped_from: Sequence = NO_SEQUENCE  # (skipped_from, skipped_to] were gone when the reader was resumed
    skipped_to: Sequence = NO_SEQUENCE

    @property
    def is_lapsed(self) -> bool:
        """Return whether the reader held too much of the outbox."""
        return self.lapsed_at_us > 0

    def start(self, after: Sequence) -> Sequence:
        """Return where a reader that is at `after` continues: behind the values that it skipped."""
        return self.skipped_to if self.skipped_from <= after < self.skipped_to else after

    @property
    def trimmable(self) -> Sequence:
        """The last value that this reader no longer needs; it needs none before it either."""
        return min(self.applied, self.replayable)


@dataclass(frozen=True, slots=True)
class BaseEntry:
    """A saved catalog base at one LSN: decoding can begin there."""

    file: str  # inside the folder `history`
    timeline: TimelineId
    lsn: Lsn  # the mirror is exact at this LSN
    restart_lsn: Lsn  # least first LSN of the transactions open there
    byte_count: int


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A journal file: the catalog-relevant records of [start_lsn, end_lsn)."""

    file: str
    timeline: TimelineId
    start_lsn: Lsn
    end_lsn: Lsn = INVALID_LSN  # 0 while it is being written: read to its end


@dataclass(frozen=True, slots=True)
class HistoryIndex:
    """The catalog history's files, oldest first."""

    bases: tuple[BaseEntry, ...] = ()
    journals: tuple[JournalFile, ...] = ()


@dataclass(frozen=True, slots=True)
class JournalMark:
    """How far the journal was durable at a delivery that depends on it: a shorter journal is damaged."""

    end_lsn: Lsn = INVALID_LSN  # of the last entry


class CopyPhase(Enum):
    """The progress of a table's first copy."""

    WAITING = "waiting"  # selected, not started
    COPYING = "copying"  # if it is killed, it starts again as the next generation
    DONE = "done"  # captured whole: copied, or captured since its creation
    LEFT = "left"  # not selected any more: copied again if it is selected again
    REFUSED = "refused"  # its existing rows do not fit into `copy.spool_bytes`: only its changes are captured


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The first copy of one table; its snapshot decides which streamed changes are delivered."""

    phase: CopyPhase
    generation: int
    snapshot: str = ""  # text form of a `Visibility`
    lx: Lsn = INVALID_LSN
    row_count: int = 0
    after_lsn: Lsn = INVALID_LSN  # the copy starts once everything up to here is delivered as changes
    seen_lsn: Lsn = INVALID_LSN  # everything that snapshot or catalogs showed is before it; 0: not recorded, use `lx`
    timeline: TimelineId = NO_TIMELINE  # of `seen_lsn`
    refused_name: str = ""  # of the table, with its database, when its copy was refused last; for people

    def is_due(self, delivered_lsn: Lsn) -> bool:
        """Return whether the table must be copied once all commits up to `delivered_lsn` are delivered."""
        return self.is_open and self.after_lsn <= delivered_lsn

    def may_show_from(self, fork_lsn: Lsn) -> bool:
        """Return whether the snapshot may show data written at or after a fork.

        NB: `lx` is determined once for many tables, so a snapshot may be hours younger.
        """
        return self.lx >= fork_lsn or self.seen_lsn > fork_lsn

    @property
    def shown_to(self) -> Position | None:
        """Return the last position that the copy may contain; None if it was not recorded."""
        return _shown_to(self.timeline, self.seen_lsn)

    def without_snapshot(self) -> "CopyProgress":
        """Return it without its snapshot: then it hides no streamed change."""
        return replace(self, snapshot="", seen_lsn=INVALID_LSN, timeline=NO_TIMELINE)

    @property
    def is_open(self) -> bool:
        """Return whether the table must still be copied."""
        return self.phase in (CopyPhase.WAITING, CopyPhase.COPYING)

    @property
    def begins(self) -> bool:
        """Return whether this is the begin of a generation, before its rows."""
        return self.phase is CopyPhase.COPYING and self.row_count == 0


@dataclass(frozen=True, slots=True)
class Recopy:
    """A table that an operator wants copied again (`cdcctl table recopy`); kept until the copy is done."""

    name: str  # at the time of the request, for people
    requested_at_us: int  # wall clock
    after_lsn: Lsn  # the table is not copied before everything up to here is delivered
    generation: int  # the latest one at the time of the request; a later one fulfils it
    is_queued: bool = False  # `CopyProgress` lists the table as one to be copied
    phase_before: CopyPhase | None = None  # of `CopyProgress` when it was queued; None: the copy was due anyway
    put_off: int = 0  # how often the copy was queued but did not start, because older transactions were open
    failed: str = ""  # why the table cannot be copied; the request has ended and is kept for display


@dataclass(frozen=True, slots=True)
class Recopies:
    """The requested copies, by `DATABASE/RELATION` (OIDs)."""

    tables: Mapping[str, Recopy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The configured selection of the delivered changes, and how far the catalogs were read that listed its tables."""

    selection: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seen_lsn: Lsn = INVALID_LSN  # everything that the catalogs showed is before it; 0: not recorded
    timeline: TimelineId = NO_TIMELINE  # of `seen_lsn`

    @property
    def shown_to(self) -> Position | None:
        """Return the last position that the catalogs may have shown; None if it was not recorded."""
        return _shown_to(self.timeline, self.seen_lsn)


def _shown_to(timeline: TimelineId, seen_lsn: Lsn) -> Position | None:
    return Position(timeline, Lsn(seen_lsn - 1), 0) if timeline and seen_lsn else None


@dataclass(frozen=True, slots=True)
class MarkerKeys:
    """The marker key of each daemon, since its last start."""

    names: Mapping[str, str] = field(default_factory=dict)  # of the keys (`wire.marker.key_name`), by role

    @property
    def are_one(self) -> bool:
        """Return whether all daemons that were ever started have the same key."""
        return len(set(self.names.values())) <= 1


@dataclass(frozen=True, slots=True)
class Incarnations:
    """The incarnations of this state, oldest first."""

    kept: tuple[KnownIncarnation, ...] = ()
    is_confirmed: bool = False  # markers of others may be ahead: moved, rebuilt or promoted; until a start marker


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The marker of a process on another copy of this state: this one delivers nothing until `--moved`."""

    rival: Incarnation
    rival_epoch: Epoch
    timeline: TimelineId  # of the WAL that the marker is in
    lsn: Lsn
    incarnation: Incarnation  # of the process that read it
    epoch: Epoch | None


@dataclass(frozen=True, slots=True)
class Archiving:
    """A daemon's last view of archiving, from the node into the archive; for people."""

    uid: int | None = None  # the server's user; None: not known
    gid: int = 0
    groups: tuple[int, ...] = ()
    waiting_since_us: int = 0  # complete segments wait, and none has arrived since then; wall clock, 0: none waits
    waiting: int = 0  # segments, at that time
    reached_lsn: Lsn = INVALID_LSN  # the end of the archive at that time
    unrecorded_first: str = ""  # the first segment that the server archived, and that is neither here nor a hole
    unrecorded: int = 0  # number of such segments
    off_lsn: Lsn = INVALID_LSN  # start of the node's segment when archive_mode was last seen off; INVALID: never
    on_lsn: Lsn = INVALID_LSN  # start of its segment when archive_mode was first seen on again
    missing_first: str = ""  # the first segment that delivery needs and that will not arrive without help
    missing: int = 0  # number of such segments

    @property
    def is_off(self) -> bool:
        """Return whether archive_mode was off at the last poll of the node."""
        return self.off_lsn != INVALID_LSN and self.on_lsn == INVALID_LSN


@dataclass(frozen=True, slots=True)
class PluginUse:
    """A plug-in, or a built-in consumer, as a daemon is configured with it."""

    name: str  # `package.module:Name`, or the word of a built-in consumer
    version: str  # "" if it has none
    options: str  # a fingerprint

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class PluginUses:
    """The consumer, serializer and transforms that a daemon is configured with."""

    consumer: PluginUse
    serializer: PluginUse | None = None
    transforms: tuple[PluginUse, ...] = ()
    owner: Owner | None = None  # the process that recorded it; None: not recorded

    @property
    def in_order(self) -> tuple[PluginUse, ...]:
        """The plug-ins in the order in which changes pass them, the consumer last."""
        serializer = () if self.serializer is None else (self.serializer,)
        return (*self.transforms, *serializer, self.consumer)


@dataclass(frozen=True, slots=True)
class PluginLog:
    """The consumer that this state delivers to, and the plug-ins of each daemon since its last start."""

    consumer: str  # its name
    uses: Mapping[str, PluginUses]  # by role


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended, for people and metrics."""

    at_us: int  # wall clock; 0: not known
    exit_code: int | None  # None: it left no record
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessLog:
    """The runs of each process, by role: the running process, and how the last run ended."""

    running: Mapping[str, Owner] = field(default_factory=dict)  # includes a run that left no record of its end
    ends: Mapping[str, ProcessEnd] = field(default_factory=dict)


ValueT = TypeVar("ValueT")


class Key(Generic[ValueT]):
    """A key of the state: its name, the form of its value, its damage policy, and its order (it must not move back)."""

    def __init__(
        self,
        name: str,
        shape: type[ValueT],
        policy: DamagePolicy,
        *,
        moves_back: Callable[[ValueT, ValueT], bool] | None = None,
    ) -> None:
        """`moves_back` compares the old value with the new one; None: the value has no order."""
        self.name = name
        self.policy = policy
        self.moves_back = moves_back
        self._form: JsonForm[ValueT] = JsonForm(shape)
        self._latest: tuple[bytes, ValueT] | None = None  # values are immutable: the same bytes are decoded once

    def encode(self, value: ValueT) -> bytes:
        """Return the stored bytes of a value that replaces none."""
        stored = seal(self._form.write(value), FORMAT_VERSION)
        self._latest = stored, value
        return stored

    def encode_over(self, replaced: bytes | None, value: ValueT) -> bytes:
        """Return the stored bytes of a value that replaces `replaced`; raise `InternalError` if it would move back."""
        if replaced is not None and self.moves_back is not None:
            self._check_order(replaced, value, self.moves_back)
        return self.encode(value)

    def _check_order(self, replaced: bytes, value: ValueT, moves_back: Callable[[ValueT, ValueT], bool]) -> None:
        try:
            before = self.decode(replaced)
        except DamagedValue:
            return  # the key's policy has determined the new value
        if moves_back(before, value):
            raise InternalError(f"{self.name} would move back from {before} to {value}")

    def decode(self, stored: bytes) -> ValueT:
        """Return the value; raise `DamagedValue` if the bytes are not the output of `encode`."""
        latest = self._latest
        if latest is not None and latest[0] == stored:
            return latest[1]
        payload = unseal(self.name, stored, FORMAT_VERSION)
        try:
            value = self._form.read(payload)
        except JsonMismatch as error:
            raise DamagedValue(self.name, f"invalid JSON: {error}") from error
        self._latest = stored, value
        return value


def _pointer_moves_back(before: Watermark | Followed, after: Watermark | Followed) -> bool:
    return after.pointer.position < before.pointer.position


def _ledger_moves_back(before: OutboxLedger, after: OutboxLedger) -> bool:
    return after.head < before.head or after.trimmed < before.trimmed


def _attempt_moves_back(before: HandOver, after: HandOver) -> bool:
    return after.attempt < before.attempt


def _reader_moves_back(before: Reader, after: Reader) -> bool:
    return after.applied < before.applied or after.replayable < before.replayable


def _generation_moves_back(before: CopyProgress, after: CopyProgress) -> bool:
    return after.generation < before.generation


IDENTITY = Key("identity", Identity, DamagePolicy.HALT)
BEGINNING = Key("beginning", Beginning, DamagePolicy.HALT)
STAGE = Key("stage", Stage, DamagePolicy.HALT)
HAND_OVER = Key("handover", HandOver, DamagePolicy.HALT, moves_back=_attempt_moves_back)
FOLLOWED = Key("followed", Followed, DamagePolicy.HALT, moves_back=_pointer_moves_back)
SWITCHES = Key("switches", SwitchLog, DamagePolicy.FORGET)
LOSSES = Key("losses", LossLog, DamagePolicy.FORGET)
REWINDS = Key("rewinds", RewindLog, DamagePolicy.FORGET)
TERM = Key("term", Term, DamagePolicy.HALT, moves_back=lambda before, after: after.epoch < before.epoch)
DELIVERED = Key("delivered", Watermark, DamagePolicy.DERIVE, moves_back=_pointer_moves_back)
CONFIRMED = Key("confirmed", Watermark, DamagePolicy.DERIVE, moves_back=_pointer_moves_back)
LEDGER = Key("ledger", OutboxLedger, DamagePolicy.DERIVE, moves_back=_ledger_moves_back)
READER = Key("reader", Reader, DamagePolicy.HOLD, moves_back=_reader_moves_back)
HISTORY = Key("history", HistoryIndex, DamagePolicy.REBUILD)
JOURNAL = Key("journal", JournalMark, DamagePolicy.HALT)
COPY = Key("copy", CopyProgress, DamagePolicy.HALT, moves_back=_generation_moves_back)
RECOPIES = Key("recopies", Recopies, DamagePolicy.FORGET)
FINGERPRINT = Key("fingerprint", Fingerprint, DamagePolicy.HALT)
MARKER_KEYS = Key("markerkeys", MarkerKeys, DamagePolicy.FORGET)
INCARNATIONS = Key("incarnations", Incarnations, DamagePolicy.HALT)
OVERTAKEN = Key("overtaken", Overtaken, DamagePolicy.HALT)
FOLDER_IDENTITY = Key("place", FolderIdentity, DamagePolicy.HALT)
ARCHIVING = Key("archiving", Archiving, DamagePolicy.FORGET)
PLUGINS = Key("plugins", PluginLog, DamagePolicy.HALT)
PARKED = Key("parked", ParkedLedger, DamagePolicy.DERIVE)
SKIPPED = Key("skipped", SkipLog, DamagePolicy.FORGET)
PROCESSES = Key("processes", ProcessLog, DamagePolicy.FORGET)

READER_NAME_BYTES_MAX = 63


def is_reader_name(name: str) -> bool:
    """Return whether `name` is a valid reader name: 1 to 63 ASCII letters, digits, `-`, `_`, `.`."""
    return 0 < len(name) <= READER_NAME_BYTES_MAX and all(c.isascii() and (c.isalnum() or c in "-_.") for c in name)
