"""Ends of transactions (`xact.h`): commit, abort, prepare, and the subtransactions of each transaction.

The body of a commit or abort is a sequence of optional parts in fixed order, unaligned; a word of flags lists them.
"""

from dataclasses import dataclass
from struct import Struct

from tidemark.model.commit_time import PG_EPOCH_US
from tidemark.model.lsn import INVALID_LSN, INVALID_OID, Lsn, Oid, Xid
from tidemark.model.relation import RelFileLocator
from tidemark.wal.record import BadRecord, Record
from tidemark.wal.versions import WalFormat

OPCODE_MASK = 0x70
COMMIT = 0x00
PREPARE = 0x10
ABORT = 0x20
COMMIT_PREPARED = 0x30
ABORT_PREPARED = 0x40
ASSIGNMENT = 0x50
INVALIDATIONS = 0x60
HAS_INFO = 0x80

HAS_DBINFO = 0x01
HAS_SUBXACTS = 0x02
_HAS_LOCATORS = 0x04
_HAS_INVALS = 0x08
_HAS_TWOPHASE = 0x10
_HAS_ORIGIN = 0x20
_HAS_GID = 0x80
_HAS_DROPPED_STATS = 0x100

_TIME = Struct("<q")
_U32 = Struct("<I")
_COUNT = Struct("<i")
_DBINFO = Struct("<II")
_LOCATOR = Struct("<III")
_INVALIDATION_BYTES = 16  # SharedInvalidationMessage
_ORIGIN = Struct("<Qq")
_ASSIGNMENT = Struct("<Ii")
_PREPARE_HEAD = Struct("<IIIIqIi")  # magic, total_len, xid, database, prepared_at, owner, nsubxacts
_PREPARE_TAIL = Struct("<BxHQq")  # initfileinval, gidlen, origin_lsn, origin_timestamp
_PREPARE_MAGIC = 0x57F94534  # TWOPHASE_MAGIC
# From here on the high 32 bits of a time before 2000, or of one too large for 64 bits when counted from 1970; kernels
# leave such a time to `parse`.
NO_ORDINARY_TIME = 0x7FF00000
_TIME_MAX_US = (1 << 63) - 1 - PG_EPOCH_US  # what 64 bits hold since 1970


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit; for a prepared transaction with the xid that was prepared, not that of COMMIT PREPARED."""

    xid: Xid
    time_us: int  # since 1970-01-01 UTC
    database: Oid  # 0: not in the record; the transaction changed no database-local objects
    tablespace: Oid
    subxids: tuple[Xid, ...]
    prepared: bool
    gid: str | None
    origin_lsn: Lsn
    origin_time_us: int  # 0: no origin
    dropped_files: tuple[RelFileLocator, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """A rollback of a whole transaction, or of a subtransaction with its subtransactions."""

    xid: Xid
    time_us: int
    database: Oid
    subxids: tuple[Xid, ...]
    prepared: bool
    gid: str | None


@dataclass(frozen=True, slots=True)
class Prepare:
    """PREPARE TRANSACTION."""

    xid: Xid
    database: Oid
    time_us: int
    subxids: tuple[Xid, ...]
    gid: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Subtransactions and their top-level transaction, logged for every 64 of them."""

    top_xid: Xid
    subxids: tuple[Xid, ...]


XactRecord = Commit | Abort | Prepare | Assignment


def parse(record: Record, fmt: WalFormat) -> XactRecord | None:
    """Parse an XACT record; return None for invalidations."""
    match record.info & OPCODE_MASK:
        case opcode if opcode in (COMMIT, COMMIT_PREPARED):
            return _parse_commit(record, fmt)
        case opcode if opcode in (ABORT, ABORT_PREPARED):
            return _parse_abort(record, fmt)
        case opcode if opcode == PREPARE:
            return _parse_prepare(record, fmt)
        case opcode if opcode == ASSIGNMENT:
            top_xid, count = record.read(_ASSIGNMENT)
            return Assignment(Xid(top_xid), _xids(record, _ASSIGNMENT.size, count))
    return None


@dataclass(slots=True)
class _Parts:
    """The optional parts that commit and abort share."""

    time_us: int
    database: Oid = INVALID_OID
    tablespace: Oid = INVALID_OID
    subxids: tuple[Xid, ...] = ()
    dropped_files: tuple[RelFileLocator, ...] = ()
    prepared_xid: Xid | None = None
    gid: str | None = None
    origin_lsn: Lsn = INVALID_LSN
    origin_time_us: int = 0


def _parse_commit(record: Record, fmt: WalFormat) -> Commit:
    parts = _parse_parts(record, fmt)
    prepared = _check_prepared(record, parts, COMMIT_PREPARED)
    return Commit(
        record.xid if parts.prepared_xid is None else parts.prepared_xid,
        parts.time_us,
        parts.database,
        parts.tablespace,
        parts.subxids,
        prepared,
        parts.gid,
        parts.origin_lsn,
        parts.origin_time_us,
        parts.dropped_files,
    )


def _parse_abort(record: Record, fmt: WalFormat) -> Abort:
    parts = _parse_parts(record, fmt)
    prepared = _check_prepared(record, parts, ABORT_PREPARED)
    xid = record.xid if parts.prepared_xid is None else parts.prepared_xid
    return Abort(xid, parts.time_us, parts.database, parts.subxids, prepared, parts.gid)


def _check_prepared(record: Record, parts: _Parts, prepared_opcode: int) -> bool:
    prepared = record.info & OPCODE_MASK == prepared_opcode
    if prepared and parts.prepared_xid is None:
        raise BadRecord(record.lsn, "end of a prepared transaction without its xid")
    return prepared


def _parse_parts(record: Record, fmt: WalFormat) -> _Parts:
    (time,) = record.read(_TIME)
    parts = _Parts(_unix_us(record, time))
    at = _TIME.size
    if not record.info & HAS_INFO:
        return parts
    (flags,) = record.read(_U32, at)
    at += _U32.size
    if flags & HAS_DBINFO:
        database, tablespace = record.read(_DBINFO, at)
        parts.database, parts.tablespace = Oid(database), Oid(tablespace)
        at += _DBINFO.size
    if flags & HAS_SUBXACTS:
        (count,) = record.read(_COUNT, at)
        parts.subxids = _xids(record, at + _COUNT.size, count)
        at += _COUNT.size + 4 * count
    if flags & _HAS_LOCATORS:
        count, first = _items(record, at, _LOCATOR.size)
        files = [record.read(_LOCATOR, first + _LOCATOR.size * index) for index in range(count)]
        parts.dropped_files = tuple(RelFileLocator(Oid(spc), Oid(db), Oid(rel)) for spc, db, rel in files)
        at = first + _LOCATOR.size * count
    if flags & _HAS_DROPPED_STATS and fmt.dropped_stats_bytes:
        count, first = _items(record, at, fmt.dropped_stats_bytes)
        at = first + fmt.dropped_stats_bytes * count
    if flags & _HAS_INVALS:
        count, first = _items(record, at, _INVALIDATION_BYTES)
        at = first + _INVALIDATION_BYTES * count
    if flags & _HAS_TWOPHASE:
        (prepared_xid,) = record.read(_U32, at)
        parts.prepared_xid = Xid(prepared_xid)
        at += _U32.size
        if flags & _HAS_GID:
            parts.gid, at = _gid(record, at)
    if flags & _HAS_ORIGIN:
        origin_lsn, origin_time = record.read(_ORIGIN, at)
        parts.origin_lsn, parts.origin_time_us = Lsn(origin_lsn), _unix_us(record, origin_time)
    return parts


def _parse_prepare(record: Record, fmt: WalFormat) -> Prepare:
    magic, _total, xid, database, prepared_at, _owner, subxid_count = record.read(_PREPARE_HEAD)
    if magic != _PREPARE_MAGIC:
        raise BadRecord(record.lsn, f"prepared transaction with magic {magic:X}")
    # Counts of files to drop at commit and at abort, of statistics likewise if the major has them, of invalidations.
    tail_at = _PREPARE_HEAD.size + 4 * (5 if fmt.dropped_stats_bytes else 3)
    _invalidates, gid_bytes, _origin_lsn, _origin_time = record.read(_PREPARE_TAIL, tail_at)
    gid_at = tail_at + _PREPARE_TAIL.size
    gid, gid_end = _gid(record, gid_at)
    if gid_end != gid_at + gid_bytes:
        raise BadRecord(record.lsn, f"identifier of {gid_end - gid_at} bytes, not {gid_bytes}")
    subxids = _xids(record, gid_at + (gid_bytes + 7 & ~7), subxid_count)
    return Prepare(Xid(xid), Oid(database), _unix_us(record, prepared_at), subxids, gid)


def _unix_us(record: Record, postgres_us: int) -> int:
    if postgres_us > _TIME_MAX_US:
        raise BadRecord(record.lsn, f"time {postgres_us} is out of range")
    return postgres_us + PG_EPOCH_US


def _xids(record: Record, at: int, count: int) -> tuple[Xid, ...]:
    if count < 0 or len(record.main) - at < 4 * count:
        raise BadRecord(record.lsn, f"{count} subtransactions in {len(record.main)} bytes")
    return tuple(map(Xid, record.read(Struct(f"<{count}I"), at)))


def _items(record: Record, at: int, item_bytes: int) -> tuple[int, int]:
    """Return the number and offset of the items of a part at `at`."""
    (count,) = record.read(_COUNT, at)
    first = at + _COUNT.size
    if count < 0 or len(record.main) - first < item_bytes * count:
        raise BadRecord(record.lsn, f"{count} items of {item_bytes} bytes in {len(record.main)} bytes")
    return count, first


def _gid(record: Record, at: int) -> tuple[str, int]:
    """Return the identifier at `at` and the offset after it."""
    end = record.main.find(b"\0", at)
    if end < 0:
        raise BadRecord(record.lsn, "identifier of a prepared transaction is not terminated")
    return record.main[at:end].decode("utf-8", "surrogateescape"), end + 1
