"""Proves by single records that WAL which was read earlier is the WAL of an archive.

Two archives can be of the same system: of a cluster and a restored copy, or of two copies that were both promoted to
timeline 2. Their WAL is the same up to a place, and differs after it.
"""

from array import array
from collections.abc import Sequence

from tidemark.io.archive.archive import ArchiveFolder
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Lsn
from tidemark.model.transaction_map import NO_END, EndMark
from tidemark.runtime.replay.archive_blocks import archived_blocks
from tidemark.wal.page import RecordBlock
from tidemark.wal.rmgr.end_times import find_ends
from tidemark.wal.versions import RECORD_CRC_AT

_CRC_BYTES = 4


def ends_in(block: RecordBlock) -> Sequence[int]:
    """Return the indices of the commit and abort records in a block."""
    indices, times = array("q", bytes(8 * len(block))), array("q", bytes(8 * len(block)))
    columns = block.rmgrs, block.infos, block.offsets, block.lengths
    return indices[: find_ends(block.linear, *columns, len(block), indices, times)]


def mark_of(block: RecordBlock, index: int) -> EndMark:
    """Return the mark of a record in a block."""
    begin = block.offsets[index] + RECORD_CRC_AT
    return EndMark(Lsn(block.lsns[index]), int.from_bytes(block.linear[begin : begin + _CRC_BYTES], "little"))


def last_shared_end(archive: ArchiveFolder, marks: Sequence[EndMark]) -> EndMark:
    """Return the last of the marks, in the order of WAL, that the archive has; `NO_END` if it has none of them.

    Mostly that is the very last. Otherwise the place where WAL differs, or ends, is searched by bisection.
    """
    first_lsn, end_lsn = archive.first_lsn(), archive.last_lsn()
    found = [mark for mark in marks if first_lsn <= mark.lsn < end_lsn]
    if not found or has_end(archive, found[-1]):
        return found[-1] if found else NO_END
    same, other = 0, len(found) - 1  # the first `same` are in the archive; from number `other` on, none is
    while same < other:
        middle = (same + other) // 2
        if has_end(archive, found[middle]):
            same = middle + 1
        else:
            other = middle
    return found[same - 1] if same else NO_END


def has_end(archive: ArchiveFolder, mark: EndMark) -> bool:
    """Return whether the archive has this record."""
    try:
        block = next(archived_blocks(archive, mark.lsn), None)
    except TidemarkError:  # a hole, or damage: decoding reports it if it needs this WAL
        return False
    return block is not None and len(block) > 0 and mark_of(block, 0) == mark
