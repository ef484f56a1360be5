"""The differences between PostgreSQL majors, as one row of values for each; all majors share the logic.

To add a major: compare `access/xlogrecord.h`, `access/xlog_internal.h`, `access/xact.h`, `access/heapam_xlog.h` and
`catalog/pg_control.h` with those of the major before, add a row, and run the oracle on it. No parser tests the major.
"""

from dataclasses import dataclass
from enum import Enum, auto

from tidemark.model.errors import NodeUnfit

PAGE_BYTES = 8192  # XLOG_BLCKSZ and BLCKSZ: other values are rejected
PAGE_HEADER_BYTES = 24  # SizeOfXLogShortPHD
LONG_PAGE_HEADER_BYTES = 40  # SizeOfXLogLongPHD, on the first page of a segment
RECORD_HEADER_BYTES = 24  # SizeOfXLogRecord
RECORD_CRC_AT = 20  # offsetof(XLogRecord, xl_crc)
RECORD_BYTES_MAX = 1 << 30  # MaxAllocSize, the limit of every reader in the server; 16 sets 1020 MB


class UnsupportedMajor(NodeUnfit):
    """WAL or a server of an unsupported major."""

    hint = "Tidemark reads PostgreSQL 14 to 18"


class CleanupForm(Enum):
    """How records describe the pruning and freezing of a heap page."""

    FREEZE_TUPLES = auto()  # xl_heap_freeze_tuple: a frozen tuple has its own plan
    FREEZE_PLANS = auto()  # xl_heap_freeze_plan: frozen tuples share plans
    PRUNE_FREEZE = auto()  # one record, xl_heap_prune, for pruning, freezing and VACUUM's second pass


@dataclass(frozen=True, slots=True)
class WalFormat:
    """The WAL of one major."""

    major: int
    page_magic: int  # XLOG_PAGE_MAGIC
    image_apply: int  # BKPIMAGE_APPLY
    image_pglz: int  # BKPIMAGE_COMPRESS_PGLZ; in 14 BKPIMAGE_IS_COMPRESSED
    image_lz4: int  # 0: unknown to this major
    image_zstd: int
    custom_rmgrs: bool  # resource managers 128 to 255 are valid
    dropped_stats_bytes: int  # size of a xl_xact_stats_item; 0: the major has none
    relmap_slots: int  # MAX_MAPPINGS
    checkpoint_wal_level: bool  # CheckPoint and xl_end_of_recovery contain wal_level
    dbase_create_logged: int  # XLOG_DBASE_CREATE_WAL_LOG
    dbase_drop: int  # XLOG_DBASE_DROP
    cleanup: "CleanupForm"

    @property
    def image_compressed(self) -> int:
        """All bits of an image's info that mark a compressed image."""
        return self.image_pglz | self.image_lz4 | self.image_zstd

    def has_rmgr(self, rmgr: int) -> bool:
        """Return whether `rmgr` is a valid resource manager in this WAL."""
        return rmgr <= RMGR_LAST or (self.custom_rmgrs and rmgr >= RMGR_CUSTOM_FIRST)


RMGR_LAST = 21  # RM_LOGICALMSG_ID, in all of 14 to 18
RMGRS = 256  # values of xl_rmid, a byte
RMGR_CUSTOM_FIRST = 128  # RM_MIN_CUSTOM_ID
_NO_OPCODE = 0xFF  # the low four bits of an opcode are zero

#   major  magic  apply  pglz lz4 zstd  custom stats relmap wal_level dbase_create_logged dbase_drop cleanup
_FORMATS = (
    WalFormat(14, 0xD10D, 0x04, 0x02, 0x00, 0x00, False, 0, 62, False, _NO_OPCODE, 0x10, CleanupForm.FREEZE_TUPLES),
    WalFormat(15, 0xD110, 0x02, 0x04, 0x08, 0x10, True, 12, 62, False, 0x10, 0x20, CleanupForm.FREEZE_TUPLES),
    WalFormat(16, 0xD113, 0x02, 0x04, 0x08, 0x10, True, 12, 64, False, 0x10, 0x20, CleanupForm.FREEZE_PLANS),
    WalFormat(17, 0xD116, 0x02, 0x04, 0x08, 0x10, True, 12, 64, True, 0x10, 0x20, CleanupForm.PRUNE_FREEZE),
    WalFormat(18, 0xD118, 0x02, 0x04, 0x08, 0x10, True, 16, 64, True, 0x10, 0x20, CleanupForm.PRUNE_FREEZE),
)
_BY_MAJOR = {row.major: row for row in _FORMATS}
_BY_MAGIC = {row.page_magic: row for row in _FORMATS}
MAJORS = tuple(_BY_MAJOR)


def wal_format(major: int) -> WalFormat:
    """Return the format of `major`'s WAL."""
    try:
        return _BY_MAJOR[major]
    except KeyError:
        raise UnsupportedMajor(f"PostgreSQL {major} is not supported") from None


def wal_format_of_magic(magic: int) -> WalFormat:
    """Return the format whose pages begin with `magic`."""
    try:
        return _BY_MAGIC[magic]
    except KeyError:
        raise UnsupportedMajor(f"WAL with page magic {magic:04X} is of no supported PostgreSQL") from None
