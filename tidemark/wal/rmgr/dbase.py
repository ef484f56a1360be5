"""Databases as folders (`dbcommands_xlog.h`): created, copied, removed. Their names are in pg_database."""

from dataclasses import dataclass
from struct import Struct

from tidemark.model.lsn import Oid
from tidemark.wal.record import INFO_MASK, BadRecord, Record
from tidemark.wal.versions import WalFormat

CREATE_FILE_COPY = 0x00  # in 14 XLOG_DBASE_CREATE
_FILE_COPY = Struct("<IIII")  # database, tablespace, both of the source
_LOGGED = Struct("<II")  # database, tablespace
_DROP = Struct("<Ii")  # database, count of tablespaces
_OID = Struct("<I")


@dataclass(frozen=True, slots=True)
class DatabaseCopied:
    """The files of a database in one tablespace were copied outside WAL: CREATE DATABASE, or SET TABLESPACE."""

    database: Oid
    tablespace: Oid
    source: Oid
    source_tablespace: Oid


@dataclass(frozen=True, slots=True)
class DatabaseBegun:
    """An empty database was created; its relation map and pages follow (strategy WAL_LOG)."""

    database: Oid
    tablespace: Oid


@dataclass(frozen=True, slots=True)
class DatabaseRemoved:
    """The files of a database were removed from some tablespaces."""

    database: Oid
    tablespaces: tuple[Oid, ...]


DatabaseRecord = DatabaseCopied | DatabaseBegun | DatabaseRemoved


def parse(record: Record, fmt: WalFormat) -> DatabaseRecord | None:
    """Parse a DBASE record."""
    match record.info & INFO_MASK:
        case info if info == CREATE_FILE_COPY:
            database, tablespace, source, source_tablespace = record.read(_FILE_COPY)
            return DatabaseCopied(Oid(database), Oid(tablespace), Oid(source), Oid(source_tablespace))
        case info if info == fmt.dbase_create_logged:
            database, tablespace = record.read(_LOGGED)
            return DatabaseBegun(Oid(database), Oid(tablespace))
        case info if info == fmt.dbase_drop:
            database, count = record.read(_DROP)
            if not 0 <= count <= (len(record.main) - _DROP.size) // _OID.size:
                raise BadRecord(record.lsn, f"{count} tablespaces in {len(record.main)} bytes")
            oids = (record.read(_OID, _DROP.size + _OID.size * index)[0] for index in range(count))
            return DatabaseRemoved(Oid(database), tuple(map(Oid, oids)))
    return None
