"""Snapshots of the running transactions (`standbydefs.h`)."""

from dataclasses import dataclass
from struct import Struct

from tidemark.model.lsn import Xid
from tidemark.wal.record import INFO_MASK, BadRecord, Record

LOCK = 0x00
RUNNING_XACTS = 0x10
_HEAD = Struct("<iiB3xIII")


@dataclass(frozen=True, slots=True)
class RunningXacts:
    """The transactions that were running, including prepared ones: all others below `next_xid` have ended."""

    next_xid: Xid
    oldest_running_xid: Xid
    latest_completed_xid: Xid
    xids: tuple[Xid, ...]
    subxids: tuple[Xid, ...]
    overflowed: bool  # subxids are missing


def parse(record: Record) -> RunningXacts | None:
    """Return the snapshot of a RUNNING_XACTS record; None for the other records of this resource manager."""
    if record.info & INFO_MASK != RUNNING_XACTS:
        return None
    count, subcount, overflowed, next_xid, oldest, latest = record.read(_HEAD)
    if count < 0 or subcount < 0 or len(record.main) < _HEAD.size + 4 * (count + subcount):
        raise BadRecord(record.lsn, f"{count} and {subcount} running xids in {len(record.main)} bytes")
    xids = record.read(Struct(f"<{count + subcount}I"), _HEAD.size)
    return RunningXacts(
        Xid(next_xid),
        Xid(oldest),
        Xid(latest),
        tuple(map(Xid, xids[:count])),
        tuple(map(Xid, xids[count:])),
        bool(overflowed),
    )
