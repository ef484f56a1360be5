"""Multixacts (`multixact.h`): several transactions that stand as one in the xmax of a row, at most one to update it."""

from dataclasses import dataclass
from struct import Struct

from tidemark.model.lsn import Xid
from tidemark.wal.record import INFO_MASK, BadRecord, Record

CREATE_ID = 0x20
NO_KEY_UPDATE = 4  # MultiXactStatus: this and UPDATE end the row, all lesser ones lock it
UPDATE = 5
_HEAD = Struct("<IIi")
_MEMBER = Struct("<Ii")


@dataclass(frozen=True, slots=True)
class MultixactCreate:
    """A multixact and who is in it."""

    multixact: Xid  # of a number range of its own
    members: tuple[tuple[Xid, int], ...]  # with what each does to the row

    @property
    def updater(self) -> Xid | None:
        """The member that updates or deletes the row; None if all lock it."""
        return next((xid for xid, status in self.members if status >= NO_KEY_UPDATE), None)


def parse(record: Record) -> MultixactCreate | None:
    """Return the multixact that a record makes; None for records about its storage."""
    if record.info & INFO_MASK != CREATE_ID:
        return None
    multixact, _offset, count = record.read(_HEAD)
    if count < 0 or len(record.main) < _HEAD.size + _MEMBER.size * count:
        raise BadRecord(record.lsn, f"{count} members of a multixact in {len(record.main)} bytes")
    members = [record.read(_MEMBER, _HEAD.size + _MEMBER.size * index) for index in range(count)]
    return MultixactCreate(Xid(multixact), tuple((Xid(xid), status) for xid, status in members))
