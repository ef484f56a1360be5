"""Frames the records of an archive and nothing more, for searches before decoding begins."""

from collections.abc import Iterator

from tidemark.io.archive.archive import ArchiveFolder
from tidemark.model.lsn import Lsn
from tidemark.wal.page import Framer, Invalid, NeedMore, RecordBlock
from tidemark.wal.segments import first_page_lsn


def archived_blocks(archive: ArchiveFolder, start_lsn: Lsn) -> Iterator[RecordBlock]:
    """Yield the records from `start_lsn`, the start of one, to the end of WAL; raise if later WAL exists."""
    framer = Framer(
        archive.format,
        system_identifier=archive.system_identifier,
        segment_bytes=archive.segment_bytes,
        start_lsn=start_lsn,
    )
    for piece in archive.read(first_page_lsn(start_lsn)):
        framer.follow(piece.timeline)
        framer.feed(piece.start_lsn, piece.data)
        while not isinstance(block := framer.next_block(), NeedMore):
            if isinstance(block, Invalid):
                damage = archive.damage(block.lsn, block.reason)
                if damage is not None:
                    raise damage
                return
            yield block


def of_rmgr(block: RecordBlock, stop: int, rmgr: int) -> Iterator[int]:
    """Yield the indexes of a resource manager's records before `stop`."""
    rmgrs = block.rmgrs[:stop].tobytes()
    index = rmgrs.find(rmgr)
    while index >= 0:
        yield index
        index = rmgrs.find(rmgr, index + 1)
