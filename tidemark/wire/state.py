"""The state's values: the content and form of each key, and the policy if it is damaged.

Values are JSON inside the envelope of `tidemark.wire.envelope`: few, small, and readable by a person who inspects a
state folder. The outbox's values have another form (`tidemark.wire.outbox`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, TypeVar

from tidemark.model.incarnation import Incarnation, KnownIncarnation, StatePlace
from tidemark.model.lsn import INVALID_LSN, NO_TIMELINE, FullXid, Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.model.mapping import DEFAULT_MAPPING, TypeMapping
from tidemark.model.mode import Stage
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer, Position, Sequence
from tidemark.wire.envelope import DamagedValue, seal, unseal
from tidemark.wire.json_form import JsonForm, Misfit

FORMAT_VERSION = 1
SWITCHES_KEPT = 100
LOSSES_KEPT = 100
REWINDS_KEPT = 100


class DamagePolicy(Enum):
    """What happens when a key's value does not pass its checksum; never a silent start "from the oldest"."""

    HALT = "halt"  # StateError naming the key: only an operator can know
    DERIVE = "derive"  # taken from the outbox's own values, which carry it too; HALT where there are none
    HOLD = "hold"  # taken as "holds everything": nothing is trimmed or confirmed until it is written anew
    REBUILD = "rebuild"  # made anew from the files that it describes
    FORGET = "forget"  # taken as empty: it is told to people, and nothing is decided by it


@dataclass(frozen=True, slots=True)
class Identity:
    """What this state belongs to; written by `init`, and once more where a promotion numbers the outbox on."""

    capture: str
    system_identifier: SystemIdentifier
    outbox_id: str  # hexadecimal; Spark's offsets are sequences of this outbox. NB: `OutboxReader` has the present one
    server_major: int
    segment_bytes: int
    outbox_bytes_max: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where the capture begins: written with the first base; databases that come later are added."""

    timeline: TimelineId
    lsn: Lsn
    complete_from: (
        FullXid  # transactions from this one on stand whole in WAL after `lsn`; older ones are never given out
    )
    databases: Mapping[Oid, str]
    snapshot: str = ""  # text form of a `Visibility`; without a first copy the changes begin behind it
    encodings: Mapping[Oid, str] = field(default_factory=dict)  # of the databases, as PostgreSQL calls them
    types: TypeMapping = DEFAULT_MAPPING  # the Arrow forms that the tables have


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns the current epoch: a process, told apart from a later one with the same pid by its start time."""

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
    """The sidecar's latest way back: which try-start marker is its, and where the archiver met it."""

    attempt: int = 0  # the marker carries it as its sequence
    timeline: TimelineId = NO_TIMELINE
    lsn: Lsn = INVALID_LSN  # H, where the marker's record begins; invalid until it is met


@dataclass(frozen=True, slots=True)
class Leader:
    """What the markers in WAL told last of whoever delivers."""

    epoch: Epoch
    lsn: Lsn  # where the newest marker stands
    sequence: Sequence = NO_SEQUENCE  # of its outbox, as far as confirm markers told


@dataclass(frozen=True, slots=True)
class Followed:
    """How far a follower is; what it would begin to deliver from is `delivered`, which the deliverer's markers move.

    It outlives the stage FOLLOWER until the start is found: as long as it stands, nobody delivers.
    """

    pointer: Pointer  # decoded up to here, given out nothing
    floor: Pointer  # behind this position all is decodable, and from this restart LSN on
    has_start: bool  # `delivered` is a place to begin delivering from
    leader: Leader | None = None  # None: no marker moved `delivered`


@dataclass(frozen=True, slots=True)
class Switch:
    """A move from one stage to another, for people."""

    at_us: int  # wall clock
    before: Stage
    after: Stage
    reason: str
    epoch: Epoch | None
    delivered: str  # the position as it was


@dataclass(frozen=True, slots=True)
class SwitchLog:
    """The latest switches, oldest first."""

    kept: tuple[Switch, ...] = ()
    count: int = 0  # ever

    def with_one_more(self, switch: Switch) -> "SwitchLog":
        """Return the log with another switch, and perhaps without its oldest."""
        return SwitchLog((*self.kept, switch)[-SWITCHES_KEPT:], self.count + 1)


@dataclass(frozen=True, slots=True)
class Loss:
    """What an operator gave up (`archive repair`, `rewind`): what committed behind `after` was never given out."""

    at_us: int  # wall clock
    after: Position  # the last that was delivered before it
    hole_start_lsn: Lsn  # what is missing of the archive, or damaged
    hole_end_lsn: Lsn
    resumed_timeline: TimelineId
    resumed_lsn: Lsn  # decoding goes on here, by a new seed
    tables: int  # to be copied again
    damage: str = ""  # what is wrong with the WAL, and in which file; empty: it is missing


@dataclass(frozen=True, slots=True)
class LossLog:
    """The latest losses, oldest first."""

    kept: tuple[Loss, ...] = ()
    count: int = 0  # ever

    def with_one_more(self, loss: Loss) -> "LossLog":
        """Return the log with another loss, and perhaps without its oldest."""
        return LossLog((*self.kept, loss)[-LOSSES_KEPT:], self.count + 1)


@dataclass(frozen=True, slots=True)
class Rewind:
    """A dead branch that had been delivered (`cdcctl rewind`): [fork_lsn, delivered] of its timeline never happened."""

    at_us: int  # wall clock
    timeline: TimelineId  # of the dead branch
    fork_lsn: Lsn  # where the node left it
    delivered: Position  # the last of it that was delivered
    resumed_timeline: TimelineId
    resumed_lsn: Lsn  # what commits from here on, on that timeline, is delivered
    tables: int  # to be copied again


@dataclass(frozen=True, slots=True)
class RewindLog:
    """The latest rewinds, oldest first."""

    kept: tuple[Rewind, ...] = ()
    count: int = 0  # ever

    def with_one_more(self, rewind: Rewind) -> "RewindLog":
        """Return the log with another rewind, and perhaps without its oldest."""
        return RewindLog((*self.kept, rewind)[-REWINDS_KEPT:], self.count + 1)


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far something is: the pointer, and the sequence of the outbox value that holds it (0: before all)."""

    pointer: Pointer
    sequence: Sequence
    commit_time_us: int = 0


@dataclass(frozen=True, slots=True)
class OutboxLedger:
    """What the outbox holds: sequences trimmed+1..head, and their bytes."""

    head: Sequence = NO_SEQUENCE
    trimmed: Sequence = NO_SEQUENCE
    byte_count: int = 0


@dataclass(frozen=True, slots=True)
class Reader:
    """A registered reader: what its targets hold, and what it may still ask for again (docs/design/positions.md)."""

    held: Sequence
    replayable: Sequence  # values up to here are never asked for again
    confirmed_at_us: int  # wall clock, for people only

    @property
    def trimmable(self) -> Sequence:
        """The values up to here are needed by this reader no more."""
        return min(self.held, self.replayable)


@dataclass(frozen=True, slots=True)
class BaseEntry:
    """A saved mirror of one LSN: decoding can begin there."""

    file: str  # inside the folder `history`
    timeline: TimelineId
    lsn: Lsn  # the mirror is exact at this LSN
    restart_lsn: Lsn  # least first LSN open there
    byte_count: int


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A journal file: the catalog-relevant records of [start_lsn, end_lsn)."""

    file: str
    timeline: TimelineId
    start_lsn: Lsn
    end_lsn: Lsn = INVALID_LSN  # 0 while it is being written: read it to its end


@dataclass(frozen=True, slots=True)
class HistoryIndex:
    """The catalog history's files, oldest first."""

    bases: tuple[BaseEntry, ...] = ()
    journals: tuple[JournalFile, ...] = ()


@dataclass(frozen=True, slots=True)
class JournalMark:
    """How far the journal was durable when something was delivered that stands on it: less of it is damage."""

    end_lsn: Lsn = INVALID_LSN  # of the last entry


class CopyPhase(Enum):
    """How far the first copy of a table is."""

    WAITING = "waiting"  # selected, not begun
    COPYING = "copying"  # a killed one begins again as the next generation
    DONE = "done"  # captured whole: copied, or followed from its creation on
    LEFT = "left"  # not selected any more: copied anew when it comes back


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The first copy of one table; its snapshot decides which streamed changes are given out."""

    phase: CopyPhase
    generation: int
    snapshot: str = ""  # text form of a `Visibility`
    lx: Lsn = INVALID_LSN
    row_count: int = 0
    after_lsn: Lsn = INVALID_LSN  # not before so much is delivered: what the stream gives until then is a change
    seen_lsn: Lsn = INVALID_LSN  # all that snapshot or catalogs showed stands before; 0: not noted, `lx` has to do
    timeline: TimelineId = NO_TIMELINE  # of `seen_lsn`

    def is_due(self, delivered_lsn: Lsn) -> bool:
        """Tell if the table is to be copied now that all that commits up to `delivered_lsn` is delivered."""
        return self.is_open and self.after_lsn <= delivered_lsn

    def may_show_from(self, fork_lsn: Lsn) -> bool:
        """Tell if the snapshot may show what was written at or behind a fork.

        NB: `lx` is taken once for many tables, so a snapshot is hours younger perhaps.
        """
        return self.lx >= fork_lsn or self.seen_lsn > fork_lsn

    @property
    def shown_to(self) -> Position | None:
        """Return the last position by which the copy may be as it is; None where that was not noted."""
        return _shown_to(self.timeline, self.seen_lsn)

    def blind(self) -> "CopyProgress":
        """Return it without what was seen: it hides nothing of the stream."""
        return replace(self, snapshot="", seen_lsn=INVALID_LSN, timeline=NO_TIMELINE)

    @property
    def is_open(self) -> bool:
        """Tell if the table is still to be copied."""
        return self.phase in (CopyPhase.WAITING, CopyPhase.COPYING)

    @property
    def begins(self) -> bool:
        """Tell if this stands with the begin of a generation, before its rows."""
        return self.phase is CopyPhase.COPYING and self.row_count == 0


@dataclass(frozen=True, slots=True)
class Recopy:
    """A table that an operator wants copied again (`cdcctl table recopy`); kept until that is done."""

    name: str  # at the time of the request, for people
    requested_at_us: int  # wall clock
    after_lsn: Lsn  # the table is not copied before this much is delivered
    generation: int  # the latest one at the time of the request: a later one fulfils it
    is_queued: bool = False  # `CopyProgress` has it as a table to be copied
    phase_before: CopyPhase | None = None  # of `CopyProgress` when it was queued; None: it was to be copied in any case
    put_off: int = 0  # times that the copy was queued and did not begin: older transactions were open
    failed: str = ""  # why the table cannot be copied; the request has ended by it and is kept to be shown


@dataclass(frozen=True, slots=True)
class Recopies:
    """The requested copies, by `DATABASE/RELATION` (OIDs)."""

    tables: Mapping[str, Recopy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The configuration that the delivered changes were selected by, and the catalogs that its tables were found in."""

    selection: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seen_lsn: Lsn = INVALID_LSN  # all that the catalogs showed stands before; 0: not noted
    timeline: TimelineId = NO_TIMELINE  # of `seen_lsn`

    @property
    def shown_to(self) -> Position | None:
        """Return the last position by which other tables may have been there; None where that was not noted."""
        return _shown_to(self.timeline, self.seen_lsn)


def _shown_to(timeline: TimelineId, seen_lsn: Lsn) -> Position | None:
    return Position(timeline, Lsn(seen_lsn - 1), 0) if timeline and seen_lsn else None


@dataclass(frozen=True, slots=True)
class MarkerKeys:
    """By which key each daemon writes and reads markers, since it was started last."""

    names: Mapping[str, str] = field(default_factory=dict)  # of the keys (`wire.marker.key_name`), by role

    @property
    def are_one(self) -> bool:
        """Tell if each daemon reads what the other writes, as far as they have ever been started."""
        return len(set(self.names.values())) <= 1


@dataclass(frozen=True, slots=True)
class Incarnations:
    """The incarnations that this state has had, oldest first."""

    kept: tuple[KnownIncarnation, ...] = ()
    is_confirmed: bool = False  # markers of others may be ahead: moved, made anew or promoted; until a start marker


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The marker of a process on another copy of this state: nothing is delivered from this one until `--moved`."""

    rival: Incarnation
    rival_epoch: Epoch
    timeline: TimelineId  # of the WAL that the marker is in
    lsn: Lsn
    incarnation: Incarnation  # that read it
    epoch: Epoch | None


@dataclass(frozen=True, slots=True)
class Archiving:
    """What a daemon saw last of the way from the node into the archive; for people."""

    uid: int | None = None  # whom the server runs as; None: it is not known
    gid: int = 0
    groups: tuple[int, ...] = ()
    waiting_since_us: int = 0  # complete segments wait, and none has arrived since; wall clock, 0: none waits
    waiting: int = 0  # segments, when that was seen
    reached_lsn: Lsn = INVALID_LSN  # where the archive ended then
    unrecorded_first: str = ""  # the first segment that the server archived, and that is neither here nor a hole
    unrecorded: int = 0  # how many
    off_lsn: Lsn = INVALID_LSN  # begin of the node's segment when archive_mode was last seen off; INVALID: it never was
    on_lsn: Lsn = INVALID_LSN  # begin of its segment when archive_mode was first seen on again
    missing_first: str = ""  # the first segment that delivery needs and that will not arrive by itself
    missing: int = 0  # how many

    @property
    def is_off(self) -> bool:
        """Tell if archive_mode was off when the node was asked last."""
        return self.off_lsn != INVALID_LSN and self.on_lsn == INVALID_LSN


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended, for people and metrics."""

    at_us: int  # wall clock; 0: not known
    exit_code: int | None  # None: it left no record
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessLog:
    """The runs of each process, by its role: who runs, and how the last run ended."""

    running: Mapping[str, Owner] = field(default_factory=dict)  # also of a run that left no record of its end
    ends: Mapping[str, ProcessEnd] = field(default_factory=dict)


ValueT = TypeVar("ValueT")


class Key(Generic[ValueT]):
    """A key of the state: its name, the form of its value, its policy when damaged, and what must never move back."""

    def __init__(
        self,
        name: str,
        shape: type[ValueT],
        policy: DamagePolicy,
        *,
        moves_back: Callable[[ValueT, ValueT], bool] | None = None,
    ) -> None:
        """`moves_back`: compares the value before with a new one; None: the value has no order."""
        self.name = name
        self.policy = policy
        self.moves_back = moves_back
        self._form: JsonForm[ValueT] = JsonForm(shape)
        self._latest: tuple[bytes, ValueT] | None = None  # values are immutable: the same bytes are decoded once

    def encode(self, value: ValueT) -> bytes:
        """Return the bytes that stand under the key."""
        stored = seal(self._form.write(value), FORMAT_VERSION)
        self._latest = stored, value
        return stored

    def decode(self, stored: bytes) -> ValueT:
        """Return the value; raise `DamagedValue` where the bytes are not what `encode` wrote."""
        latest = self._latest
        if latest is not None and latest[0] == stored:
            return latest[1]
        payload = unseal(self.name, stored, FORMAT_VERSION)
        try:
            value = self._form.read(payload)
        except Misfit as error:
            raise DamagedValue(self.name, f"its JSON: {error}") from error
        self._latest = stored, value
        return value


def _pointer_moves_back(before: Watermark | Followed, after: Watermark | Followed) -> bool:
    return after.pointer.position < before.pointer.position


def _ledger_moves_back(before: OutboxLedger, after: OutboxLedger) -> bool:
    return after.head < before.head or after.trimmed < before.trimmed


def _term_moves_back(before: Term, after: Term) -> bool:
    return after.epoch < before.epoch


IDENTITY = Key("identity", Identity, DamagePolicy.HALT)
BEGINNING = Key("beginning", Beginning, DamagePolicy.HALT)
STAGE = Key("stage", Stage, DamagePolicy.HALT)
HAND_OVER = Key("handover", HandOver, DamagePolicy.HALT)
FOLLOWED = Key("followed", Followed, DamagePolicy.HALT, moves_back=_pointer_moves_back)
SWITCHES = Key("switches", SwitchLog, DamagePolicy.FORGET)
LOSSES = Key("losses", LossLog, DamagePolicy.FORGET)
REWINDS = Key("rewinds", RewindLog, DamagePolicy.FORGET)
TERM = Key("term", Term, DamagePolicy.HALT, moves_back=_term_moves_back)
DELIVERED = Key("delivered", Watermark, DamagePolicy.DERIVE, moves_back=_pointer_moves_back)
CONFIRMED = Key("confirmed", Watermark, DamagePolicy.DERIVE, moves_back=_pointer_moves_back)
LEDGER = Key("ledger", OutboxLedger, DamagePolicy.DERIVE, moves_back=_ledger_moves_back)
READER = Key("reader", Reader, DamagePolicy.HOLD)
HISTORY = Key("history", HistoryIndex, DamagePolicy.REBUILD)
JOURNAL = Key("journal", JournalMark, DamagePolicy.HALT)
COPY = Key("copy", CopyProgress, DamagePolicy.HALT)
RECOPIES = Key("recopies", Recopies, DamagePolicy.FORGET)
FINGERPRINT = Key("fingerprint", Fingerprint, DamagePolicy.HALT)
MARKER_KEYS = Key("markerkeys", MarkerKeys, DamagePolicy.FORGET)
INCARNATIONS = Key("incarnations", Incarnations, DamagePolicy.HALT)
OVERTAKEN = Key("overtaken", Overtaken, DamagePolicy.HALT)
PLACE = Key("place", StatePlace, DamagePolicy.HALT)
ARCHIVING = Key("archiving", Archiving, DamagePolicy.FORGET)
PROCESSES = Key("processes", ProcessLog, DamagePolicy.FORGET)

READER_NAME_BYTES_MAX = 63


def is_reader_name(name: str) -> bool:
    """Tell if `name` may name a reader: 1 to 63 ASCII letters, digits, `-`, `_`, `.`."""
    return 0 < len(name) <= READER_NAME_BYTES_MAX and all(c.isascii() and (c.isalnum() or c in "-_.") for c in name)
