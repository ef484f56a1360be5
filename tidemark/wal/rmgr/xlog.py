"""Records of the log itself (`pg_control.h`): checkpoints, and records that change how later records are read."""

from dataclasses import dataclass
from struct import Struct

from tidemark.model.lsn import FullXid, Lsn, TimelineId, Xid
from tidemark.wal.record import INFO_MASK, Record
from tidemark.wal.versions import WalFormat

CHECKPOINT_SHUTDOWN = 0x00
CHECKPOINT_ONLINE = 0x10
SWITCH = 0x40
BACKUP_END = 0x50
PARAMETER_CHANGE = 0x60
FPW_CHANGE = 0x80
END_OF_RECOVERY = 0x90
FPI_FOR_HINT = 0xA0
FPI = 0xB0
OVERWRITE_CONTRECORD = 0xD0
CHECKPOINT_REDO = 0xE0
WAL_LEVEL_LOGICAL = 2

_CHECKPOINT = Struct("<QIIB3x4xQ")  # redo, timeline, its parent, fullPageWrites, [wal_level], nextXid
_WAL_LEVEL = Struct("<i")
_WAL_LEVEL_IN_CHECKPOINT = 20
_WAL_LEVEL_IN_PARAMETERS = 20
_WAL_LEVEL_IN_END_OF_RECOVERY = 16
_MULTIXACT = Struct("<II")  # nextMulti, nextMultiOffset
_MULTIXACT_AT = 36
_BACKUP_START = Struct("<Q")
_OLDEST_ACTIVE = Struct("<I")
# redo 8, tli 4, prev 4, fpw 1+3, wal_level or pad 4, nextXid 8, nextOid 4, nextMulti 4, nextMultiOffset 4, oldestXid 4,
# its db 4, oldestMulti 4, its db 4, pad 4, time 8, oldest and newest commit ts xid 8
_OLDEST_ACTIVE_AT = 80
_BOOL = Struct("<B")
_END_OF_RECOVERY = Struct("<qII")
_OVERWRITE = Struct("<Q")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint, online or at a shutdown."""

    shutdown: bool
    redo: Lsn
    timeline: TimelineId
    prev_timeline: TimelineId
    full_page_writes: bool
    wal_level: int | None  # None: not in the checkpoint of this major
    next_xid: FullXid
    oldest_active_xid: Xid  # 0 at a shutdown
    next_multixact: int
    next_member: int  # of multixacts


@dataclass(frozen=True, slots=True)
class WalLevelChange:
    """The wal_level from here on: logged when parameters changed, and where a checkpoint begins."""

    wal_level: int


@dataclass(frozen=True, slots=True)
class FullPageWritesChange:
    """full_page_writes was switched."""

    full_page_writes: bool


@dataclass(frozen=True, slots=True)
class EndOfRecovery:
    """A promotion: a new timeline begins here."""

    timeline: TimelineId
    prev_timeline: TimelineId
    wal_level: int | None


@dataclass(frozen=True, slots=True)
class OverwrittenContrecord:
    """The record at `overwritten_lsn` was cut off by a crash."""

    overwritten_lsn: Lsn


@dataclass(frozen=True, slots=True)
class BackupEnd:
    """The end of a backup: its files need the WAL from `start_lsn` to here."""

    start_lsn: Lsn


XlogRecord = Checkpoint | WalLevelChange | FullPageWritesChange | EndOfRecovery | OverwrittenContrecord | BackupEnd


def parse(record: Record, fmt: WalFormat) -> XlogRecord | None:  # noqa: PLR0911 - one for each opcode
    """Parse an XLOG record; return None for records that the decoder does not need, such as page images."""
    match record.info & INFO_MASK:
        case info if info in (CHECKPOINT_SHUTDOWN, CHECKPOINT_ONLINE):
            return _parse_checkpoint(record, fmt)
        case info if info == PARAMETER_CHANGE:
            (level,) = record.read(_WAL_LEVEL, _WAL_LEVEL_IN_PARAMETERS)
            return WalLevelChange(level)
        case info if info == CHECKPOINT_REDO:
            (level,) = record.read(_WAL_LEVEL)
            return WalLevelChange(level)
        case info if info == FPW_CHANGE:
            (on,) = record.read(_BOOL)
            return FullPageWritesChange(bool(on))
        case info if info == BACKUP_END:
            (lsn,) = record.read(_BACKUP_START)
            return BackupEnd(Lsn(lsn))
        case info if info == END_OF_RECOVERY:
            _time, timeline, prev_timeline = record.read(_END_OF_RECOVERY)
            wal_level = record.read(_WAL_LEVEL, _WAL_LEVEL_IN_END_OF_RECOVERY)[0] if fmt.checkpoint_wal_level else None
            return EndOfRecovery(TimelineId(timeline), TimelineId(prev_timeline), wal_level)
        case info if info == OVERWRITE_CONTRECORD:
            (lsn,) = record.read(_OVERWRITE)
            return OverwrittenContrecord(Lsn(lsn))
    return None


def _parse_checkpoint(record: Record, fmt: WalFormat) -> Checkpoint:
    redo, timeline, prev_timeline, full_page_writes, next_xid = record.read(_CHECKPOINT)
    wal_level = record.read(_WAL_LEVEL, _WAL_LEVEL_IN_CHECKPOINT)[0] if fmt.checkpoint_wal_level else None
    (oldest_active,) = record.read(_OLDEST_ACTIVE, _OLDEST_ACTIVE_AT)
    next_multixact, next_member = record.read(_MULTIXACT, _MULTIXACT_AT)
    return Checkpoint(
        record.info & INFO_MASK == CHECKPOINT_SHUTDOWN,
        Lsn(redo),
        TimelineId(timeline),
        TimelineId(prev_timeline),
        bool(full_page_writes),
        wal_level,
        FullXid(next_xid),
        Xid(oldest_active),
        next_multixact,
        next_member,
    )
