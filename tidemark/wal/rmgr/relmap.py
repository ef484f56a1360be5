"""The relation map (`relmapper.c`): the files of the mapped catalogs, such as pg_class, and updates of the map."""

from dataclasses import dataclass
from struct import Struct, error

import google_crc32c

from tidemark.model.lsn import Oid
from tidemark.wal.record import INFO_MASK, BadRecord, Record
from tidemark.wal.versions import WalFormat

UPDATE = 0x00
MAGIC = 0x592717  # RELMAPPER_FILEMAGIC
_HEAD = Struct("<IIi")
_MAP_HEAD = Struct("<ii")
_PAIR = Struct("<II")
_CRC = Struct("<I")


@dataclass(frozen=True, slots=True)
class RelmapUpdate:
    """The whole map of one database, or of the shared catalogs (database 0)."""

    database: Oid
    tablespace: Oid
    files: dict[Oid, Oid]  # relation to relfilenode


def parse(record: Record, fmt: WalFormat) -> RelmapUpdate | None:
    """Return the map in a RELMAP record."""
    if record.info & INFO_MASK != UPDATE:
        return None
    database, tablespace, size = record.read(_HEAD)
    if size != len(record.main) - _HEAD.size:
        raise BadRecord(record.lsn, f"relation map of {size} bytes in {len(record.main)}")
    magic, count = record.read(_MAP_HEAD, _HEAD.size)
    if magic != MAGIC or not 0 <= count <= fmt.relmap_slots:
        raise BadRecord(record.lsn, f"relation map with magic {magic:X} and {count} mappings")
    first = _HEAD.size + _MAP_HEAD.size
    pairs = [record.read(_PAIR, first + _PAIR.size * index) for index in range(count)]
    return RelmapUpdate(Oid(database), Oid(tablespace), {Oid(relation): Oid(file) for relation, file in pairs})


def parse_file(content: bytes, fmt: WalFormat) -> dict[Oid, Oid] | None:
    """Return the content of `pg_filenode.map`, relation to relfilenode; None if it is damaged."""
    crc_at = _MAP_HEAD.size + _PAIR.size * fmt.relmap_slots
    try:
        magic, count = _MAP_HEAD.unpack_from(content)
        (crc,) = _CRC.unpack_from(content, crc_at)
    except error:
        return None
    sound = magic == MAGIC and 0 <= count <= fmt.relmap_slots and google_crc32c.value(content[:crc_at]) == crc
    if not sound:
        return None
    pairs = _PAIR.iter_unpack(content[_MAP_HEAD.size : _MAP_HEAD.size + _PAIR.size * count])
    return {Oid(relation): Oid(file) for relation, file in pairs}
