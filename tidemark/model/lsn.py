"""Types for PostgreSQL's numbers, and the only functions that parse and print an LSN."""

from typing import NewType

from tidemark.model.errors import InvalidLsn

Lsn = NewType("Lsn", int)
"""A byte position in the write-ahead log, 64 bits."""
TimelineId = NewType("TimelineId", int)
"""The number of a timeline: a promotion begins the next one."""
SystemIdentifier = NewType("SystemIdentifier", int)
"""The number of a cluster, which its standbys have as well."""
Oid = NewType("Oid", int)
"""The number of an object of the catalogs; unique for tables of one database."""
Xid = NewType("Xid", int)
"""A 32-bit transaction id as records carry it; compare through `FullXid` only."""
FullXid = NewType("FullXid", int)
"""A 64-bit transaction id: epoch in the high half."""
SegmentNo = NewType("SegmentNo", int)
BlockNumber = NewType("BlockNumber", int)

INVALID_LSN = Lsn(0)
NO_TIMELINE = TimelineId(0)
INVALID_OID = Oid(0)
FIRST_USER_OID = Oid(16384)  # FirstNormalObjectId
INVALID_XID = Xid(0)
FIRST_NORMAL_XID = Xid(3)  # transam.h: lower ones are of bootstrap and of frozen rows
XID_MASK = 0xFFFFFFFF
HALF_OF_XIDS = 1 << 31  # an xid precedes those at most this far after it
OID_BYTES = 4
_HALF_BITS = 32
_LSN_MAX = (1 << 64) - 1


def format_lsn(lsn: int) -> str:
    """Return `lsn` as PostgreSQL prints it (`0/16B3748`)."""
    return f"{lsn >> _HALF_BITS:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> Lsn:
    """Parse an LSN such as `0/16B3748`; raise `InvalidLsn` for anything else."""
    high, slash, low = text.partition("/")
    digits = "0123456789abcdefABCDEF"
    if slash and 0 < len(high) <= 8 and 0 < len(low) <= 8 and all(c in digits for c in high + low):
        return Lsn(int(high, 16) << _HALF_BITS | int(low, 16))
    raise InvalidLsn(text)


def is_valid_lsn(value: int) -> bool:
    """Return whether `value` can be an LSN: not zero (PostgreSQL's invalid LSN), within 64 bits."""
    return 0 < value <= _LSN_MAX
