"""Multixacts (`multixact.h`): several transactions that share the xmax of a row; at most one updates it."""

from dataclasses import dataclass
from struct import Struct

from tidemark.model.lsn import INVALID_XID, Xid
from tidemark.wal.record import INFO_MASK, BadRecord, Record

CREATE_ID = 0x20
FIRST_UPDATER = 4  # MultiXactStatusNoKeyUpdate: this status and greater ones end the row, lower ones lock it
_HEAD = Struct("<IIi")  # multixact, offset of its first member, count of members
_MEMBER = Struct("<Ii")  # xid, status


@dataclass(frozen=True, slots=True)
class MultixactCreated:
    """A new multixact, which is numbered in a separate range."""

    multixact: Xid
    first_member: int
    updater: Xid  # 0: no member ends the row


def parse(record: Record) -> MultixactCreated | None:
    """Return the multixact that a MULTIXACT record creates; None for maintenance of its files."""
    if record.info & INFO_MASK != CREATE_ID:
        return None
    multixact, first, count = record.read(_HEAD)
    if not 0 <= count <= (len(record.main) - _HEAD.size) // _MEMBER.size:
        raise BadRecord(record.lsn, f"{count} members of a multixact in {len(record.main)} bytes")
    members = (record.read(_MEMBER, _HEAD.size + _MEMBER.size * index) for index in range(count))
    updaters = [Xid(xid) for xid, status in members if status >= FIRST_UPDATER]
    return MultixactCreated(Xid(multixact), first, updaters[0] if updaters else INVALID_XID)
