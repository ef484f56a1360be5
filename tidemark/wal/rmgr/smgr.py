"""Files of relations (`storage_xlog.h`): created empty, or truncated."""

from struct import Struct
from typing import NamedTuple

from tidemark.model.relation import RelFileLocator
from tidemark.wal.record import INFO_MASK, Record

CREATE = 0x10
TRUNCATE = 0x20
TRUNCATES_HEAP = 0x0001  # SMGR_TRUNCATE_HEAP: the main fork, also of other relations than heaps
_CREATE = Struct("<IIIi")  # locator, fork
_TRUNCATE = Struct("<IIIIi")  # first removed block, locator, flags


class FileCreated(NamedTuple):
    """An empty file was created."""

    locator: RelFileLocator
    fork: int


class FileTruncated(NamedTuple):
    """The pages of the main fork from `blocks` on were removed."""

    locator: RelFileLocator
    blocks: int


def parse(record: Record) -> FileCreated | FileTruncated | None:
    """Parse an SMGR record; return None for the truncation of other forks alone."""
    match record.info & INFO_MASK:
        case info if info == CREATE:
            *locator, fork = record.read(_CREATE)
            return FileCreated(RelFileLocator._make(locator), fork)
        case info if info == TRUNCATE:
            blocks, *locator, flags = record.read(_TRUNCATE)
            return FileTruncated(RelFileLocator._make(locator), blocks) if flags & TRUNCATES_HEAP else None
    return None
