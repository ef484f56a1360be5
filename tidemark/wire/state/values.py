"""What a capture is, where it begins, who delivers, and how far it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.model.incarnation import Incarnation, KnownIncarnation
from tidemark.model.lsn import INVALID_LSN, NO_TIMELINE, FullXid, Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.model.mapping import DEFAULT_MAPPING, TypeMapping
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer, Sequence
from tidemark.wire.state.process_log import Owner


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
    replaced: tuple[Oid, ...] = ()  # the databases that left the capture, and whose name another one took


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
class Watermark:
    """A watermark: the pointer, and the sequence of the outbox value that contains it (0: before all values)."""

    pointer: Pointer
    sequence: Sequence
    commit_time_us: int = 0


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
