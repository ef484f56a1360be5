"""Updates of the relation map (`relmapper.c`): which files the mapped catalogs have, pg_class among them."""

from dataclasses import dataclass
from struct import Struct

from tidemark.model.lsn import Oid
from tidemark.wal.record import INFO_MASK, BadRecord, Record
from tidemark.wal.versions import WalFormat

UPDATE = 0x00
MAGIC = 0x592717  # RELMAPPER_FILEMAGIC
_HEAD = Struct("<IIi")
_MAP_HEAD = Struct("<ii")
_PAIR = Struct("<II")


@dataclass(frozen=True, slots=True)
class RelmapUpdate:
    """The whole map of one database, or of the shared catalogs (database 0)."""

    database: Oid
    tablespace: Oid
    files: dict[Oid, Oid]  # relation to relfilenode


def parse(record: Record, fmt: WalFormat) -> RelmapUpdate | None:
    """Return the map that a RELMAP record writes."""
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
