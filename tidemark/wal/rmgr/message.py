"""Logical messages (`message.h`): `pg_logical_emit_message`; Tidemark's markers are such messages."""

from dataclasses import dataclass
from struct import Struct

from tidemark.model.lsn import Oid
from tidemark.wal.record import INFO_MASK, BadRecord, Record

MESSAGE = 0x00
_HEAD = Struct("<IB3xQQ")


@dataclass(frozen=True, slots=True)
class MessageBody:
    """A message in WAL; the prefix is in the encoding of the database."""

    database: Oid
    transactional: bool
    prefix: bytes
    content: bytes


def parse(record: Record) -> MessageBody | None:
    """Return the message of a LOGICALMSG record."""
    if record.info & INFO_MASK != MESSAGE:
        return None
    database, transactional, prefix_bytes, content_bytes = record.read(_HEAD)
    end = _HEAD.size + prefix_bytes
    if prefix_bytes == 0 or end + content_bytes != len(record.main) or record.main[end - 1] != 0:
        raise BadRecord(record.lsn, f"message of {prefix_bytes} and {content_bytes} bytes in {len(record.main)}")
    return MessageBody(Oid(database), bool(transactional), record.main[_HEAD.size : end - 1], record.main[end:])
