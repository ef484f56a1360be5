"""Files that identify a data directory: pg_control and backup_label (`pg_control.h`, `xlogbackup.c`).

To add a major: compare `ControlFileData` and `pg_attribute.h` with those of the major before and add a row to
`_FORMATS`. `postgres.bki` lists the same columns in the same order under `create pg_attribute`.
"""

import re
from dataclasses import dataclass
from struct import Struct, error

import google_crc32c

from tidemark.model.errors import ConfigError, InvalidLsn
from tidemark.model.lsn import INVALID_LSN, Lsn, SystemIdentifier, TimelineId, parse_lsn

_IDENTITY = Struct("<QII")  # system_identifier, pg_control_version, catalog_version_no
_MIN_RECOVERY = Struct("<QI")  # minRecoveryPoint, its timeline
_MIN_RECOVERY_AT = 136  # after the fixed 128 bytes of identity, state, checkPoint and its copy, and unloggedLSN
_WAL_LEVEL = Struct("<i")
_WAL_LEVEL_AT = 172
_SIZES = Struct("<IIII")  # blcksz, relseg_size, xlog_blcksz, xlog_seg_size
_SIZES_AT = 216
_CRC = Struct("<I")

_FLAGS = (
    "attbyval:bool attalign:char attstorage:char attcompression:char attnotnull:bool atthasdef:bool atthasmissing:bool "
    "attidentity:char attgenerated:char attisdropped:bool attislocal:bool "
)
_ACL = "attacl:_aclitem attoptions:_text attfdwoptions:_text attmissingval:anyarray"
_ATTRIBUTE_14 = (
    "attrelid:oid attname:name atttypid:oid attstattarget:int4 attlen:int2 attnum:int2 attndims:int4 attcacheoff:int4 "
    f"atttypmod:int4 {_FLAGS}attinhcount:int4 attcollation:oid {_ACL}"
)
_ATTRIBUTE_16 = (
    "attrelid:oid attname:name atttypid:oid attlen:int2 attnum:int2 attcacheoff:int4 atttypmod:int4 attndims:int2 "
    f"{_FLAGS}attinhcount:int2 attstattarget:int2 attcollation:oid {_ACL}"
)
_ATTRIBUTE_17 = (
    "attrelid:oid attname:name atttypid:oid attlen:int2 attnum:int2 attcacheoff:int4 atttypmod:int4 attndims:int2 "
    f"{_FLAGS}attinhcount:int2 attcollation:oid attstattarget:int2? {_ACL}"
)
_ATTRIBUTE_18 = (
    "attrelid:oid attname:name atttypid:oid attlen:int2 attnum:int2 atttypmod:int4 attndims:int2 "
    f"{_FLAGS}attinhcount:int2 attcollation:oid attstattarget:int2? {_ACL}"
)


@dataclass(frozen=True, slots=True)
class DirectoryFormat:
    """The data directory of one major."""

    major: int
    control_version: int  # PG_CONTROL_VERSION
    control_crc_at: int  # offsetof(ControlFileData, crc)
    attribute: str  # pg_attribute's columns and their types, `?` after those that may be NULL


_FORMATS = {
    14: DirectoryFormat(14, 1300, 288, _ATTRIBUTE_14),
    15: DirectoryFormat(15, 1300, 288, _ATTRIBUTE_14),
    16: DirectoryFormat(16, 1300, 288, _ATTRIBUTE_16),
    17: DirectoryFormat(17, 1700, 288, _ATTRIBUTE_17),
    18: DirectoryFormat(18, 1800, 292, _ATTRIBUTE_18),  # default_char_signedness is new
}


class NotABackup(ConfigError):
    """A folder that is not a base backup, or whose files cannot be read."""

    hint = "name the directory as pg_basebackup wrote it, before any server has started from it"


class BackupUnusable(ConfigError):
    """A base backup whose files, with the WAL since its start, do not contain what is read from them."""

    hint = "take another backup (pg_basebackup)"


@dataclass(frozen=True, slots=True)
class ControlFile:
    """The content of pg_control."""

    system_identifier: SystemIdentifier
    catalog_version: int
    min_recovery_lsn: Lsn
    min_recovery_timeline: TimelineId | None  # of it; None on a primary
    wal_level: int
    block_bytes: int
    segment_blocks: int  # blocks of one file of a relation
    wal_block_bytes: int
    wal_segment_bytes: int


@dataclass(frozen=True, slots=True)
class BackupLabel:
    """The content of backup_label."""

    start_lsn: Lsn  # redo LSN of the backup's checkpoint
    checkpoint_lsn: Lsn
    timeline: TimelineId
    from_standby: bool


def directory_format(major: int) -> DirectoryFormat:
    """Return the format of `major`'s data directories."""
    return _FORMATS[major]


def parse_control(data: bytes, major: int, where: str) -> ControlFile:
    """Parse pg_control; `where` names it in errors."""
    fmt = directory_format(major)
    try:
        identifier, version, catalog_version = _IDENTITY.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, fmt.control_crc_at)
        min_recovery_lsn, timeline = _MIN_RECOVERY.unpack_from(data, _MIN_RECOVERY_AT)
        (wal_level,) = _WAL_LEVEL.unpack_from(data, _WAL_LEVEL_AT)
        sizes = _SIZES.unpack_from(data, _SIZES_AT)
    except error:
        raise NotABackup(f"{where} is cut off: {len(data)} bytes") from None
    if version != fmt.control_version:
        raise NotABackup(f"{where} is of version {version}, not the {fmt.control_version} of PostgreSQL {major}")
    if google_crc32c.value(data[: fmt.control_crc_at]) != crc:
        raise BackupUnusable(f"{where} fails its checksum: it is damaged")
    of_recovery = Lsn(min_recovery_lsn), TimelineId(timeline) if timeline else None
    return ControlFile(SystemIdentifier(identifier), catalog_version, *of_recovery, wal_level, *sizes)


def parse_label(text: str, where: str) -> BackupLabel:
    """Parse backup_label; `where` names it in errors."""
    if re.search(r"^INCREMENTAL FROM LSN: ", text, re.MULTILINE):
        raise NotABackup(
            f"{where} is of an incremental backup", hint="combine it with the backups before it (pg_combinebackup)"
        )
    timeline = _label_field(text, r"START TIMELINE: (\d{1,9})$", where)
    return BackupLabel(
        _lsn(_label_field(text, r"START WAL LOCATION: ([0-9A-F/]+) ", where), where),
        _lsn(_label_field(text, r"CHECKPOINT LOCATION: ([0-9A-F/]+)$", where), where),
        TimelineId(int(timeline)),
        _label_field(text, r"BACKUP FROM: (primary|standby)$", where) == "standby",
    )


def _label_field(text: str, pattern: str, where: str) -> str:
    found = re.search(f"^{pattern}", text, re.MULTILINE)
    if found is None:
        raise NotABackup(f"{where} has no line {pattern.partition(':')[0]}")
    return str(found[1])


def _lsn(text: str, where: str) -> Lsn:
    try:
        lsn = parse_lsn(text)
    except InvalidLsn as malformed:
        raise NotABackup(f"{where}: {malformed}") from malformed
    if lsn == INVALID_LSN:
        raise NotABackup(f"{where} names no LSN")
    return lsn
